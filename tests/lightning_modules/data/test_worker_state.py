"""Data workers end with the process that they read for."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path


def test_worker_ends_with_its_parent():
    """Killed, so that nothing of it could tell the worker."""
    program = (
        "import os, sys, time\n"
        "from lightrainer.lightning_modules.data.worker_state import end_with_parent\n"
        "if os.fork() == 0:\n"
        "    end_with_parent()\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(600)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert os.path.exists(f"/proc/{worker}")
    parent.kill()
    parent.wait()
    end = time.monotonic() + 60
    while os.path.exists(f"/proc/{worker}") and time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):
            if state_of(worker) == "Z":
                break
        time.sleep(0.05)
    assert time.monotonic() < end
    parent.stdout.close()


def state_of(pid):
    """Read the state of a process from the system: Z for one that has ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
