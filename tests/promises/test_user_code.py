"""A window of micro-batches is one big batch, whatever of the documented API user code overrides."""

import json
import os
from pathlib import Path

import pytest
from starting import finished_ranks

pytest.importorskip("transformers")
pytest.importorskip("peft")

from user_code import KINDS

pytestmark = pytest.mark.filterwarnings("default")

NOT_EXCHANGED = "training_step, two backward passes"
"""`DistributedDataParallel` exchanges gradients in the first backward pass after a forward pass only."""


@pytest.mark.parametrize("name", KINDS)
def test_window_is_one_batch(tmp_path, name):
    """Four micro-batches of two."""
    kind = KINDS[name]
    assert kind.difference(2, tmp_path) < kind.tolerance


@pytest.fixture(scope="module")
def differences_of_two(tmp_path_factory):
    """Return the differences of all kinds in two processes, which are started once."""
    folder = tmp_path_factory.mktemp("two")
    script = Path(__file__).with_name("user_kinds_script.py")
    finished_ranks(script, str(folder), *KINDS, log=folder / "log.txt", seconds=600)
    return json.loads((folder / "differences.json").read_text())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")
@pytest.mark.parametrize("name", KINDS)
def test_window_is_one_batch_in_two_processes(differences_of_two, name):
    if name == NOT_EXCHANGED:
        pytest.xfail("the gradients of a second backward pass stay in their process")
    kind = KINDS[name]
    assert {window: d for window, d in differences_of_two[name].items() if not d < kind.tolerance} == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")
def test_no_wrapper_outlives_its_training(differences_of_two):
    """Each holds a copy of all gradients."""
    assert differences_of_two["wrappers left"] == 0
