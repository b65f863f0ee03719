"""A program that runs a script for a sweep, and ends everything that the script started when the
sweep ends.

    keeper.py COMMAND...

Its standard input is a pipe whose other end the sweep holds: however the sweep dies, the pipe is
closed, and all processes are killed. SIGTERM lets the script save: it is passed on, and what still
runs a minute later is killed. The keeper exits with the status of the script, or 128 and the number
of the signal that ended it.

Processes that lost their parent become children of the keeper (Linux, which lists them in /proc),
also those in other sessions, as the workers of torchrun are. On other systems it reaches the
process group of the script only. Imports the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_SECONDS_TO_SAVE = 60.0
"""Time for the script to write its checkpoint."""
_SET_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
"""Options of Linux's `prctl`."""
_STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def main(command: Sequence[str]) -> int:
    """Run the command until it ends, or the sweep does; return the exit status."""
    signals = _signal_pipe()
    _prctl(_SET_CHILD_SUBREAPER, 1)
    try:
        script = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # this process has no other thread
            preexec_fn=lambda: _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL),
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
        return 127
    return _keep(script.pid, signals)


def _keep(script: int, signals: int) -> int:
    """Wait for the script, and for all that it started once it was asked to stop; return the exit
    status.

    Args:
        script: the process of the script, which leads its group.
        signals: see `_signal_pipe`.
    """
    status: int | None = None
    kill_at: float | None = None
    asked: set[int] = set()
    while True:
        timeout = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        readable, _, _ = select.select([0, signals], [], [], timeout)
        if 0 in readable or not readable:  # the sweep is gone, or the time to save is up
            _kill_all(script)
            return 128 + signal.SIGKILL if status is None else status

        if _STOPS.intersection(os.read(signals, 64)) and kill_at is None:
            kill_at = time.monotonic() + _SECONDS_TO_SAVE
        ended, any_left = _reap(script)
        status = ended if status is None else status
        if kill_at is not None and any_left:
            # Each child is asked to stop, once; those of a launcher that has ended are children by
            # now.
            for pid in set(_children() or [script]) - asked:
                asked.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        if status is not None and (kill_at is None or not any_left):
            if status != 0:  # another attempt must not run beside what is left of this one
                _kill_all(script)
            return status


def _reap(script: int) -> tuple[int | None, bool]:
    """Remove children that have ended; return the status of the script if it is one, and whether
    any are left.
    """
    status = None
    try:
        while True:
            pid, ended = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return status, True
            if pid == script:
                code = os.waitstatus_to_exitcode(ended)
                status = 128 - code if code < 0 else code
    except ChildProcessError:
        return status, False


def _kill_all(script: int) -> None:
    """Kill the script and all of its descendants: each that dies leaves its children to this
    process.
    """
    with contextlib.suppress(ChildProcessError):
        while True:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(script, signal.SIGKILL)
            for pid in _children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def _signal_pipe() -> int:
    """Return a file that gets the number of each signal that asks to stop, or tells of the end
    of a child.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (*_STOPS, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    return reader


def _children() -> list[int]:
    """Return the children of this process; none without Linux's /proc."""
    try:
        listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(pid) for pid in listed.split()]


def _prctl(option: int, value: int) -> None:
    """Call Linux's `prctl`; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
