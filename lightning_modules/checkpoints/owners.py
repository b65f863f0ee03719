"""Ownership of checkpoint folders: the writing process, the job of `torchrun`, and concurrent trainings.

- An unfinished folder carries the token of its process in its name, so that a later run can distinguish the leftovers
  of a killed process from the work of a living one.
- A checkpoint names its job: processes restarted by `torchrun` resume only from checkpoints of their own job.
  `--rdzv-id` does not identify a job, since users reuse it; the log folder of each launcher does, and it stays the same
  across restarts.
- Each process that writes checkpoints into a folder leaves an empty file in a temporary folder of its user, named by
  the folder and by its token, so that a second training with the same folder is warned.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..common.local_paths import StrPath
from ..common.process_identity import is_gone, owner_token

_log = logging.getLogger(__name__)

IDLE_SECONDS = 3600.0
"""Seconds without a change after which a folder counts as abandoned if its owner is on another machine."""

_ATTEMPT = re.compile(r"[\\/]attempt_\d+[\\/]")

_launchers: tuple[str, ...] = ()
_training = 0


def is_abandoned(folder: Path, owner: str) -> bool:
    """Return whether `folder` will not be finished: its owner is gone, or on another machine and idle for long.

    Args:
        folder: an unfinished folder.
        owner: the token in its name, as `owner_token` made it.
    """
    return is_gone(owner) or time.time() - _last_change(folder) > IDLE_SECONDS


def _last_change(folder: Path) -> float:
    newest = 0.0
    for path in (folder, *folder.rglob("*")):
        try:
            newest = max(newest, path.lstat().st_mtime)
        except FileNotFoundError:
            continue  # being written or deleted right now
    return newest


def own_launcher() -> str | None:
    """Return a unique name of the `torchrun` that started this process; None without one."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    found = _ATTEMPT.search(file)
    return f"{socket.gethostname()}:{file[: found.start()]}" if found else None


def restarts() -> int:
    """Return the number of restarts by `torchrun`."""
    text = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(text) if text.isdigit() else 0


def begin_training(launchers: Iterable[str]) -> None:
    """Begin a training, by which checkpoints are marked from now on.

    Args:
        launchers: one for each machine. A job lives as long as one of them does.
    """
    global _launchers, _training
    _launchers = tuple(sorted(set(launchers)))
    _training += 1


def job_mark() -> dict[str, Any] | None:
    """Return the mark of checkpoints: the job and the number of the training in its script; None without `torchrun`."""
    return {"launchers": list(_launchers), "training": _training} if _launchers else None


def is_of_this_training(folder: StrPath) -> bool:
    """Return whether a checkpoint was written by this training before its processes were restarted."""
    try:
        job = json.loads((Path(folder) / "_manifest.json").read_text(encoding="utf-8")).get("job")
    except (OSError, ValueError, AttributeError):
        return False
    if not isinstance(job, dict) or job.get("training") != _training:
        return False
    return bool(set(_launchers) & set(job.get("launchers") or ()))


@contextmanager
def marked_as_written(folder: StrPath) -> Iterator[None]:
    """Mark this process as a writer of a folder, and warn if another living one is.

    Consecutive trainings of one process are one writer. Writers on other machines are not found.

    Args:
        folder: need not exist.
    """
    mark = _mark(folder)
    if mark is None:
        yield
        return
    for pid in _others(mark):
        _log.warning(
            "Process %s trains with the same output_dir, %s: each may overwrite, or delete, checkpoints of the other. "
            "Give each run an output_dir of its own.",
            pid,
            Path(folder),
        )
    with suppress(OSError):
        mark.touch()
    try:
        yield
    finally:
        with suppress(OSError):
            mark.unlink(missing_ok=True)


def _mark(folder: StrPath) -> Path | None:
    """Return the marker file of this process for a folder; None if markers cannot be kept or attributed."""
    if os.name != "posix":
        return None
    place = Path(tempfile.gettempdir(), f"lightrainer-writers-{os.getuid()}")
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        if place.is_symlink() or place.stat().st_uid != os.getuid():
            return None
    except OSError:
        return None
    name = hashlib.blake2b(os.path.realpath(folder).encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return place / f"{name}.{owner_token()}"


def _others(mark: Path) -> list[str]:
    """Return the process ids of the other living writers; the marks of dead ones are removed."""
    found = []
    for path in sorted(mark.parent.glob(f"{mark.name.partition('.')[0]}.*")):
        if path.name == mark.name:
            continue
        owner = path.name.partition(".")[2]
        with suppress(OSError, ValueError):
            if is_gone(owner):
                path.unlink(missing_ok=True)
            else:
                found.append(owner.rsplit("-", 2)[1])
    return found
