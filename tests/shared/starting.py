"""Programs that tests start: each comes to its end, or is ended with all that it started, and what it said is read."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def torchrun(script: str | Path, *words: str, processes: int = 2, options: tuple[str, ...] = ()) -> list[str]:
    """The command that starts so many processes of a script, on a port of its own."""
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--rdzv-backend=c10d"]
    return [*launcher, "--rdzv-endpoint=localhost:0", *options, str(script), *words]


def start(command: list[str], log: Path, **environment: str) -> subprocess.Popen:
    """Start it; what all of it says goes to a file: one that hangs would keep a pipe open, and hang its reader too."""
    with log.open("a") as stream:
        known = {**os.environ, **ENVIRONMENT, **environment}
        return subprocess.Popen(command, env=known, stdout=stream, stderr=subprocess.STDOUT)


def code_of(process: subprocess.Popen, log: Path, seconds: float) -> int:
    """The exit code; a failure, and no process left, where there is none after so many seconds."""
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill(process.pid)
        process.wait()
        pytest.fail(f"{' '.join(map(str, process.args))}\nwas not done after {seconds} s\n{said_in(log)[-6000:]}")


def run(command: list[str], log: Path, seconds: float, **environment: str) -> tuple[int, str]:
    """The exit code, and what was said."""
    code = code_of(start(command, log, **environment), log, seconds)
    return code, said_in(log)


def finished(command: list[str], log: Path, seconds: float, **environment: str) -> str:
    """What was said by one that ends well."""
    code, said = run(command, log, seconds, **environment)
    assert code == 0, f"{' '.join(map(str, command))}\nended with {code}\n{said[-8000:]}"
    return said


def kill(pid: int) -> None:
    """Kill a process and all that it started: the ranks are in sessions of their own."""
    for member in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


def said_in(log: Path) -> str:
    return log.read_text(errors="replace")
