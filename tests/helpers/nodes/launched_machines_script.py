"""Run a command on each of several isolated machines: python launched_machines_script.py FOLDER LISTS
OF WORDS AS JSON.
"""

import functools
import json
import os
import sys
from pathlib import Path

from helpers.nodes.machines import Machines

SECONDS = 400


def main(folder: Path, commands: list[list[str]]) -> None:
    """Exit with the output of all machines where one of them fails."""
    machines = Machines(folder, len(commands), isolated=True)
    for number, words in enumerate(commands):
        machines.start(
            number, functools.partial(os.execv, sys.executable, [sys.executable, *words])
        )
    if any(machines.wait(seconds=SECONDS)):
        sys.exit(machines.said())


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
