"""Worker processes end with the process that they work for."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing, os, sys, time
from lightrainer.lightning_modules.common.worker_processes import exit_with_parent


def work():
    exit_with_parent()
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(600)


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for _ in range(2):
        context.Process(target=work).start()
    time.sleep(600)
"""


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_workers_end_with_their_parent(tmp_path, start_method):
    """Killed, so that nothing of it could tell them."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    parent = subprocess.Popen(
        [sys.executable, str(script), start_method], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    assert all(map(is_running, workers))
    parent.kill()
    parent.wait()
    end = time.monotonic() + 60
    while any(map(is_running, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    assert time.monotonic() < end
    parent.stdout.close()


def is_running(pid):
    """Read the state of a process from the system: Z for one that has ended."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
