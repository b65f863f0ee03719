"""Trainings resume with other world sizes, and see the same samples in each step."""

import json
import os

import pytest
import torch

from helpers import HELPERS
from helpers.ddp.elastic_script import CHAIN, RESUMED, SAMPLES
from helpers.processes.starting import finished_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the trainings are forked")
KEPT = [(name, number) for name, cases in RESUMED.items() for number in range(len(cases))]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    script, folder = (
        HELPERS / "ddp" / "elastic_script.py",
        tmp_path_factory.mktemp("elastic"),
    )
    output = finished_ranks(
        script, str(folder), log=folder / "script.txt", seconds=600, processes=0
    )
    return json.loads(output.splitlines()[-1])


def close(left, right):
    """The same but for the order in which numbers are added up."""
    assert left.keys() == right.keys()
    for name, values in left.items():
        torch.testing.assert_close(
            torch.tensor(values), torch.tensor(right[name]), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    ("name", "number"), KEPT, ids=[f"{name}, {RESUMED[name][number][:2]}" for name, number in KEPT]
)
def test_elastic_steps_take_the_same_samples(report, name, number):
    """Whatever number of processes, batch and accumulation that is; losses and weights are those
    of the whole.
    """
    whole, resumed = report[name]["whole"], report[name]["resumed"][number]
    step = RESUMED[name][number][1]
    epoch = [index for key in map(str, range(1, 7)) for index in whole["steps"][key]]
    assert sorted(epoch) == list(range(SAMPLES))
    assert resumed["steps"] == {
        key: value for key, value in whole["steps"].items() if int(key) > step
    }
    assert resumed["global_step"] == whole["global_step"]
    close(resumed["weights"], whole["weights"])
    torch.testing.assert_close(
        torch.tensor(resumed["losses"]), torch.tensor(whole["losses"]), rtol=1e-5, atol=1e-6
    )


def test_elastic_resumption_reports_changes_once_and_undoes_them(report):
    """The arguments stay the user's."""
    changes = {"shuffled": "gradient_accumulation_steps=1 instead of 2", "by tokens": ""}
    changes["one batch a step"] = "per_device_train_batch_size=2 instead of 4"
    for name, change in changes.items():
        resumed = report[name]["resumed"][1]
        step_size = "4 batches" if name == "by tokens" else "8 samples"
        (warned,) = resumed["warned"]
        assert "world_size=4 instead of 2" in warned
        assert change in warned
        assert f"a step still takes {step_size}, in the same order" in warned
        assert resumed["given"] == report[name]["whole"]["given"]


def test_elastic_sums_of_halves_are_exact(report):
    """The mean of two processes is that of two micro-batches."""
    result = report["one batch a step"]
    assert result["resumed"][0]["weights"] == result["whole"]["weights"]


@pytest.mark.parametrize(
    ("number", "again"), [(0, False), (1, True)], ids=["three processes", "another batch"]
)
def test_elastic_resumption_reports_a_batch_that_cannot_be_kept(report, number, again):
    """No sample of the epoch is left out, and none seen twice but those that are named."""
    whole, resumed = report["shuffled"]["whole"], report["other steps"]["resumed"][number]
    (warned,) = resumed["warned"]
    assert ("32" if again else "world_size=3 instead of 2") in warned
    assert "24 of this epoch are seen" in warned
    assert ("the last 24 of which are seen again" in warned) == again
    first, epoch = (
        resumed["steps"]["4"],
        [index for key in "123456" for index in whole["steps"][key]],
    )
    assert first == epoch[0 if again else 24 :][: len(first)]


def test_elastic_training_may_change_processes_repeatedly(report):
    """From two processes to one, to four, and back, with the same arguments all the time: the
    global batch stays.
    """
    parts, whole = report["chain"], report["shuffled"]["whole"]
    assert [len(part["steps"]) for part in parts] == [3, 2, 3, 4]
    assert {key: value for part in parts for key, value in part["steps"].items()} == whole["steps"]
    close(parts[-1]["weights"], whole["weights"])
    assert len(CHAIN) == len(parts)
