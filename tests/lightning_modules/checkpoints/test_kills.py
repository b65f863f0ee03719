"""A process killed before any change of the disk leaves only whole checkpoints; tests/faults kill at any moment."""

import json
import os
from pathlib import Path

import pytest
from starting import finished_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the writers are forked")


def _run(tmp_path: Path, swap: str) -> dict:
    script = Path(__file__).with_name("kill_writer.py")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    said = finished_ranks(script, str(folder), swap, log=tmp_path / "log.txt", seconds=240, processes=0)
    return json.loads(said.splitlines()[-1])


@pytest.fixture(params=["exchange", "renames"])
def swap(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "exchange":
        from lightrainer.lightning_modules.checkpoints import disk

        first, second = tmp_path / "a", tmp_path / "b"
        first.mkdir()
        second.mkdir()
        if not disk.exchange(first, second):
            pytest.skip("folders cannot change places on this file system")
    return request.param


def test_kill_before_every_change_to_the_file_system_leaves_whole_checkpoints(tmp_path: Path, swap: str):
    report = _run(tmp_path, swap)
    assert report["broken"] == []
    # Controls: kills did happen in the middle, and in both orders of events old and new versions were found.
    assert report["killed"] > 25
    assert report["leftovers"] > 15
    assert set(report["versions"]) == {"1", "2"}
    assert (report["gaps"] > 0) == (swap == "renames")


def test_the_same_kills_find_half_checkpoints_when_they_are_written_in_place(tmp_path: Path):
    """Negative control."""
    report = _run(tmp_path, "in-place")
    assert any("trainer_state.json is missing" in problem for problem in report["broken"])
