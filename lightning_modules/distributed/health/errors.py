"""Errors that come from other processes, and how torch says that it lost one."""

from __future__ import annotations

import re


class OtherProcessError(RuntimeError):
    """Something went wrong in another process than this one."""


# What gloo, NCCL and the stores of torch write. They have no classes for it, or not in all versions.
_LOST = re.compile(
    r"connection closed by|connection reset|connection refused|connection was likely closed|broken pipe|socket closed|"
    r"remote process exited|remote process has been terminated|network error|ncclRemoteError|ncclSystemError|"
    r"pair closure|communicator was aborted|socket timeout|no route to host|software caused connection abort",
    re.IGNORECASE,
)
_LATE = re.compile(
    r"timed out waiting \d+ ?ms|timed out after|wait timeout after|watchdog.*time(d ?)?out|operation timed out|"
    r"timed out initializing|timeout\(ms\)",
    re.IGNORECASE,
)
_TALKS = re.compile(r"gloo|nccl|store|socket|c10d|process ?group|rank|peer", re.IGNORECASE)


def is_late(error: BaseException) -> bool:
    """Whether torch waited for another process as long as it may."""
    return _of_torch(error) and bool(_LATE.search(str(error)))


def is_lost(error: BaseException) -> bool:
    """Whether torch lost the connection to another process."""
    return _of_torch(error) and not is_late(error) and bool(_LOST.search(str(error)))


def _of_torch(error: BaseException) -> bool:
    """Whether it may be about processes: errors of sockets in general are a dataset's, or a tracker's."""
    if not isinstance(error, RuntimeError) or isinstance(error, OtherProcessError):
        return False
    return type(error).__module__.startswith("torch.distributed") or (
        type(error) is RuntimeError and bool(_TALKS.search(str(error)))
    )
