"""A disk that is full or read-only: a training continues, or ends with a clear error, and nothing
older is harmed.
"""

import os
import re

import pytest

from helpers.faults.disk_trainings_script import CASES
from helpers.faults.launching import report_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the trainings are forked")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return report_of("disk_trainings_script.py", tmp_path_factory.mktemp("disks"))


def goes_on(found, case):
    """It finished with the same losses, and the checkpoints that are left are intact."""
    assert not any(found["codes"]), found["output"]
    assert found["logs"]
    assert found["damaged"] == []
    assert all(name.startswith("checkpoint-") for name in found["left"])
    assert found["warnings"] > 0
    if "metric_for_best_model" not in case.arguments:
        assert found["weights"]
        assert (
            12 - len(found["left"])
            <= found["warnings"]
            <= (12 - len(found["left"])) * case.processes
        )
    elif found["left"]:
        assert found["best"][2] in found["left"] or "is missing or damaged" in found["output"]


@pytest.mark.parametrize("name", CASES)
def test_disk_that_is_full_warns(report, name):
    """A write fails in about every other checkpoint; the loss is unaffected, in all
    processes.
    """
    for result in report[name]["refused"]:
        goes_on(result, CASES[name])


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].processes == 1])
def test_disk_that_is_really_full_warns(report, name):
    """It refuses in mid-file, after it reported enough space; with more space the
    training continues.
    """
    if report[name]["small"][0] is None:
        pytest.skip("only an administrator can make a small file system")
    for result in report[name]["small"]:
        goes_on(result, CASES[name])
        assert result["afterwards"]
    assert len({len(result["left"]) for result in report[name]["small"]}) > 1


def test_disk_that_is_read_only_raises_before_the_first_step(report):
    result = report["never writable"]
    assert result["codes"] == [1]
    assert re.search(
        r"PermissionError: output_dir='.*out' cannot hold checkpoints: .* not writable",
        result["output"],
    )
    assert not result["trained"]


@pytest.mark.parametrize("name", ["full", "full, in the background", "full in two processes"])
def test_disk_that_becomes_read_only_ends_the_training_without_harm(report, name):
    """No process waits forever, which would fail the script. When the disk is writable again, the
    training continues to the same bits.
    """
    result = report[f"no more writable: {name}"]
    assert all(result["codes"])
    assert "PermissionError" in result["output"]
    assert result["damaged"] == []
    assert {"checkpoint-1", "checkpoint-2", "checkpoint-3"} <= set(result["left"])
    assert "checkpoint-5" not in result["left"]
    resumed = result["again"]
    assert not any(resumed["codes"]), resumed["output"]
    assert resumed["weights"]
    assert resumed["logs"]
    assert len(resumed["left"]) == 12
    assert all(left.startswith("checkpoint-") for left in resumed["left"])
