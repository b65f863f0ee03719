"""User code in two processes gets the model that synchronizes: any order of passes trains as one
process does.
"""

import json
import os

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")

STEPS = ("plain", "by_accelerator", "twice", "without_sync", "cached", "by_attribute")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Run the script once; return a reader of what the ranks of a library saw."""
    folder = tmp_path_factory.mktemp("user_code")
    script = HELPERS / "ddp" / "user_code_script.py"
    finished_ranks(
        script,
        str(folder),
        log=folder / "script.txt",
        seconds=240,
        processes=0,
        library="transformers",
    )

    def read(library, processes=2):
        files = [folder / f"{library}-{processes}-rank{rank}.json" for rank in range(processes)]
        return [json.loads(file.read_text()) for file in files]

    return read


def assert_close(actual, expected):
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        assert actual[name] == pytest.approx(values, rel=0, abs=1e-6)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_own_step_trains_as_one_process_with_the_whole_batch(seen, step, accumulation):
    """Both ranks end with the same bits, which are those of transformers, and with the weights
    of one process.
    """
    case = f"{step} {accumulation}"
    first, second = (rank[case] for rank in seen("lightrainer"))
    alone = seen("lightrainer", 1)[0][case]
    assert first["weights"] == second["weights"]
    assert_close(first["weights"], alone["weights"])
    for rank, reference in zip((first, second), seen("transformers"), strict=True):
        assert rank["weights"] == reference[case]["weights"]
        assert rank["history"] == reference[case]["history"]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_own_step_around_the_wrapper_trains_as_one_process(seen, accumulation):
    """The control is transformers: without the wrapper its ranks end with different weights."""
    case = f"around_the_wrapper {accumulation}"
    first, second = (rank[case]["weights"] for rank in seen("lightrainer"))
    assert first == second
    assert_close(first, seen("lightrainer", 1)[0][case]["weights"])
    reference = [rank[case]["weights"] for rank in seen("transformers")]
    assert reference[0] != reference[1]


def test_user_code_receives_the_same_model_as_in_transformers(seen):
    """The wrapped model where gradients are made, the user's own in evaluations and callbacks."""
    ours, reference = (
        seen(library)[0]["handed over"] for library in ("lightrainer", "transformers")
    )
    assert ours == reference
    assert ours["training_step"] == "DistributedDataParallel"
    assert ours["trainer.model in on_step_end"] == "Regression"
    assert ours["prediction_step, is_in_train True"] == "Regression"
