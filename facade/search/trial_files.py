"""What a trial wrote into its folder, told apart from what lay there before it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path

_CHECKPOINT = re.compile(r"checkpoint-\d+(/|$)")


def files_below(folder: Path) -> frozenset[str]:
    """Everything below a folder, which need not be there, as paths relative to it; links are not followed."""
    found = set()
    for root, folders, files in os.walk(folder):
        found.update(Path(root, name).relative_to(folder).as_posix() for name in (*folders, *files))
    return frozenset(found)


def without_checkpoints(paths: Collection[str]) -> frozenset[str]:
    """Those of the paths that an interrupted trial has not left in its folder for its retry."""
    return frozenset(path for path in paths if not _CHECKPOINT.match(path))


def remove_all_but(folder: Path, kept: Collection[str], *, made: bool) -> None:
    """Remove what a pruned trial wrote.

    Args:
        folder: its folder.
        kept: what was in it before, see `files_below`.
        made: whether the folder itself was not there before.
    """
    kept = set(kept)
    for root, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = Path(root, name)
            if path.relative_to(folder).as_posix() in kept:
                continue
            with contextlib.suppress(OSError):  # a folder that still holds something, or what somebody else removed
                path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
    if made and not folder.is_symlink():
        with contextlib.suppress(OSError):
            folder.rmdir()
