"""Searches in two processes: all stop together, for whatever reason; one that waits for the
other is caught.
"""

import json

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks, forked_ranks

SCRIPT = HELPERS / "ddp" / "search_script.py"
SECONDS = 180  # a run takes about twenty


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    finished_ranks(SCRIPT, str(folder), log=folder / "log.txt", seconds=SECONDS)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_half_of_the_trials_are_pruned_and_both_processes_stop_at_the_same_steps(run):
    first, second = (rank["halves"] for rank in run)
    assert first["states"] == ["COMPLETE", "PRUNED"] * 3
    assert first["steps"] == second["steps"]
    for number, reports in enumerate(first["reports"]):
        assert list(reports) == (["1", "2"] if number % 2 else ["1", "2", "3"])
    # The value of a trial is that of its last report.
    assert [report["3"] for report in first["reports"][::2]] == first["values"][::2]


def test_search_best_run_and_model_are_on_every_process(run):
    first, second = (rank["halves"] for rank in run)
    assert first["best"] == second["best"]
    assert first["best"][1] == min(first["values"][::2])
    assert set(first["best"][2]) == {"width", "learning_rate"}  # the width was drawn in model_init
    assert first["weights"] == second["weights"]
    assert first["evaluated"] == second["evaluated"]


def test_search_timeout_stops_all_processes(run):
    assert run[0]["stopped"]["late"] == run[1]["stopped"]["late"]
    assert run[0]["stopped"]["late"][0] == "0"


def test_search_failure_in_one_process_fails_the_trial(run):
    """If it is in `catch`, the search continues in both; else both end, and each reports why."""
    first, second = (rank["stopped"] for rank in run)
    assert first["states"] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert first["caught"] == second["caught"]
    assert first["caught"][0] != "1"
    assert first["held"] == second["held"]  # and nowhere that of the trial which failed elsewhere
    assert (
        first["error"]
        == "OtherProcessError: The trial failed in another process: ArithmeticError: one process "
        "only"
    )
    assert second["error"] == "ArithmeticError: one process only"


def test_search_failure_while_another_rank_waits_ends_both(tmp_path):
    """The search ends: the other process cannot be called back from its exchange of gradients."""
    script = SCRIPT.with_name("search_alone_script.py")
    codes, output = forked_ranks(script, log=tmp_path / "log.txt", seconds=SECONDS)
    assert len(codes) == 2
    assert 0 not in codes
    assert "The trial failed in process 1 only" in output
    assert "ArithmeticError: in the middle of a step" in output
