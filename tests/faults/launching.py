"""Starts the scripts beside this file, each in a process of its own, which can fork others as
nobody else is in it.
"""

import json
import os
from pathlib import Path
from typing import Any

from starting import finished_ranks

HERE = Path(__file__).parent
SECONDS = 1800


def report_of(script: str, folder: Path, *options: object) -> dict[str, Any]:
    """The JSON object that a script prints last."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [str(folder), *map(str, options)]
    known = {"log": folder / "script.txt", "seconds": SECONDS, "processes": 0}
    paths = os.pathsep.join(map(str, [HERE, HERE.parent / "facade", HERE.parent / "shared"]))
    return json.loads(
        finished_ranks(HERE / script, *words, **known, PYTHONPATH=paths).splitlines()[-1]
    )
