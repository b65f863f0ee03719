"""The Keras example runs unmodified, learns, and resumes from its checkpoint when restarted."""

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers.processes.starting import forked_python

# Not imported here: Keras would look for TensorFlow.
pytestmark = pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed")
EXAMPLE = Path(__file__).parents[2] / "examples" / "keras_classifier.py"


def test_keras_classifier_learns_and_resumes(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch"}
    command = [forked_python(), "-m", "lightrainer", str(EXAMPLE)]
    for trained in (True, False):
        pipes = {"capture_output": True, "text": True, "timeout": 300, "check": False}
        done = subprocess.run(command, cwd=tmp_path, env=environment, **pipes)
        assert done.returncode == 0, done.stderr
        assert float(done.stdout.splitlines()[-1].removeprefix("accuracy: ")) > 0.95
        assert ("'epoch': '1'" in done.stdout) is trained
    assert (tmp_path / "keras_output" / "model.weights.h5").exists()
