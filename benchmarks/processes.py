"""Whole processes: what they take of the processor and of the clock on the wall."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COMPILED = Path("build", "bench", "compiled").absolute()
"""Compiled modules, of later runs too: as they are where a package was installed by pip."""


@dataclass(frozen=True)
class Spent:
    """Seconds of the processor, of children too, and by the clock on the wall."""

    processor: float
    wall: float


def environment() -> dict[str, str]:
    """Return an environment with one thread, no network, compiled modules."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**kept, **settings, "PYTHONPYCACHEPREFIX": str(COMPILED)}


def spent_by(words: Sequence[object]) -> Spent:
    """Run Python with these words to its good end, in a folder of its own; what it says is only
    shown if it fails.
    """
    command = [sys.executable, "-W", "ignore", *map(str, words)]
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "said.txt", "w+b") as output:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=output, stderr=output
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(
                f"{command} ended with {process.returncode}:\n{output.read().decode()}"
            )
    return Spent(usage.ru_utime + usage.ru_stime, wall)
