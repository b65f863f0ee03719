"""Files that are either there whole or not there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part.

    The bytes go to a neighbour of `path` first, are flushed to the disk, and take the final name in one step. If
    anything fails, the neighbour is removed and what stood at `path` is untouched.
    """
    target = Path(os.path.realpath(path))
    neighbour = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with open(neighbour, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(neighbour, target)
    except BaseException:
        with contextlib.suppress(OSError):
            neighbour.unlink()
        raise
