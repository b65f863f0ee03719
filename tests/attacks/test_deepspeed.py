"""DeepSpeed unpickles its states in full: they are looked through before, and fit before a step is made with them.

`elsewhere` is what was written in stage 2 and is read in stage 3: DeepSpeed does not read it then.
"""

import json
import sys
from pathlib import Path

import pytest
from starting import finished_ranks

SCRIPT = Path(__file__).with_name("deepspeed_attack_script.py")
BESIDE = Path(sys.prefix) / "deepspeed"
"""Where the Makefile installs it: transformers and accelerate would import it in every process that has it."""

pytestmark = pytest.mark.skipif(not BESIDE.is_dir(), reason="deepspeed is not there: `make test` puts it aside")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepspeed")
    options = {"log": folder / "log.txt", "seconds": 300, "processes": 0, "library": "lightrainer and deepspeed"}
    finished_ranks(SCRIPT, str(folder), **options, BESIDE=str(BESIDE))
    return json.loads((folder / "found.json").read_text())


MODELS = [f"model states {where}" for where in (0, 2, 3, "elsewhere")]
OPTIMIZERS = [f"optimizer states {where}" for where in (2, "elsewhere")]


@pytest.mark.parametrize("attack", [*MODELS, *OPTIMIZERS])
def test_states_run_no_program(found, attack):
    assert "states.pt refers to posix.mkdir, which could run any program" in found[attack]["said"]
    assert not found[attack]["ran"]


def test_a_bare_pickle_is_not_read(found):
    assert "or not a file of torch, and is not read" in found["bare pickle 2"]["said"]
    assert not found["bare pickle 2"]["ran"]


def test_the_newest_states_lie_in_the_checkpoint(found):
    assert "latest names '../other', which is no folder of DeepSpeed's states" in found["elsewhere 2"]["said"]
    assert not found["elsewhere 2"]["ran"]


@pytest.mark.parametrize("stage", [0, 2, 3, "elsewhere"])
def test_states_of_one_element_are_not_stepped_with(found, stage):
    said = found[f"small {stage}"]["said"]
    assert "holds a tensor of shape (1,) and float32 as exp_avg of a parameter" in said


@pytest.mark.parametrize("stage", [0, 2, 3, "elsewhere"])
def test_genuine_states_are_gone_on_with(found, stage):
    """Negative control."""
    assert found[f"none {stage}"]["said"] == "went on to 4"


def test_the_program_would_run(found):
    """Negative control: read as DeepSpeed reads it."""
    assert found["control"]
