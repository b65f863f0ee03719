"""Arguments have the reference's effects in two ranks; four ranks train as one with the same
batches.
"""

import json
import os

import pytest
from safetensors.torch import load_file

from helpers import HELPERS
from helpers.processes.starting import finished_ranks

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")

OF_PLACE = [("of_place", 2), ("of_place", 1)]  # on one machine, and on two with a disk each


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("semantics")
    script = HELPERS / "ddp" / "semantics_script.py"
    options = {"processes": 0, "library": "transformers"}
    finished_ranks(script, str(folder), log=folder / "script.txt", seconds=240, **options)
    return folder


@pytest.fixture(scope="module")
def both(folder):
    """Read what the two ranks of a library saw, in the order in which tests ask: the
    reference's, and ours.
    """

    def read(what, local=2):
        places = [
            (folder / f"{what} {name} {local}", name) for name in ("transformers", "lightrainer")
        ]
        files = [
            [place / f"{what} {local} {name}-rank{rank}.json" for rank in (0, 1)]
            for place, name in places
        ]
        return [[json.loads(file.read_text()) for file in ranks] for ranks in files]

    return read


def assert_same_training(expected, actual):
    assert actual["seen"] == expected["seen"]
    assert actual["losses"] == pytest.approx(expected["losses"], rel=1e-5, abs=1e-6)
    assert actual["weights"] == pytest.approx(expected["weights"], rel=1e-5, abs=1e-6)
    assert actual["printed"] == expected["printed"]


def test_streams_are_dealt_out_as_in_the_reference(both):
    """Files of `datasets` and a stream of torch that shares itself out; read by workers or not,
    dispatched or not.
    """
    reference, ours = both("streams")
    assert len(reference[0]) == 8
    for expected, actual in zip(reference, ours, strict=True):
        for name, training in expected.items():
            assert_same_training(training, actual[name])


@pytest.mark.parametrize(
    "name", ["unused", "by default", "buffers", "own buffers", "pretrained", "checkpointed"]
)
def test_ddp_equals_the_reference(both, name):
    """With the same options, to the same weights."""
    for expected, actual in zip(*both("of_ddp"), strict=True):
        assert_same_training(expected[name], actual[name])
        assert actual[name]["wrapped"] == expected[name]["wrapped"]
        assert actual["unused"]["wrapped"]["bucket_bytes_cap"] == 3 * 2**20


@pytest.mark.parametrize(("what", "local"), OF_PLACE)
def test_who_logs_and_saves_and_how_loud(both, what, local):
    """For every combination of log_on_each_node and save_on_each_node, with three pairs of log
    levels.
    """
    for rank, (expected, actual) in enumerate(zip(*both(what, local), strict=True)):
        for name in ("levels", "each", "backend"):
            assert actual[name] == expected[name]
        assert len(set(actual["levels"])) > 1
        assert actual["timeout"] == 55, "in the process group; the reference forgets it on a CPU"
        for saving in ("saving True", "saving False"):
            assert_same_training(expected[saving], actual[saving])
            assert actual[saving]["printed"] == (4 if rank == 0 or local == 1 else 0)


@pytest.mark.parametrize(("what", "local"), OF_PLACE)
def test_saved_files_on_each_machine_equal_the_reference(folder, both, what, local):
    """Also if each machine has a separate disk: on all of them, or on the first one, with the
    states of all processes.
    """
    for rank, (expected, actual) in enumerate(zip(*both(what, local), strict=True)):
        for name in ("files True", "files False"):
            assert [file for file in actual[name] if "manifest" not in file] == expected[name]
            assert bool(actual[name]) == (name == "files True" or rank == 0 or local == 2)
    if local == 1:
        places = [folder / "of_place lightrainer 1" / f"saved False by {rank}" for rank in (0, 1)]
        assert (places[0] / "lightrainer" / "checkpoint-4" / "rng_state_1.pth").is_file()
        assert not (places[1] / "lightrainer" / "checkpoint-4").exists()


@pytest.fixture(scope="module")
def four(folder):
    return [json.loads((folder / "4" / f"rank{rank}.json").read_text()) for rank in range(4)]


@pytest.fixture(scope="module")
def alone(folder):
    return json.loads((folder / "1" / "rank0.json").read_text())


def test_four_processes_train_as_one_does(four, alone):
    """With accumulation and a shorter last window, clipping, a schedule, and losses over the
    tokens of all ranks.
    """
    names = ("loss", "grad_norm", "learning_rate", "epoch", "step", "eval_loss", "eval_seen")
    expected = [{key: entry[key] for key in names if key in entry} for entry in alone["history"]]
    assert max(entry.get("grad_norm", 0) for entry in expected) > 0.1, "clipping is at work"
    assert len([entry for entry in expected if "loss" in entry]) == 8
    for rank in four:
        actual = [{key: entry[key] for key in names if key in entry} for entry in rank["history"]]
        assert [entry.keys() for entry in actual] == [entry.keys() for entry in expected]
        for left, right in zip(expected, actual, strict=True):
            assert right == pytest.approx(left, rel=0, abs=1e-5)
        for name, values in alone["weights"].items():
            assert rank["weights"][name] == pytest.approx(values, rel=0, abs=1e-5)


def test_best_model_is_loaded_on_all_ranks_and_saved_whole(folder, four):
    """The best one is that of step 4, by its metric, and not the last one."""
    weights, best, last = (
        {
            name: tensor.flatten().tolist()
            for name, tensor in load_file(folder / "4" / at / "model.safetensors").items()
        }
        for at in ("model", "lightrainer/checkpoint-4", "lightrainer/checkpoint-8")
    )
    assert weights == best != last
    for rank in four:
        assert rank["best"] == "checkpoint-4"
        assert rank["weights"] == weights


def test_callbacks_hear_the_same_in_every_process(four, alone):
    events = alone["events"]
    assert {"substep_end", "step_end", "evaluate", "save", "log"} <= set(events)
    for rank in four:
        assert rank["events"] == events
