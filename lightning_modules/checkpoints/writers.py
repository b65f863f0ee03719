"""Which processes of this machine write checkpoints into a folder at this moment.

Each leaves an empty file among the temporary ones of its user, named by the folder and by its owner token, so that what
a killed process has left is told from the mark of a living one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .names import StrPath
from .owners import is_gone, owner_token

_log = logging.getLogger(__name__)


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
    """The file of this process for a folder; None where marks cannot be told from leftovers, or not be kept."""
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
    """The process ids of the other living writers; the marks of dead ones are removed."""
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
