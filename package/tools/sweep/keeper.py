"""A program that runs a script for a sweep, and ends everything that the script started when the sweep ends.

    keeper.py COMMAND...

Its standard input is a pipe whose other end the sweep holds: however the sweep dies, the pipe is closed, and all
processes are killed. SIGTERM lets the script save: it is passed on, and what still runs a minute later is killed. The
keeper exits with the status of the script, or 128 and the number of the signal that ended it.

Processes that lost their parent become children of the keeper (Linux), also those in other sessions, as the workers of
torchrun are. On other systems it reaches the process group of the script only. Imports the standard library only.
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
from collections.abc import Iterator, Sequence

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
            preexec_fn=lambda: _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL),  # this process has no other thread
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
        return 127
    return _Keeper(script, signals).run()


class _Keeper:
    def __init__(self, script: subprocess.Popen[bytes], signals: int) -> None:
        self.script = script
        self.signals = signals
        self.stops_at: float | None = None
        """The time at which what still runs is killed, once the script was asked to stop."""
        self.told: set[int] = set()

    def run(self) -> int:
        status: int | None = None
        while True:
            timeout = None if self.stops_at is None else max(0.0, self.stops_at - time.monotonic())
            readable, _, _ = select.select([0, self.signals], [], [], timeout)
            if 0 in readable or not readable:  # the sweep is gone, or the time to save is up
                self._kill_all()
                return 128 + signal.SIGKILL if status is None else status

            if _STOPS.intersection(os.read(self.signals, 64)):
                self.stops_at = time.monotonic() + _SECONDS_TO_SAVE
            for pid, ended in _ended_children():
                if pid == self.script.pid:
                    status = os.waitstatus_to_exitcode(ended)
                    status = 128 - status if status < 0 else status
            if self.stops_at is not None:
                self._ask_to_stop()
            if status is not None and (self.stops_at is None or not _children()):
                if status != 0:  # another attempt must not run beside what is left of this one
                    self._kill_all()
                return status

    def _ask_to_stop(self) -> None:
        """Pass SIGTERM on to children, once to each; those of a launcher that has ended are children by now."""
        for pid in _children(self.script.pid):
            if pid not in self.told:
                self.told.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def _kill_all(self) -> None:
        """Kill the script and all of its descendants: each that dies leaves its children to this process."""
        while True:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.script.pid, signal.SIGKILL)
            for pid in _children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


def _signal_pipe() -> int:
    """Return a file that gets the number of each signal that asks to stop, or tells of the end of a child."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (*_STOPS, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    return reader


def _ended_children() -> Iterator[tuple[int, int]]:
    """Yield process and status of each child that has ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def _children(default: int | None = None) -> list[int]:
    """Return the children of this process; without Linux's /proc the default, if there is one."""
    children = []
    own = os.getpid()
    try:
        entries = os.listdir("/proc")
    except OSError:
        return [] if default is None else [default]
    for entry in entries:
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as stat:
            # The program's name, in parentheses, may have blanks in it.
            state, parent = stat.read().rpartition(b")")[2].split()[:2]
            if int(parent) == own and state != b"Z":
                children.append(int(entry))
    return children


def _prctl(option: int, value: int) -> None:
    """Call Linux's `prctl`; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
