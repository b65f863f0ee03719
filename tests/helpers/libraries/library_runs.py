"""Runs scripts that train with libraries: by Python itself on the reference, and unmodified on
ours.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers import HELPERS, TESTS

ASIDE = Path(sys.prefix)  # where `make test-libraries` puts other versions, in separate folders
SECONDS = 1200  # for processes that wait for each other on a busy machine
COMPARED: list[str] = []
"""Results of the comparisons so far, a line for each script."""
# Nothing is downloaded, and these trainings are reported nowhere.
SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "CI": "1",
}
SURROUNDINGS |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
TWO_PROCESSES = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d"]
TWO_PROCESSES += ["--rdzv-endpoint=localhost:0"]


@dataclass(frozen=True)
class Trained:
    """Files and output of a script."""

    folder: Path

    def kinds(self) -> list[str]:
        """The trainings of the script, by the folders of their figures; a resumed one is in
        `again`.
        """
        return sorted(
            str(path.parent.relative_to(self.folder)) for path in self.folder.rglob("figures.json")
        )

    def figures(self, kind: str) -> dict[str, Any]:
        """Whose Trainer it was, logs, metrics, norms of the weights."""
        return json.loads((self.folder / kind / "figures.json").read_text())

    def files(self, pattern: str = "*") -> set[str]:
        """Files below the folder, without caches, which have random names."""
        paths = (
            path
            for path in self.folder.rglob(pattern)
            if path.is_file() and "cache-" not in path.name
        )
        return {str(path.relative_to(self.folder)) for path in paths}


class Both(NamedTuple):
    """The same script, on the reference and on ours."""

    theirs: Trained
    ours: Trained


def execute(command: list[str], aside: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder of the scripts.

    Args:
        command: arguments of Python.
        aside: a folder of `ASIDE` with another version of a library.
    """
    folders = [TESTS] if aside is None else [ASIDE / aside, TESTS]
    surroundings = {
        **os.environ,
        **SURROUNDINGS,
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
    }
    command = [sys.executable, *command]
    options: dict[str, Any] = {
        "cwd": HELPERS / "libraries",
        "env": surroundings,
        "timeout": SECONDS,
    }
    return subprocess.run(
        command, **options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def train_both(
    folder: Path, runners: Both, script: str, *arguments: str, aside: str | None = None
) -> Both:
    """Run a script on the reference and on ours, at the same time; both have to come to their
    end.
    """
    with ThreadPoolExecutor(2) as threads:
        sides = zip(Both._fields, runners, strict=True)
        runs = [
            threads.submit(_train, folder / side, runner, script, *arguments, aside=aside)
            for side, runner in sides
        ]
    return Both(*(run.result() for run in runs))


def _train(
    folder: Path, runner: list[str], script: str, *arguments: str, aside: str | None
) -> Trained:
    folder.mkdir()
    done = execute([*runner, f"{script}.py", str(folder), *arguments], aside)
    if done.returncode:
        pytest.fail(
            f"{' '.join(runner)} {script}.py ended with status "
            f"{done.returncode}:\n{done.stdout[-6000:]}"
        )
    return Trained(folder)
