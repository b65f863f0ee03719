"""Batches of a number of tokens."""

import numpy as np
import pytest

from lightrainer.lightning_modules.data.batch_samplers import SkipBatchSampler
from lightrainer.lightning_modules.data.loaders import build_loader
from lightrainer.lightning_modules.data.token_budget import TokenBudgetSampler

LENGTHS = np.random.default_rng(0).lognormal(3, 1, 1000).astype(int).clip(1, 400)


def batches(epoch=0, **ways):
    sampler = TokenBudgetSampler(LENGTHS, **{"max_tokens": 512, **ways})
    sampler.set_epoch(epoch)
    index_batches = list(sampler)
    assert len(index_batches) == len(sampler)
    return index_batches


@pytest.mark.parametrize(
    "ways", [{}, {"max_samples": 7}, {"max_tokens": 400}, {"seed": 5}], ids=str
)
def test_token_budget_covers_each_sample_within_the_budget(ways):
    index_batches = batches(**ways)
    assert sorted(index for batch in index_batches for index in batch) == list(range(1000))
    assert all(
        len(batch) * LENGTHS[batch].max() <= ways.get("max_tokens", 512) for batch in index_batches
    )
    assert max(map(len, index_batches)) <= ways.get("max_samples", 512)


def test_batches_are_full_and_little_of_them_is_padding():
    """Less than 15 % beyond the samples' own tokens, where batches of as many samples at random
    pad half of them.
    """
    index_batches = batches()
    assert sum(len(batch) * LENGTHS[batch].max() for batch in index_batches) < 1.15 * LENGTHS.sum()
    assert len(index_batches) * 512 < 1.3 * LENGTHS.sum()
    each = 1000 // len(index_batches)
    plain = (
        np.random.default_rng(1).permutation(1000)[: each * len(index_batches)].reshape(-1, each)
    )
    assert each * LENGTHS[plain].max(1).sum() > 1.8 * LENGTHS.sum()


def test_epochs_have_the_same_batches_in_another_order():
    first, second = batches(), batches(epoch=1)
    assert first != second
    assert sorted(first) == sorted(second)
    assert batches(epoch=1) == second
    assert sorted(batches(seed=1)) != sorted(first)


def test_token_budget_state_restores_batches_and_order():
    sampler = TokenBudgetSampler(LENGTHS, 512, seed=1)
    sampler.load_state_dict(TokenBudgetSampler(LENGTHS, 512, seed=5).state_dict())
    assert list(sampler) == batches(seed=5)
    assert sampler.state_dict() == {"seed": 5}


@pytest.mark.parametrize("processes", [2, 3, 7, 200])
@pytest.mark.parametrize("drop_last", [False, True])
def test_processes_take_equally_many_batches_in_turn(processes, drop_last):
    whole, options = batches(), {"world_size": processes, "drop_last": drop_last}
    shares = [batches(rank=rank, **options) for rank in range(processes)]
    taken = [batch for round_ in zip(*shares, strict=True) for batch in round_]
    if drop_last:
        assert taken == whole[: len(whole) // processes * processes]
    else:
        assert taken[: len(whole)] == whole
        assert len(taken) - len(whole) < processes
        assert all(batch in whole for batch in taken)


@pytest.mark.parametrize("skipped", [0, 1, 40, 1000])
def test_token_budget_epoch_can_start_in_the_middle_once(skipped):
    sampler = TokenBudgetSampler(LENGTHS, 512)
    assert list(SkipBatchSampler(sampler, skipped)) == batches()[skipped:]
    assert list(sampler) == batches()


def test_samples_that_do_not_fit_are_named():
    message = r"max_tokens_per_batch=8 is too small for 2 of 4 samples: sample 1 has 9 tokens, the longest has 30"
    with pytest.raises(ValueError, match=message):
        TokenBudgetSampler([8, 9, 30, 1], 8)


def test_no_samples_of_a_last_batch_count_as_repeated():
    """Batches differ in size, so `gather_for_metrics` must not cut the last one."""
    sampler = TokenBudgetSampler([3, 5, 2, 4, 6], max_tokens=8)
    loader = build_loader(list(range(5)), batch_size=2, sampler=sampler)
    assert len(list(loader)) == len(sampler)
    assert loader.remainder == -1
