"""Targets of the Makefile that install packages are brought up to date when the versions in the
Makefile change.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAMPS = (".newest", ".trl-1.9", ".comet", ".deepspeed", ".others", ".tf")
BELOW = (".torch", ".test", ".libraries")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def planned(environment: Path, stamp: str, *options: str) -> str:
    """Return what make would do for a stamp, without doing it."""
    command = ["make", "--dry-run", *options, f"VENV={environment}", f"{environment}/{stamp}"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("stamp", STAMPS)
def test_stamp_of_pinned_packages_is_renewed_when_the_makefile_changes(tmp_path, stamp):
    for name in (*BELOW, stamp):
        (tmp_path / name).touch()
    assert "up to date" in planned(tmp_path, stamp), "negative control: nothing has changed"
    assert "installing" in planned(tmp_path, stamp, "--what-if=Makefile")
