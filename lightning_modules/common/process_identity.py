"""Identify a process as `HOST-PID-START`, and check whether it is running.

The start time (in the kernel's clock ticks) distinguishes a process from a later one with the same pid: in a restarted
container the training process gets the same pid every time.
"""

from __future__ import annotations

import json
import os
import re
import socket
from functools import cache
from pathlib import Path
from typing import Literal


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


def process_token() -> str:
    """Return this process as text that `process_state` reads, unique among all machines and containers."""
    return json.dumps([_machine(), os.getpid(), (_process_status(os.getpid()) or ("", 0))[1]])


def process_state(token: str) -> Literal["running", "ended", "elsewhere"]:
    """Return what is known of a process: those of other machines and containers cannot be seen.

    Args:
        token: of `process_token`; any other text is a process elsewhere.
    """
    try:
        machine, pid, start = json.loads(token)
        if machine == _machine() and os.name == "posix":
            return "running" if _is_running(int(pid), int(start)) else "ended"
    except (TypeError, ValueError):
        pass
    return "elsewhere"


def _machine() -> str:
    """Identify the running system and, on Linux, the container: containers on two machines may have one host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return _host()


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
