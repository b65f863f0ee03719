"""Starts the scripts beside this file, each in a separate process, which can fork others because
nothing else runs in it.
"""

import json
from pathlib import Path
from typing import Any

from helpers import HELPERS
from helpers.processes.starting import finished_ranks

SECONDS = 1800


def report_of(script: str, folder: Path, *options: object) -> dict[str, Any]:
    """The JSON object that a script prints last."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [str(folder), *map(str, options)]
    settings = {"log": folder / "script.txt", "seconds": SECONDS, "processes": 0}
    output = finished_ranks(HELPERS / "faults" / script, *words, **settings)
    return json.loads(output.splitlines()[-1])
