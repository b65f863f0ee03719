"""Kill sweeps at random moments, as often as you like: no value is lost, nothing is left.

python tests/faults/sweep_kills.py [--kills 50] [--seed 0] FOLDER
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.faults.killed_sweeps import kill_at_random


def main():
    """Run with both storages."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in ("study.db", "study.log"):
        began = time.monotonic()
        interrupted = kill_at_random(options.folder.resolve(), name, options.kills, options.seed)
        seconds = time.monotonic() - began
        print(
            f"{name}: {options.kills} kills of {interrupted} trials in {seconds:.0f} s, nothing "
            "lost",
            flush=True,
        )


if __name__ == "__main__":
    main()
