"""Atomic file writes, and checks of names that become folders."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part.

    The bytes go to a neighbour of `path` first, are flushed to the disk, and take the final name in
    one step. If anything fails, the neighbour is removed and what stood at `path` is untouched.
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


def is_folder_name(name: Any) -> bool:
    """Return whether a name is a single path component that stays inside its parent folder."""
    return (
        isinstance(name, str)
        and name.strip() not in ("", ".", "..")
        and not set(name) & set("/\\\0")
    )


def trial_folder(folder: str | os.PathLike[str], state: Any) -> str:
    """Return the folder a callback writes to: a subfolder of `folder` for each trial of a search.

    Args:
        folder: the usual one.
        state: of the training, whose `trial_name` may come from anywhere.
    """
    if not state.is_hyper_param_search or not state.trial_name:
        return os.fspath(folder)
    if not is_folder_name(state.trial_name):
        logger.warning(
            "trial_name is %r, which cannot name a folder: %s is used itself.",
            state.trial_name,
            folder,
        )
        return os.fspath(folder)
    return os.path.join(folder, state.trial_name)
