"""Claim folders for one owner, whose name is written to a file in the folder."""

from __future__ import annotations

import itertools
import os
import shutil
import uuid
from pathlib import Path

OWNER_FILE = ".owner"
"""Name of the file with the owner of a claimed folder."""


def claim_folder(parent: str | os.PathLike[str], name: str, owner: str) -> Path:
    """Return the folder of an owner, creating it if needed.

    Processes with the same owner get the same folder.

    Args:
        parent: the parent folder, created if needed.
        name: the name of the folder. If others have created or claimed it, `name-2`, `name-3`, ...
            are used.
        owner: a unique name of the owner.
    """
    parent = Path(parent)
    parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = parent / name
        if number > 1:
            folder = parent / f"{name}-{number}"
        if is_claimed(folder, owner) or _claim(folder, owner):
            return folder
    raise AssertionError("there is a free name")


def is_claimed(folder: str | os.PathLike[str], owner: str) -> bool:
    """Return whether a folder belongs to an owner."""
    try:
        return Path(folder, OWNER_FILE).read_text(encoding="utf-8") == owner
    except (OSError, UnicodeDecodeError):
        return False


def _claim(folder: Path, owner: str) -> bool:
    """Create a folder with its owner file atomically.

    Returns:
        Whether the folder belongs to the owner afterwards.
    """
    new = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    new.mkdir()
    (new / OWNER_FILE).write_text(owner, encoding="utf-8")
    try:
        # Fails if the folder exists and is not empty.
        new.rename(folder)
    except OSError:
        shutil.rmtree(new)
        return is_claimed(folder, owner)
    return True
