"""Every way to shard batches over two ranks, and to gather predictions from them, is that of the
reference.
"""

from itertools import chain
from typing import Any

import pytest

from helpers.ddp.batch_sharding_script import CASES, EVALUATED, TRAINED

NUMBERS = ("loss", "grad_norm", "learning_rate", "epoch", "eval_loss", "step")
EACH_READS = ["stream that each reads", "split stream that each reads"]
APART = "grouped, apart"


@pytest.fixture(scope="module")
def both(two_ranks) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what the two ranks of the reference, and those of lightrainer, have seen in all
    cases.
    """
    pytest.importorskip("transformers")
    return (
        two_ranks("transformers", "batch_sharding").ranks,
        two_ranks("lightrainer", "batch_sharding").ranks,
    )


@pytest.fixture(scope="module")
def ours(both) -> list[dict[str, Any]]:
    return both[1]


def numbers(history: list[dict], *skipped: str) -> list[dict[str, float]]:
    return [
        {key: entry[key] for key in NUMBERS if key in entry and key not in skipped}
        for entry in history
    ]


@pytest.mark.parametrize("name", [name for name in CASES if name != APART])
def test_batch_sharding_equals_the_reference_on_each_rank(both, name):
    """Samples and their order, in training and evaluation; losses, norms and weights to 1e-6; and
    the random state.

    Where each process reads a stream for itself, the reference counts what fills up the last round
    of an evaluation.
    """
    skipped = ("eval_loss",) if name in EACH_READS else ()
    for expected, actual in ((rank[name] for rank in ranks) for ranks in zip(*both, strict=True)):
        for key in ("trained", "evaluated", "generator", "batch", "accumulation"):
            assert actual[key] == expected[key], key
        histories = (numbers(rank["history"], *skipped) for rank in (expected, actual))
        for expected_logs, logs in zip(*histories, strict=True):
            assert logs == pytest.approx(expected_logs, rel=1e-5, abs=1e-6)
        assert actual["sums"] == pytest.approx(expected["sums"], rel=1e-5, abs=1e-6)
        assert actual["predicted"] == expected["predicted"] or name in EACH_READS


@pytest.mark.parametrize("name", CASES)
def test_batch_sharding_covers_every_sample(ours, name):
    """In the first epoch each training sample, and in each evaluation each sample once and in
    the result.
    """
    trained = [sample for rank in ours for batch in rank[name]["trained"] for sample in batch]
    dropped = CASES[name].get("dataloader_drop_last", False)
    count, evaluated = CASES[name].get("trained", TRAINED), CASES[name].get("evaluated", EVALUATED)
    assert set(trained) <= set(range(count))
    assert dropped or set(trained) == set(range(count))
    for rank in ours:
        assert sorted(rank[name]["predicted"]) == list(
            range(evaluated - evaluated % 4 if dropped else evaluated)
        )


@pytest.mark.parametrize("name", [name for name in CASES if "dispatched" in name])
def test_dispatched_data_is_read_by_the_first_process_alone(ours, name):
    assert ours[1][name]["read"] == [[], []]
    assert all(ours[0][name]["read"])
    assert ours[1]["default"]["read"] != [[], []]


@pytest.mark.parametrize("name", ["global order, apart", APART])
def test_batch_sharding_order_is_shared_although_generators_differ(ours, name):
    """No other rank sees what one sees of a whole round."""
    first, second = (rank[name]["trained"] for rank in ours)
    epoch = [(set(left), set(right)) for left, right in zip(first[:2], second[:2], strict=True)]
    everything = [sample for parts in epoch for part in parts for sample in part]
    assert len(everything) == len(set(everything)) == 16
    assert ours[0][name]["generator"] != ours[1][name]["generator"]


def test_gradients_are_exchanged_when_they_are_asked_to_be(both):
    """After the first micro-batch of a window: with sync_each_batch both ranks have the same
    ones.
    """
    for ranks in both:
        first, second = (rank["exchanged each time"]["halves"] for rank in ranks)
        assert len(first) > 1
        assert first == second
        first, second = (rank["default"]["halves"] for rank in ranks)
        assert all(left != right for left, right in zip(first, second, strict=True))


def test_static_graph_is_recorded_in_the_first_pass(ours):
    """DDP records while gradients are exchanged, so they are after the first micro-batch, and
    only then.
    """
    first, second = (rank["static graph"]["halves"] for rank in ours)
    assert [left == right for left, right in zip(first, second, strict=True)] == [
        True,
        False,
        False,
    ]


def test_lists_of_objects_are_gathered_as_in_the_reference(both):
    for expected, actual in zip(*both, strict=True):
        assert actual["objects"] == {
            **expected["objects"],
            "loss": pytest.approx(expected["objects"]["loss"]),
        }
        assert [len(batch) for batch in actual["objects"]["labels"]] == [4, 4, 4, 1]


def test_lists_of_objects_are_joined_to_one_of_all_samples(ours):
    """Dicts of them keep their keys."""
    for rank in ours:
        apart, joined = rank["objects"], rank["objects, joined"]
        texts = [f"{2 + index % 3} found" for index in range(EVALUATED)]
        assert joined["predictions"] == {"boxes": [*chain(*apart["predictions"])], "text": texts}
        assert joined["labels"] == [*chain(*apart["labels"])]
        assert [label["index"] for label in joined["labels"]] == [
            [index] for index in range(EVALUATED)
        ]


def test_batches_of_any_shape_are_sent(ours):
    """Also the last round, which is filled up with the first samples."""
    for rank, result in enumerate(ours):
        for name, seventh in (("even", 7), ("filled", 0)):
            numbers = [[2 * rank, 2 * rank + 1], [4 + 2 * rank, 5 if rank == 0 else seventh]]
            assert result["sent"][name] == [
                {
                    "matrix": ["torch.bfloat16", 2, 1 + pair[0]],
                    "pair": [
                        [number > 3 for number in pair],
                        [f"sample {number}" for number in pair],
                    ],
                    "whole": None,
                }
                for pair in numbers
            ]


def test_dispatch_error_of_the_reading_rank_is_raised_on_all(ours):
    first, second = (rank["sent"] for rank in ours)
    assert first["error"] == "OSError: the disk is gone"
    assert "dispatch_batches=True" in second["error"]
    assert first["error"] in second["error"]
    assert "Sizes of tensors must match" in first["ragged end"]
    assert first["ragged end"] in second["ragged end"]
    assert "pickle" in first["unsendable"]
    assert first["unsendable"] in second["unsendable"]
