"""The monitor, over a store that several processes would share; here they are objects in one process."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from lightrainer.lightning_modules.checkpoints import process_token
from lightrainer.lightning_modules.distributed.health import FailureMonitor
from lightrainer.lightning_modules.distributed.health.consistency import differences
from lightrainer.lightning_modules.distributed.health.failure_monitor import FAILED, FOLLOWED, LATE
from lightrainer.lightning_modules.distributed.health.guard import find_cause


@pytest.fixture
def monitors(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    store = dist.HashStore()
    made = [FailureMonitor(store, rank, 3) for rank in range(3)]
    for monitor in made:
        monitor.read_peers()
    return made


def fields_of(pid):
    """Read the state of a process, and its other fields, from the system."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cause(monitor, **options):
    return find_cause(monitor, 1, **{"late": False, "seconds": 5, **options})


def test_a_failure_is_read_by_the_others(monitors):
    """Its cause comes before what followed from it; without it the finding of another process is used."""
    monitors[1].note(FOLLOWED, "Process 2 has ended.", 1)
    assert cause(monitors[0]) == "Process 2 has ended."
    monitors[2].note(FAILED, "ValueError: no", 1)
    host = monitors[0]._peers[2].host
    assert cause(monitors[0]) == f"Process 2 (pid {os.getpid()} on {host}) failed: ValueError: no."


def test_faults_of_other_trainings_are_ignored(monitors):
    monitors[2].note(FAILED, "before", 0)
    monitors[1].note(FAILED, "at the end of the process", -1)
    assert [fault.said for fault in monitors[0].faults(1)] == ["at the end of the process"]


def test_a_killed_process_is_found_without_a_report(monitors):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    token = process_token().rsplit("-", 2)
    start = fields_of(child.pid)[19]
    monitors[0]._peers[1] = monitors[0]._peers[1]._replace(pid=child.pid, token=f"{token[0]}-{child.pid}-{start}")
    assert monitors[0].gone() == []
    child.kill()
    child.communicate()
    assert monitors[0].gone() == [1]
    assert "has ended without a word" in cause(monitors[0])
    monitors[0]._store.set("done/1", "1")
    assert "has come to the end of its own training" in cause(monitors[0])


def test_late_processes_are_named_with_their_position(monitors, monkeypatch):
    monkeypatch.setattr("lightrainer.lightning_modules.distributed.health.guard._PATIENCE", 0.0)
    monitors[2].beat("after step 3, in load (data.py, line 7)")
    for monitor in monitors[:2]:
        monitor.note(LATE, "timed out", 1)
    said = cause(monitors[0], late=True)
    assert said.startswith("Process 2 (pid ")
    assert said.endswith("after step 3, in load (data.py, line 7).")
    monitors[2].note(LATE, "timed out", 1)
    assert "for 5 s (ddp_timeout)" in cause(monitors[0], late=True)


def test_processes_on_other_hosts_are_judged_by_heartbeats(monitors, monkeypatch):
    monkeypatch.setattr("lightrainer.lightning_modules.distributed.health.guard._PATIENCE", 0.0)
    for rank in (1, 2):
        monitors[0]._peers[rank] = monitors[0]._peers[rank]._replace(token="node2-0123456789ab-1-1", host="node2")
        monitors[rank].beat("after step 3")
    monitors[1].note(LATE, "timed out", 1)
    assert cause(monitors[0]).startswith("Process 2 (pid ")
    assert "on node2) has sent no heartbeat" in cause(monitors[0])


def test_differences_are_listed_with_their_ranks():
    facts = [{"a": "1", "b": "x"}, {"a": "2", "b": "x"}, {"a": "2", "b": "x", "c": "new"}]
    assert differences(facts) == [
        "- a: 2 in processes 1, 2, 1 in process 0",
        "- c: not there in processes 0, 1, new in process 2",
    ]


def test_a_worker_ends_with_its_parent():
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
            if fields_of(worker)[0] == "Z":
                break
        time.sleep(0.05)
    assert time.monotonic() < end
    parent.stdout.close()
