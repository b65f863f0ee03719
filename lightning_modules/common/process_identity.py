"""Identify a process as `HOST-SYSTEM-PID-START`, and check whether it is running.

The system identifies the booted kernel and, on Linux, the pid namespace, because two containers may
have the same host name and process ids. The start time (in clock ticks of the kernel) distinguishes
a process from a later one with the same id.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from pathlib import Path
from typing import Literal

_TOKEN = re.compile(r"(?P<machine>.+)-(?P<pid>\d+)-(?P<start>\d+)")


def process_token() -> str:
    """Return a token for this process that `process_state` reads and that can be part of a file
    name.

    With several processes, the main one's token is broadcast once, so that all use the same folder.
    """
    pid = os.getpid()
    start = 0
    status = _process_status(pid)
    if status is not None:
        _, start = status
    return f"{_machine()}-{pid}-{start}"


def process_state(token: str) -> Literal["running", "ended", "elsewhere"]:
    """Return the state of a process. Processes on other machines or in other containers are
    "elsewhere".

    Args:
        token: the result of `process_token`. Any other string counts as a process elsewhere.
    """
    parts = _TOKEN.fullmatch(token)
    if parts is None or parts["machine"] != _machine() or os.name != "posix":
        return "elsewhere"
    if _is_running(int(parts["pid"]), int(parts["start"])):
        return "running"
    return "ended"


def is_of_this_host(token: str) -> bool:
    """Return whether a process belongs to a machine with the same host name.

    This may be this machine, before or after a restart, or another machine with the same name.

    Args:
        token: the result of `process_token`.
    """
    return token.partition("-")[0] == _host()


def _machine() -> str:
    """Return an identifier of the booted system and, on Linux, the container.

    It begins with the host name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return _host()
    system = hashlib.sha256(f"{boot} {namespace}".encode())
    return f"{_host()}-{system.hexdigest()[:12]}"


def _host() -> str:
    """Return the host name for a file name, without dashes, which separate the parts of a token."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", socket.gethostname())
    return name[:64] or "host"


def _is_running(pid: int, start: int) -> bool:
    """Return whether a process is running.

    Without /proc, any process with the same id counts.
    """
    status = _process_status(pid)
    if status is not None:
        state, started = status
        # Z is a zombie process, X a process that is being removed.
        return state not in ("Z", "X") and started == start

    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _process_status(pid: int) -> tuple[str, int] | None:
    """Return state letter and start time of a process from /proc; None if not available."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the name of the program in parentheses, which may contain spaces and
    # parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])
