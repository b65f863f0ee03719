"""Identify a process as `HOST-SYSTEM-PID-START`, and check whether it is running.

The system is a running kernel and, on Linux, a pid namespace: two containers may have one host
name, and processes with the same pids. The start time (in the kernel's clock ticks) distinguishes a
process from a later one with the same pid.
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
    """Return this process as text that `process_state` reads, usable in a file name.

    In a run of several processes the main one's token is broadcast once, so that all of them use
    the same folder.
    """
    pid = os.getpid()
    start = 0
    status = _process_status(pid)
    if status is not None:
        _, start = status
    return f"{_machine()}-{pid}-{start}"


def process_state(token: str) -> Literal["running", "ended", "elsewhere"]:
    """Return the state of a process; those of other machines and containers cannot be seen.

    Args:
        token: the result of `process_token`; any other text is a process elsewhere.
    """
    parts = _TOKEN.fullmatch(token)
    if parts is None or parts["machine"] != _machine() or os.name != "posix":
        return "elsewhere"
    if _is_running(int(parts["pid"]), int(parts["start"])):
        return "running"
    return "ended"


def is_of_this_host(token: str) -> bool:
    """Return whether a process is of a machine with this host name.

    It may be this machine, also before a restart, or another one of the same name.

    Args:
        token: the result of `process_token`.
    """
    return token.partition("-")[0] == _host()


def _machine() -> str:
    """Identify the running system, and on Linux the container, by text for a file name.

    The text begins with the host name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return _host()
    system = hashlib.sha256(f"{boot} {namespace}".encode())
    return f"{_host()}-{system.hexdigest()[:12]}"


def _host() -> str:
    """Return the host name for a file name, without the dash that separates parts of a token."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", socket.gethostname())
    return name[:64] or "host"


def _is_running(pid: int, start: int) -> bool:
    """Return whether a process has not ended.

    Without /proc any process with the same pid is taken for it.
    """
    status = _process_status(pid)
    if status is not None:
        state, started = status
        # Z is a process that has ended, and that its parent has not waited for; X one that is being
        # removed.
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
    # The second field is the program's name in parentheses, which may itself contain blanks and
    # parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])
