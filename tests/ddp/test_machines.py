"""Machines without a shared disk resume from a checkpoint that all of them have."""

import json
import re

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks

SCRIPT = HELPERS / "ddp" / "machines_script.py"


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("machines")
    finished_ranks(SCRIPT, str(folder), log=folder / "log.txt", seconds=180)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_machines_resume_from_the_newest_checkpoint_that_is_intact_on_all(machines):
    """The third one is damaged on the second machine."""
    assert [machine["steps"] for machine in machines] == [[2, 3], [2, 3]]


def test_machine_without_a_checkpoint_is_named_with_the_one_that_has_the_newest(machines):
    first, second = (machine["error"] for machine in machines)
    assert first == second.replace("machine1", "machine0")
    assert re.search(r"differs between the machines: the newest checkpoint is checkpoint-4", first)
