"""A window of micro-batches is one big batch, whatever of the documented API user code
overrides.
"""

import json
import os

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks

pytest.importorskip("transformers")
pytest.importorskip("peft")

from helpers.promises.user_code import KINDS, NOT_IN_PROCESSES

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")

TWO_BACKWARD_PASSES = "training_step, two backward passes"
IN_PROCESSES = [name for name in KINDS if name not in NOT_IN_PROCESSES]


@pytest.mark.parametrize("name", KINDS)
def test_window_is_one_batch(tmp_path, name):
    """Four micro-batches of two."""
    kind = KINDS[name]
    assert kind.difference(2, tmp_path) < kind.tolerance


@pytest.fixture(scope="module")
def found_by_two(tmp_path_factory):
    """Return the differences of kinds in two processes, which are started once, and the wrappers
    of their trainings.
    """
    folder = tmp_path_factory.mktemp("two")
    script = HELPERS / "promises" / "user_kinds_script.py"
    options = {"log": folder / "log.txt", "seconds": 600, "library": "transformers"}
    finished_ranks(script, str(folder), *IN_PROCESSES, **options)
    return json.loads((folder / "found.json").read_text())


@needs_fork
@pytest.mark.parametrize("name", [name for name in IN_PROCESSES if name != TWO_BACKWARD_PASSES])
def test_window_is_one_batch_in_two_processes(found_by_two, name):
    kind = KINDS[name]
    differences = found_by_two["differences"][name]
    assert {window: d for window, d in differences.items() if not d < kind.tolerance} == {}


@needs_fork
def test_second_backward_pass_through_one_forward_pass_is_not_exchanged(found_by_two):
    """torch exchanges gradients in the first one alone, as distributed.md warns: half of each
    gradient is local.
    """
    differences = found_by_two["differences"][TWO_BACKWARD_PASSES]
    assert sorted(differences) == ["batches of 2", "batches of 4"]
    assert min(differences.values()) > 0.01


@needs_fork
def test_user_code_wrappers_end_with_the_training(found_by_two):
    """Each holds a copy of all gradients."""
    wrappers = found_by_two["wrappers"]
    assert wrappers["made"] >= len(IN_PROCESSES)
    assert wrappers["left"] == 0
