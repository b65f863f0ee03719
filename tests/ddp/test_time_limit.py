"""Callbacks in two processes: one whose time is up stops both; measurements and the average are those of both."""

import json
import math
from pathlib import Path

import pytest
from starting import finished_ranks

SCRIPT = Path(__file__).with_name("time_limit_script.py")
SECONDS = 120  # a run takes about ten


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("time_limit")
    said = finished_ranks(SCRIPT, str(folder), log=folder / "log.txt", seconds=SECONDS)
    return folder, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)], said


def test_both_stop_at_the_same_step_though_only_one_clock_says_so(run):
    folder, ranks, said = run
    steps = {rank["step"] for rank in ranks}
    assert len(steps) == 1
    (step,) = steps
    assert 0 < step < ranks[0]["max_steps"]
    assert all(rank["stopped"] for rank in ranks)
    assert [path.name for path in (folder / "stopped").glob("checkpoint-*")] == [f"checkpoint-{step}"]
    assert said.count("The time limit of") == 1  # said once, by the first process


def test_the_average_is_the_same_in_both_and_goes_on_exactly(run):
    _, ranks, _ = run
    assert ranks[0]["average"] == ranks[1]["average"] == ranks[0]["whole_average"]
    assert ranks[0]["weights"] == ranks[0]["average"]


def test_measurements_are_those_of_all_processes(run):
    """Samples of both; the norms of the layers add up to that of all, which is the same in both."""
    folder, ranks, _ = run
    for rank in ranks:
        for entry in rank["logs"]:
            layers = [value for name, value in entry.items() if name.startswith("grad_norm/")]
            assert math.sqrt(sum(value**2 for value in layers)) == pytest.approx(entry["grad_norm"], rel=1e-4)
            assert entry["samples_per_second"] == pytest.approx(8 * entry["steps_per_second"], rel=1e-4)
            operations = 2 * 2 * 8 * 16 + 3 * 2 * 16 * 3  # the gradient with regard to the inputs is not needed
            assert entry["flops_per_second"] == pytest.approx(operations * entry["samples_per_second"], rel=1e-2)
    assert (folder / "whole" / "report.html").exists()
