"""Processes without a launcher, one of which fails, dies or hangs; the others have to notice by
themselves.

    python fault_script.py OUTPUT_FOLDER SCENARIO...

They are forked from a process in which everything is imported, and end as any script does. Their
output goes to `OUTPUT_FOLDER/SCENARIO-rank<rank>.txt`. The last line that is printed is a JSON
object: for each scenario the exit codes, and what was left of the processes.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import torch
import torch.distributed.nn.functional

import lightrainer.facade.trainer.lightning_trainer  # noqa: F401 - imported once, for all
from helpers.ddp.fault_actions import ACTIONS
from helpers.processes.forking import free_port

SECONDS = 120
AT_A_TIME = 4  # most of the time they wait
PROCESSES = {"third_of_three": 3}
ABSENT = {"absent": (1,)}


def begin(scenario: str, folder: Path) -> dict[int, int] | None:
    """Fork the processes of a scenario: their ids by rank, or None in each of them."""
    port, count = free_port(), PROCESSES.get(scenario, 2)
    running = {}
    for rank in range(count):
        if rank in ABSENT.get(scenario, ()):
            continue
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)
            log = os.open(
                folder / f"{scenario}-rank{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND
            )
            os.dup2(log, 1)
            os.dup2(log, 2)
            environment = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "WORLD_SIZE": count,
                "RANK": rank,
            }
            os.environ.update(
                {name: str(value) for name, value in environment.items()}
                | {"LOCAL_RANK": str(rank)}
            )
            return None
        running[rank] = pid
    return running


def left_of(groups: list[int]) -> list[str]:
    """Processes of these groups: data workers, once the processes themselves have ended."""
    commands = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                commands.append(" ".join(process.cmdline())[:80])
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return commands


class Scenario:
    """One that is running."""

    def __init__(self, running: dict[int, int]):
        self.running = running
        self.codes: dict[int, int] = {}
        self.begun = time.monotonic()
        self.seconds = 0.0
        self.left: list[str] = []

    def look(self) -> bool:
        """Return whether all processes have ended, and their workers, or should have; kill what
        is left.
        """
        now = time.monotonic() - self.begun
        for rank, pid in self.running.items():
            if rank not in self.codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.codes[rank] = os.waitstatus_to_exitcode(status)
                    self.seconds = now
        if len(self.codes) < len(self.running) and now < SECONDS:
            return False
        self.left = left_of(list(self.running.values()))
        if self.left and now < min(self.seconds or SECONDS, SECONDS) + 15:
            return False
        for group in self.running.values() if self.left else []:
            os.killpg(group, signal.SIGKILL)
        return True

    def report(self) -> dict[str, object]:
        return {"codes": [self.codes.get(rank) for rank in self.running], "left": self.left}


def main(folder: Path, scenarios: list[str]) -> None:
    running: dict[str, Scenario] = {}
    reports = {}
    while scenarios or running:
        if scenarios and len(running) < AT_A_TIME:
            scenario = scenarios.pop(0)
            pids = begin(scenario, folder)
            if pids is None:
                ACTIONS[scenario](folder / scenario)
                return
            running[scenario] = Scenario(pids)
        for scenario in [name for name, state in running.items() if state.look()]:
            reports[scenario] = running.pop(scenario).report()
        time.sleep(0.01)
    print(json.dumps(reports))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2:])
