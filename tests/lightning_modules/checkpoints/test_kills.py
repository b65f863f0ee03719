"""A process killed before any change of the disk leaves only whole checkpoints; tests/faults
kill at any moment.
"""

import json
import os
from pathlib import Path

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the writers are forked")


def _run(tmp_path: Path, way: str) -> dict:
    script = HELPERS / "checkpoints" / "killed_writers_script.py"
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    output = finished_ranks(
        script, str(folder), way, log=tmp_path / "log.txt", seconds=240, processes=0
    )
    return json.loads(output.splitlines()[-1])


def test_kill_before_every_change_to_the_file_system_leaves_whole_checkpoints(tmp_path: Path):
    report = _run(tmp_path, "staged")
    assert report["broken"] == []
    # Controls: kills did happen in the middle, and in both orders of events old and new versions
    # were found.
    assert report["killed"] > 25
    assert report["leftovers"] > 15
    assert set(report["versions"]) == {"1", "2"}
    assert report["gaps"] > 0


def test_kills_find_half_checkpoints_when_written_in_place(tmp_path: Path):
    """Negative control."""
    report = _run(tmp_path, "in-place")
    assert any("trainer_state.json is missing" in problem for problem in report["broken"])
