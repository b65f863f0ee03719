"""Runs scripts that train with libraries: by Python itself on the reference, and unmodified on ours."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SECONDS = 300
# Nothing is downloaded, and nobody is told that these trainings take place.
SURROUNDINGS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "CI": "1"}
SURROUNDINGS |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
TWO_PROCESSES = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d"]
TWO_PROCESSES += ["--rdzv-endpoint=localhost:0"]


@dataclass(frozen=True)
class Trained:
    """What a script left behind."""

    folder: Path

    def kinds(self) -> list[str]:
        """The trainings of the script, by the folders of their figures; a resumed one is in `again`."""
        return sorted(str(path.parent.relative_to(self.folder)) for path in self.folder.rglob("figures.json"))

    def figures(self, kind: str) -> dict[str, Any]:
        """Whose Trainer it was, logs, metrics, norms of the weights."""
        return json.loads((self.folder / kind / "figures.json").read_text())

    def files(self, pattern: str = "*") -> set[str]:
        """Files below the folder, without caches that are named by chance."""
        found = (path for path in self.folder.rglob(pattern) if path.is_file() and "cache-" not in path.name)
        return {str(path.relative_to(self.folder)) for path in found}


def execute(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder of the scripts."""
    surroundings = {**os.environ, **SURROUNDINGS}
    command = [sys.executable, *command]
    given: dict[str, Any] = {"cwd": HERE, "env": surroundings, "timeout": SECONDS}
    return subprocess.run(command, **given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def trained(folder: Path, runner: list[str], script: str, *arguments: str) -> Trained:
    """Run a script that has to come to its end."""
    folder.mkdir()
    done = execute([*runner, f"{script}.py", str(folder), *arguments])
    if done.returncode:
        pytest.fail(f"{' '.join(runner)} {script}.py ended with status {done.returncode}:\n{done.stdout[-6000:]}")
    return Trained(folder)
