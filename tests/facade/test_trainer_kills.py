"""A training that is killed again and again ends as one that never was. Real SIGKILLs of real trainings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the trainings are forked")
def test_a_killed_training_goes_on_to_the_same_bits(tmp_path):
    """Killed while it saves, at every kind of moment; a script that resumes from `True` loses nothing, dropout on."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kill_trainer.py")), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["killed"], "the weights differ from those of the uninterrupted run"
    assert report["history"], "the logs differ from those of the uninterrupted run"
    # A kill between the last save and its rotation leaves one more, which the next save would have removed.
    assert {"checkpoint-10", "checkpoint-11", "checkpoint-12"} <= set(report["left"])
    assert len(report["left"]) <= 4
    # Controls: it was killed often, also in the middle of a save, and the generators' state is what makes the bits.
    assert report["kills"] >= 8
    assert report["hidden"] >= 4
    assert len(set(report["begins"])) >= 5
    assert not report["forgetful"]
