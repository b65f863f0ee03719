"""Identify a process as `HOST-PID-START`, and check whether it is running.

The start time (in the kernel's clock ticks) distinguishes a process from a later one with the same pid: in a restarted
container the training process gets the same pid every time.
"""

from __future__ import annotations

import os
import re
import socket
from functools import cache
from pathlib import Path


def owner_token() -> str:
    """Return this process as `HOST-PID-START`, usable in a file name.

    In a run of several processes the main one's token is broadcast once, so that all of them use the same folder.
    """
    return _token(os.getpid())


@cache
def _token(pid: int) -> str:
    _, start = _process_status(pid) or ("", 0)
    return f"{_host()}-{pid}-{start}"


def is_gone(owner: str) -> bool:
    """Return whether a process is known to have ended: it was on this machine, and is not running.

    Args:
        owner: its token from `owner_token`.
    """
    host, pid, start = owner.rsplit("-", 2)
    return host == _host() and os.name == "posix" and not _is_running(int(pid), int(start))


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", socket.gethostname())[:64] or "host"


def _is_running(pid: int, start: int) -> bool:
    status = _process_status(pid)
    if status is not None:
        state, started = status
        return state not in ("Z", "X") and started == start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _process_status(pid: int) -> tuple[str, int] | None:
    """Return state letter and start time of a process from Linux's /proc; None without it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses, which may itself contain blanks and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])
