"""Who is writing a folder, and whether that process is still there.

A folder in the making carries its owner in its name, `HOST-PID-START`, so that a later run can tell the remains of a
killed process from the work of a living one. The start time (in the kernel's clock ticks) tells a process from a later
one with the same number: in a restarted container the training process gets the same pid every time.
"""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path

IDLE_SECONDS = 3600.0
"""After so long without a change a folder counts as abandoned, where its owner cannot be examined (another machine)."""


def owner_token() -> str:
    """This process as `HOST-PID-START`, usable in a file name.

    In a run of several processes the main one's token is broadcast once, so that all of them name the same folder.
    """
    pid = os.getpid()
    _, start = _process_status(pid) or ("", 0)
    return f"{_host()}-{pid}-{start}"


def is_abandoned(folder: Path, owner: str) -> bool:
    """Whether nobody will finish `folder`: its owner is gone, or cannot be seen from here and has long been idle.

    Args:
        folder: a folder in the making.
        owner: the token in its name, as `owner_token` made it.
    """
    return is_gone(owner) or time.time() - _last_change(folder) > IDLE_SECONDS


def is_gone(owner: str) -> bool:
    """Whether a process is known to run no more: it was on this machine, and is not there.

    Args:
        owner: its token, as `owner_token` made it.
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
    """State letter and start time of a process from Linux's /proc; None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses and may itself hold blanks and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _last_change(folder: Path) -> float:
    newest = 0.0
    for path in (folder, *folder.rglob("*")):
        try:
            newest = max(newest, path.lstat().st_mtime)
        except FileNotFoundError:
            continue  # it is being written or deleted right now
    return newest
