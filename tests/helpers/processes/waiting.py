"""Waiting for processes, and looking whether they live."""

import time
from collections.abc import Callable

import psutil

SECONDS = 120
"""Time after which something hangs."""


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
