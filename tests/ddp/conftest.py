"""Runs the training script in two processes under `torchrun`, once for each library and scenario."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

HERE = Path(__file__).parent
# The tests read the tables of cases in the scripts, one of which forks its processes as those of the faults do.
sys.path[:0] = [str(HERE), str(HERE.parent / "faults")]

SCRIPT = Path(__file__).with_name("train_script.py")
OTHER_SCRIPTS = dict.fromkeys(("seq2seq", "seq2seq_sharded"), SCRIPT.with_name("seq2seq_script.py"))  # by scenario
OTHER_SCRIPTS["dealing"] = SCRIPT.with_name("dealing_script.py")
OTHER_SCRIPTS["folders"] = SCRIPT.with_name("folder_script.py")
OTHER_SCRIPTS["modules"] = SCRIPT.with_name("module_script.py")
OTHER_SCRIPTS["estimates"] = SCRIPT.with_name("estimate_script.py")
PROCESSES = {"evaluation1": 1, "evaluation3": 3, "evaluation4": 4}  # two in all other scenarios
OTHER_SCRIPTS |= dict.fromkeys(("evaluation2", *PROCESSES), SCRIPT.with_name("evaluation_script.py"))
SECONDS = 240  # a run takes ten to forty; one rank that waits for the other for ever is caught here


@dataclass(frozen=True)
class TwoRanks:
    """What the ranks of one run wrote, two nearly always, and where."""

    folder: Path
    ranks: list[dict[str, Any]]


def torchrun(library: str, scenario: str, folder: Path) -> TwoRanks:
    """Start two processes with gloo between them; fail with their output, also when they hang."""
    processes = PROCESSES.get(scenario, 2)
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", str(OTHER_SCRIPTS.get(scenario, SCRIPT)), library, scenario, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PL_GLOBAL_SEED"] = "5"  # `lightning.seed_everything` leaves it; no training is to be seeded by it
    if scenario in ("folders", "modules"):  # but for those under Lightning alone
        del environment["PL_GLOBAL_SEED"]
    # A file, not a pipe: a rank that hangs would keep a pipe open, and reading it would hang as well.
    log = folder / f"{scenario}.log"
    with log.open("w") as stream:
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT)
        try:
            process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            end(process.pid)
            late = f"{library}, {scenario}: {processes} ranks were not done after {SECONDS} s"
            pytest.fail(f"{late}\n{log.read_text()[-4000:]}")
    if process.returncode != 0:
        pytest.fail(f"{library}, {scenario}: exit code {process.returncode}\n{log.read_text()[-6000:]}")
    ranks = [json.loads((folder / f"{scenario}-rank{rank}.json").read_text()) for rank in range(processes)]
    return TwoRanks(folder, ranks)


def end(pid: int) -> None:
    """Kill a process and all that it started: the ranks are in sessions of their own."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], TwoRanks]:
    """`two_ranks(library, scenario)`; each run is made once and shared by the tests."""
    folders: dict[str, Path] = {}
    runs: dict[tuple[str, str], TwoRanks] = {}

    def get(library: str, scenario: str) -> TwoRanks:
        if library not in folders:
            folders[library] = tmp_path_factory.mktemp(library)
        if (library, scenario) not in runs:
            runs[library, scenario] = torchrun(library, scenario, folders[library])
        return runs[library, scenario]

    return get
