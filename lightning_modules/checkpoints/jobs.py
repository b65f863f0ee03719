"""Which job of `torchrun` wrote a checkpoint: its processes may be started again, and go on from their own ones only.

A folder may hold checkpoints of earlier jobs. `--rdzv-id` does not tell jobs apart, as people reuse it; the folder that
each launcher makes for its logs does, and it stays the same however often the launcher starts its processes again.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .names import StrPath

_ATTEMPT = re.compile(r"[\\/]attempt_\d+[\\/]")

_launchers: tuple[str, ...] = ()
_training = 0


def own_launcher() -> str | None:
    """The `torchrun` that started this process, as one of all that there ever were; None where there is none."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    found = _ATTEMPT.search(file)
    return f"{socket.gethostname()}:{file[: found.start()]}" if found else None


def restarts() -> int:
    """How often `torchrun` says that it started the processes again."""
    text = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(text) if text.isdigit() else 0


def begin_training(launchers: Iterable[str]) -> None:
    """Note that a training begins: what is written from now on is marked with it.

    Args:
        launchers: one for each machine. A job goes on as long as one of them does.
    """
    global _launchers, _training
    _launchers = tuple(sorted(set(launchers)))
    _training += 1


def job_mark() -> dict[str, Any] | None:
    """What marks a checkpoint: the job, and which training of its script it is; None where nobody starts again."""
    return {"launchers": list(_launchers), "training": _training} if _launchers else None


def is_of_this_training(folder: StrPath) -> bool:
    """Whether a checkpoint was written by this training, before its processes were started again."""
    try:
        job = json.loads((Path(folder) / "_manifest.json").read_text(encoding="utf-8")).get("job")
    except (OSError, ValueError, AttributeError):
        return False
    if not isinstance(job, dict) or job.get("training") != _training:
        return False
    return bool(set(_launchers) & set(job.get("launchers") or ()))
