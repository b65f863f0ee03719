"""Starts the scripts beside this file, each in a process of its own, which can fork others as nobody else is in it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SECONDS = 1800


def report_of(script: str, folder: Path, *options: object) -> dict[str, Any]:
    """The JSON object that a script prints last."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join(map(str, [HERE, HERE.parent / "facade", HERE.parent / "shared"]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
    command = [sys.executable, str(HERE / script), str(folder), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])
