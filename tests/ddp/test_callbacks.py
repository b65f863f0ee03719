"""Callbacks in two processes do the same in both: time limits, averages, measurements, NaN
losses, the best of two sets.
"""

import json
import math

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder, script = (
        tmp_path_factory.mktemp("callbacks"),
        HELPERS / "ddp" / "callback_script.py",
    )
    output = finished_ranks(script, str(folder), log=folder / "log.txt", seconds=120)
    return (
        folder,
        [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)],
        output,
    )


def test_time_limit_of_one_rank_stops_both_at_the_same_step(run):
    folder, (first, second), output = run
    assert 0 < first["step"] == second["step"] < first["max_steps"]
    assert first["stopped"]
    assert second["stopped"]
    assert [path.name for path in (folder / "stopped").glob("checkpoint-*")] == [
        f"checkpoint-{first['step']}"
    ]
    assert output.count("The time limit of") == 1  # logged once, by the first process


def test_callback_of_one_process_alone_reads_every_checkpoint(run):
    """The other process writes in the same way: it would wait for the first one elsewhere."""
    _, (first, second), _ = run
    assert (first["read"], second["read"]) == ([[1, 2, 3], []], [[], [1, 2, 3]])


def test_ema_is_equal_on_both_ranks_and_resumes_exactly(run):
    _, (first, second), _ = run
    assert first["average"] == second["average"] == first["whole_average"] == first["weights"]


def test_callbacks_refuse_weights_that_are_sharded(run):
    for rank in run[1]:
        averaged_1, averaged_2, measured, measured_parts, whole = rank["refused"]
        assert averaged_1.startswith("EMACallback cannot average first.weight,")
        assert averaged_2 == averaged_1
        assert measured.startswith("GradientNormCallback cannot measure")
        assert measured_parts == measured
        assert not whole


def test_measurements_are_those_of_all_processes(run):
    """Samples of both; the norms of the layers add up to that of all, which is the same in both."""
    folder, ranks, _ = run
    for rank in ranks:
        for entry in rank["logs"]:
            layers = [value for name, value in entry.items() if name.startswith("grad_norm/")]
            assert math.sqrt(sum(value**2 for value in layers)) == pytest.approx(
                entry["grad_norm"], rel=1e-4
            )
            assert entry["samples_per_second"] == pytest.approx(
                8 * entry["steps_per_second"], rel=1e-4
            )
            assert entry["flops_per_second"] == pytest.approx(
                100 * entry["samples_per_second"], rel=1e-4
            )
            # of two devices
            assert entry["mfu"] == pytest.approx(entry["flops_per_second"] / 2e12, rel=1e-4)
    assert (folder / "whole" / "report.html").exists()


def test_ranks_choose_the_same_best_model_and_skip_the_same_steps(run):
    _, (first, second), _ = run
    assert first["skipped"] == second["skipped"] == [6]
    assert first["back"]
    assert second["back"]
    sets = first["sets"]
    assert sets == second["sets"]
    a, b, means = (
        [entry[name] for entry in sets["logs"] if name in entry]
        for name in ("eval_a_accuracy", "eval_b_accuracy", "eval_mean_accuracy")
    )
    assert means == pytest.approx([(left + right) / 2 for left, right in zip(a, b, strict=True)])
    assert (sets["best"], sets["step"]) == (max(means), means.index(max(means)) + 1)


def test_nan_loss_of_another_rank_is_counted_by_the_first(run):
    _, _, output = run
    warning = (
        "1 of the 2 steps since the last log had a NaN or infinite loss, the first of them step 6"
    )
    assert output.count(warning) == 1
    assert output.count("1 of the 6 steps of this training had a NaN or infinite loss") == 1


def test_layer_that_a_callback_unfreezes_stays_equal_on_both_ranks(run):
    """DDP alone never exchanges gradients of parameters that were frozen when it was made."""
    _, (first, second), _ = run
    assert first["unfrozen"]["before"] != first["unfrozen"]["after"]
    assert first["unfrozen"] == second["unfrozen"]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_loss_that_calls_the_model_without_ddp_gets_averaged_gradients(run, accumulation):
    _, (first, second), output = run
    wrapped, unwrapped = first["without_wrapper"][accumulation - 1]
    assert unwrapped == wrapped
    assert second["without_wrapper"] == first["without_wrapper"]
    assert first["finding_batch_size"] == first["without_wrapper"][0][0]
    assert output.count("calls the model without its DDP wrapper") == 3


def test_skipped_last_micro_batch_leaves_ranks_equal(run):
    _, (first, second), _ = run
    assert first["skipping"] == second["skipping"]
