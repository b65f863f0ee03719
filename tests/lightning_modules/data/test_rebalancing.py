"""Batches that cost the same; `tests/parity/test_added_later.py` compares them with the
reference.
"""

import pytest

from lightrainer.lightning_modules.data.loaders import build_loader
from lightrainer.lightning_modules.data.rebalancing import BatchRebalanceSampler

LENGTHS = [
    50,
    98,
    54,
    6,
    34,
    66,
    63,
    52,
    39,
    62,
    46,
    75,
    28,
    65,
    18,
    37,
    18,
    97,
    13,
    80,
    33,
    69,
    91,
]
# Of both processes in two epochs, seen of transformers 5.23.0.
SEEN = {
    (0, 0): [[17, 11], [6, 2], [15, 14, 18, 3], [19], [9, 7], [22]],
    (0, 1): [[0, 8, 16], [1], [5, 10], [21], [4, 20, 12], [13]],
    (1, 0): [[10, 20, 16, 18], [1], [21, 6], [8, 15], [19, 5], [0, 3]],
    (1, 1): [[13, 7], [17], [4, 12, 14], [11], [9, 2], [22]],
}


def sampler(lengths=LENGTHS, samples=8, processes=2, accumulation=2, **ways):
    return BatchRebalanceSampler(
        lengths, samples, processes, accumulation, **{"drop_last": False, **ways}
    )


@pytest.mark.parametrize(("epoch", "rank"), SEEN)
def test_batches_are_those_of_the_reference(epoch, rank):
    batches = sampler(rank=rank)
    batches.set_epoch(epoch)
    assert list(batches) == SEEN[epoch, rank]
    assert list(sampler(rank=rank, drop_last=True)) == SEEN[0, rank][:4]


def test_rebalancing_step_has_the_same_samples_with_less_padding():
    """Each sample once in an epoch, and the micro-batches of a step cost about the same."""
    lengths = [1 + (37 * i) % 101 for i in range(256)]
    shares = [list(sampler(lengths, 64, 2, 4, rank=rank)) for rank in range(2)]
    assert sorted(index for share in shares for batch in share for index in batch) == list(
        range(256)
    )
    for step in range(4):
        batches = [batch for share in shares for batch in share[4 * step : 4 * step + 4]]
        costs = [max(lengths[index] for index in batch) * len(batch) for batch in batches]
        assert sum(map(len, batches)) == 64
        assert max(costs) < 1.6 * min(costs)
        assert max(map(len, batches)) > 2 * min(map(len, batches))


@pytest.mark.parametrize(("count", "expected"), [(9, [2, 3, 1, 1]), (3, [1, 1]), (0, [])])
def test_rebalancing_last_step_has_a_sample_per_micro_batch(count, expected):
    batches = sampler(list(range(1, count + 1)), shuffle=False)
    assert [len(batch) for batch in batches] == expected
    assert len(batches) == len(expected)


def test_rebalancing_distributes_a_loader_once():
    loader = build_loader(
        LENGTHS, batch_size=2, sampler=sampler(rank=1), rank=1, world_size=2, collate_fn=list
    )
    for epoch in range(2):
        assert list(loader) == [[LENGTHS[i] for i in batch] for batch in SEEN[epoch, 1]]
    loader.set_epoch(0)
    loader.skip(3)
    assert list(loader) == [[LENGTHS[i] for i in batch] for batch in SEEN[0, 1][3:]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"samples": 3}, "effective_batch_size=3 is less than"),
        ({"rank": 2}, "rank=2 is out of range for 2 processes"),
    ],
)
def test_rebalancing_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        sampler(**wrong)
