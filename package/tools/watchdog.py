"""Run a script for a command, and kill all its processes when the command ends.

    watchdog.py PIPE SCRATCH COMMAND...

The command holds the other end of the pipe. However it dies, the pipe closes, and the watchdog
kills all processes of the script, and removes the folder SCRATCH, unless that is an empty word.
SIGTERM is forwarded, so that the script can save a checkpoint; processes that are still running a
minute later are killed. The watchdog exits with the status of the script, or with 128 plus the
number of the signal that killed it.

On Linux the watchdog is a subreaper: orphaned processes become its children, even those in other
sessions such as the workers of torchrun, and /proc lists them. On other systems it only reaches the
process group of the script. Only the standard library is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_SECONDS_TO_SAVE = 60.0
"""Time for the script to write its checkpoint after a signal to stop."""
_POLL_SECONDS = 0.1
"""Interval between two checks of the script's processes."""
# Options of Linux's `prctl`.
_SET_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_KILLED_STATUS = 128 + signal.SIGKILL


def main(pipe: int, scratch: str, command: Sequence[str]) -> int:
    """Run a script until it exits or the pipe closes, and return its exit status.

    Args:
        pipe: the file descriptor of a pipe that the caller holds open.
        scratch: the folder to remove if the pipe closes, because a killed caller cannot; or "".
        command: the words that start the script. It inherits the standard input, unless that is
            the pipe.
    """
    _prctl(_SET_CHILD_SUBREAPER, 1)
    stop_requested = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: stop_requested.set())
    try:
        script = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if pipe == 0 else None,
            start_new_session=True,
            # Safe because this process has only one thread.
            preexec_fn=lambda: _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL),
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
        return 127
    return _wait(script.pid, pipe, scratch, stop_requested)


def _wait(script: int, pipe: int, scratch: str, stop_requested: threading.Event) -> int:
    """Wait for the script, and return its exit status.

    After a signal to stop, also wait for all processes that the script started.

    Args:
        script: the id of the script's process, which leads its process group.
        pipe: the file descriptor that becomes readable when the command has ended.
        scratch: the folder to remove in that case, or "".
        stop_requested: set when this process receives a signal to stop.
    """
    status: int | None = None
    kill_at = math.inf
    signalled: set[int] = set()
    while True:
        # Nothing is written to the pipe, so it becomes readable only when it is closed.
        closed, _, _ = select.select([pipe], [], [], _POLL_SECONDS)
        if closed or time.monotonic() > kill_at:
            _kill_all(script)
            if closed and scratch:
                shutil.rmtree(scratch, ignore_errors=True)
            return _KILLED_STATUS if status is None else status

        script_status, has_children = _reap(script)
        if status is None:
            status = script_status
        if stop_requested.is_set():
            kill_at = min(kill_at, time.monotonic() + _SECONDS_TO_SAVE)
            if has_children:
                _request_stop(script, signalled)
                continue

        if status is not None:
            # A retry must not run while processes of the failed attempt are still running.
            if status != 0:
                _kill_all(script)
            return status


def _request_stop(script: int, signalled: set[int]) -> None:
    """Send SIGTERM to the processes of the script that have not received it yet.

    Args:
        script: the id of the script's process.
        signalled: the ids of the processes that have received it; new ones are added.
    """
    children = _children()
    if not children:
        # Without /proc, only the process group is known.
        if script not in signalled:
            signalled.add(script)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(script, signal.SIGTERM)
        return

    # The children of a launcher that has exited are children of this process by now.
    for pid in set(children) - signalled:
        signalled.add(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _reap(script: int) -> tuple[int | None, bool]:
    """Collect the exit statuses of children.

    Args:
        script: the id of the script's process.

    Returns:
        the exit status of the script, or None if it has not exited since the last call; and whether
        this process still has children.
    """
    script_status = None
    try:
        while True:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return script_status, True
            if pid == script:
                exit_code = os.waitstatus_to_exitcode(wait_status)
                # Shells report a signal as 128 plus its number.
                script_status = 128 - exit_code if exit_code < 0 else exit_code
    except ChildProcessError:
        return script_status, False


def _kill_all(script: int) -> None:
    """Kill the script and all of its descendants."""
    # When a process dies, its children become children of this process. So repeat this until none
    # remain and `waitpid` raises ChildProcessError.
    with contextlib.suppress(ChildProcessError):
        while True:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(script, signal.SIGKILL)
            for pid in _children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children() -> list[int]:
    """Return the ids of this process's children; an empty list on systems without /proc."""
    try:
        content = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(pid) for pid in content.split()]


def _prctl(option: int, value: int) -> None:
    """Call `prctl` on Linux; do nothing on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
