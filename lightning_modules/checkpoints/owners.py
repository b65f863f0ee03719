"""Whose a folder of checkpoints is: the process that writes it, the job of `torchrun`, other trainings beside it.

- A folder in the making carries the token of its process in its name, so that a later run can tell the remains of a
  killed process from the work of a living one.
- A checkpoint says which job wrote it: processes that `torchrun` started again go on from those of their own job only.
  `--rdzv-id` does not tell jobs apart, as people reuse it; the folder that each launcher makes for its logs does, and
  it stays the same however often the launcher starts its processes again.
- Each process that writes checkpoints into a folder leaves an empty file among the temporary ones of its user, named by
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
"""After so long without a change a folder counts as abandoned, where its owner cannot be examined (another machine)."""

_ATTEMPT = re.compile(r"[\\/]attempt_\d+[\\/]")

_launchers: tuple[str, ...] = ()
_training = 0


def is_abandoned(folder: Path, owner: str) -> bool:
    """Tell whether nobody will finish `folder`: its owner is gone, or cannot be seen from here and has long been idle.

    Args:
        folder: a folder in the making.
        owner: the token in its name, as `owner_token` made it.
    """
    return is_gone(owner) or time.time() - _last_change(folder) > IDLE_SECONDS


def _last_change(folder: Path) -> float:
    newest = 0.0
    for path in (folder, *folder.rglob("*")):
        try:
            newest = max(newest, path.lstat().st_mtime)
        except FileNotFoundError:
            continue  # it is being written or deleted right now
    return newest


def own_launcher() -> str | None:
    """Return the `torchrun` that started this process, as one of all that there ever were; None where there is none."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    found = _ATTEMPT.search(file)
    return f"{socket.gethostname()}:{file[: found.start()]}" if found else None


def restarts() -> int:
    """Return how often `torchrun` says that it started the processes again."""
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
    """Mark checkpoints: return the job, and which training of its script it is; None where nobody starts again."""
    return {"launchers": list(_launchers), "training": _training} if _launchers else None


def is_of_this_training(folder: StrPath) -> bool:
    """Tell whether a checkpoint was written by this training, before its processes were started again."""
    try:
        job = json.loads((Path(folder) / "_manifest.json").read_text(encoding="utf-8")).get("job")
    except (OSError, ValueError, AttributeError):
        return False
    if not isinstance(job, dict) or job.get("training") != _training:
        return False
    return bool(set(_launchers) & set(job.get("launchers") or ()))


@contextmanager
def marked_as_written(folder: StrPath) -> Iterator[None]:
    """Let others know that this process writes into a folder, and warn if a living one does so already.

    Trainings that follow one another in one process are one writer. Nothing is known of other machines.

    Args:
        folder: it need not exist.
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
    """Return the file of this process for a folder; None where marks cannot be told from leftovers, or not be kept."""
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
