"""Run the script of a command, so that all its processes end with the command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_WATCHDOG = Path(__file__).with_name("watchdog.py")


def call_watched(command: Sequence[str], *, scratch: str = "", **options: Any) -> int:
    """Run a script, and return its exit status, as `subprocess.call`.

    If this process is killed or interrupted, all processes of the script are killed, so that none
    of them writes into the folder of the next run. On Windows they are not.

    Args:
        command: the words that start the script.
        scratch: a folder of this process that is removed with the processes of the script.
        options: those of `subprocess.Popen`.
    """
    if os.name != "posix":
        return subprocess.call(command, **options)

    pipe, held_open = os.pipe()
    # In its own session, the watchdog gets no Ctrl-C: this process does, and ends the script.
    watchdog = subprocess.Popen(
        [*watchdog_command(pipe, scratch), *command],
        pass_fds=[pipe],
        start_new_session=True,
        **options,
    )
    os.close(pipe)
    try:
        return watchdog.wait()
    finally:
        os.close(held_open)
        watchdog.wait()


def watchdog_command(pipe: int, scratch: str = "") -> list[str]:
    """Return the words that start the watchdog, before those that start the script.

    Args:
        pipe: the file descriptor of a pipe that the caller holds open, in the watchdog.
        scratch: the folder that the watchdog removes if the caller is killed, or "".
    """
    # With -I and -S Python skips site-packages, so that the watchdog starts quickly.
    return [sys.executable, "-I", "-S", str(_WATCHDOG), str(pipe), scratch]
