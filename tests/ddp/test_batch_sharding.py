"""Every way to shard batches over two ranks, and to gather predictions from them, is that of the reference."""

from typing import Any

import pytest
from batch_sharding_script import CASES, EVALUATED, RESUMED, TRAINED

NUMBERS = ("loss", "grad_norm", "learning_rate", "epoch", "eval_loss", "step")
EACH_READS = ["stream that each reads", "split stream that each reads"]
APART = "grouped, apart"


@pytest.fixture(scope="module")
def both(two_ranks) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what the two ranks of the reference, and those of lightrainer, have seen in all cases."""
    pytest.importorskip("transformers")
    return two_ranks("transformers", "batch_sharding").ranks, two_ranks("lightrainer", "batch_sharding").ranks


@pytest.fixture(scope="module")
def ours(both) -> list[dict[str, Any]]:
    return both[1]


def numbers(history: list[dict], *skipped: str) -> list[dict[str, float]]:
    return [{key: entry[key] for key in NUMBERS if key in entry and key not in skipped} for entry in history]


@pytest.mark.parametrize("name", [name for name in CASES if name != APART])
def test_each_rank_sees_what_it_sees_in_the_reference(both, name):
    """Samples and their order, in training and evaluation; losses, norms and weights to 1e-6; and the random state.

    Where each process reads a stream for itself, the reference counts what fills up the last round of an evaluation.
    """
    skipped = ("eval_loss",) if name in EACH_READS else ()
    for expected, actual in ((rank[name] for rank in ranks) for ranks in zip(*both, strict=True)):
        for key in ("trained", "evaluated", "generator", "batch", "accumulation"):
            assert actual[key] == expected[key], key
        histories = (numbers(rank["history"], *skipped) for rank in (expected, actual))
        for one, other in zip(*histories, strict=True):
            assert other == pytest.approx(one, rel=1e-5, abs=1e-6)
        assert actual["sums"] == pytest.approx(expected["sums"], rel=1e-5, abs=1e-6)
        assert actual["predicted"] == expected["predicted"] or name in EACH_READS


def test_the_comparison_can_fail(ours):
    """Negative control: the ways differ in what a rank sees, and in what comes out."""
    first = ours[0]
    for name in ("stream", "split", "dispatched and split", "dropped", "global order", "grouped", "workers"):
        assert first[name]["sums"] != pytest.approx(first["default"]["sums"], rel=0, abs=1e-6), name
    assert first["split"]["trained"][0] == first["default"]["trained"][0][:2]


@pytest.mark.parametrize("name", CASES)
def test_both_ranks_together_see_every_sample(ours, name):
    """In the first epoch each training sample, and in each evaluation each sample once and in the result."""
    trained = [sample for rank in ours for batch in rank[name]["trained"] for sample in batch]
    dropped = CASES[name].get("dataloader_drop_last", False)
    count, evaluated = CASES[name].get("trained", TRAINED), CASES[name].get("evaluated", EVALUATED)
    assert set(trained) <= set(range(count))
    assert dropped or set(trained) == set(range(count))
    for rank in ours:
        assert sorted(rank[name]["predicted"]) == list(range(evaluated - evaluated % 4 if dropped else evaluated))


@pytest.mark.parametrize("name", [name for name in CASES if "split" in name])
def test_split_batches_are_parts_of_one_batch(ours, name):
    for rank in ours:
        assert {len(batch) for batch in rank[name]["trained"]} <= {1, 2}
        assert rank[name]["batch"] == 4


@pytest.mark.parametrize("name", [name for name in CASES if "dispatched" in name])
def test_dispatched_data_is_read_by_the_first_process_alone(ours, name):
    assert ours[1][name]["read"] == [[], []]
    assert all(ours[0][name]["read"])
    assert ours[1]["default"]["read"] != [[], []]


@pytest.mark.parametrize("name", ["global order, apart", APART])
def test_the_ranks_agree_on_the_order_although_their_generators_differ(ours, name):
    """No other rank sees what one sees of a whole round."""
    first, second = (rank[name]["trained"] for rank in ours)
    epoch = [(set(one), set(other)) for one, other in zip(first[:2], second[:2], strict=True)]
    everything = [sample for parts in epoch for part in parts for sample in part]
    assert len(everything) == len(set(everything)) == 16
    assert ours[0][name]["generator"] != ours[1][name]["generator"]


def test_the_ranks_of_the_reference_do_not_agree_on_a_grouped_order(both):
    """Negative control of the test before: 5.3.0 draws it from the generator of each process."""
    reference, ours = (ranks[0][APART] for ranks in both)
    assert sorted(reference["predicted"]) != list(range(EVALUATED)) == sorted(ours["predicted"])
    assert reference["trained"] == ours["trained"], "the order of rank 0 counts"


def test_gradients_are_exchanged_when_they_are_asked_to_be(both):
    """After the first micro-batch of a window: with sync_each_batch both ranks have the same ones."""
    for ranks in both:
        first, second = (rank["exchanged each time"]["halves"] for rank in ranks)
        assert len(first) > 1
        assert first == second
        first, second = (rank["default"]["halves"] for rank in ranks)
        assert all(one != other for one, other in zip(first, second, strict=True))


def test_a_static_graph_is_recorded_in_the_first_pass_and_relied_on_later(ours):
    """DDP records while gradients are exchanged, so they are after the first micro-batch, and only then."""
    assert all(rank["static graph"]["wrapped"]["static_graph"] for rank in ours)
    assert not any(rank["default"]["wrapped"]["static_graph"] for rank in ours)
    first, second = (rank["static graph"]["halves"] for rank in ours)
    assert [one == other for one, other in zip(first, second, strict=True)] == [True, False, False]


@pytest.mark.parametrize("name", ["default", "DDP"])
def test_options_of_ddp_equal_reference(both, name):
    for expected, actual in zip(*both, strict=True):
        assert actual[name]["wrapped"] == expected[name]["wrapped"]
        assert actual[name]["wrapped"]["kind"] == "DistributedDataParallel"
    told = both[1][0]["DDP"]["wrapped"]
    assert not told["find_unused_parameters"]
    assert not told["broadcast_buffers"]
    assert told["bucket_bytes_cap"] == 3 * 2**20
    usual = both[1][0]["default"]["wrapped"]
    for option in ("find_unused_parameters", "broadcast_buffers", "bucket_bytes_cap"):
        assert usual[option] != told[option]


def test_labels_are_counted_over_all_ranks_or_on_each(ours):
    """Both as in the reference, above; and they differ, since the ranks have different numbers of labels."""
    one, other = (ours[0][name]["sums"] for name in ("tokens", "tokens of each"))
    assert one != pytest.approx(other, rel=0, abs=1e-6)


def test_lengths_are_measured_once(both):
    """The training samples once for the whole run; the reference measures the evaluation's each time."""
    for rank, reference in zip(*reversed(both), strict=True):
        training, evaluation = rank["grouped"]["read"]
        assert len(training) <= len(reference["grouped"]["read"][0])
        assert len(evaluation) < len(reference["grouped"]["read"][1])


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_training_goes_on_with_the_samples_that_come_next(ours, name):
    for rank in ours:
        straight, stopped, resumed = (rank["resumed"][name][part] for part in ("straight", "stopped", "resumed"))
        assert stopped["trained"] == straight["trained"][:5]
        assert resumed["trained"] == straight["trained"][5:]
        assert resumed["sums"] == straight["sums"] != stopped["sums"]


def test_lists_of_objects_are_gathered_as_in_the_reference(both):
    for expected, actual in zip(*both, strict=True):
        assert actual["objects"] == {**expected["objects"], "loss": pytest.approx(expected["objects"]["loss"])}
        assert [len(batch) for batch in actual["objects"]["labels"]] == [4, 4, 4, 1]


def test_lists_of_objects_are_joined_to_one_of_all_samples(ours):
    for rank in ours:
        for key in ("predictions", "labels"):
            batches = rank["objects"][key]
            assert rank["objects, joined"][key] == [sample for batch in batches for sample in batch]
        found = [label["index"] for label in rank["objects, joined"]["labels"]]
        assert found == [[index] for index in range(EVALUATED)]


def test_dicts_of_objects_keep_their_keys(ours):
    for rank in ours:
        found = rank["texts"]["predictions"]
        assert found["boxes"] == rank["objects, joined"]["predictions"]
        assert found["text"] == [f"{2 + index % 3} found" for index in range(EVALUATED)]
        assert len(found["x"]) == EVALUATED


def test_batches_of_any_shape_are_sent(ours):
    first, second = (rank["sent"] for rank in ours)
    assert [batch["texts"] for batch in first["even"]] == [["sample 0", "sample 1"], ["sample 4", "sample 5"]]
    assert [batch["texts"] for batch in second["even"]] == [["sample 2", "sample 3"], ["sample 6", "sample 7"]]
    received = {"matrix": [2, 3], "pair": [[False, False], [[], []]], "texts": ["sample 2", "sample 3"], "whole": None}
    assert second["even"][0] == received
    assert second["filled"][1]["texts"] == ["sample 6", "sample 0"]
    for seen in (first, second):
        assert seen["even types"] == ["torch.bfloat16"] * 2
        assert seen["even skipped"]
        assert seen["filled skipped"]


def test_an_error_of_the_reading_rank_is_raised_in_all(ours):
    first, second = (rank["sent"] for rank in ours)
    assert first["error"] == "OSError: the disk is gone"
    assert "dispatch_batches=True" in second["error"]
    assert first["error"] in second["error"]
    assert "Sizes of tensors must match" in first["ragged end"]
    assert first["ragged end"] in second["ragged end"]


def test_a_batch_that_cannot_be_sent_is_an_error_in_all(ours):
    first, second = (rank["sent"]["unsendable"] for rank in ours)
    assert "pickle" in first
    assert first in second
