"""Folders that belong to one owner, whose name is in a file of the folder."""

from __future__ import annotations

import itertools
import os
import shutil
import uuid
from pathlib import Path

MARK = ".owner"
"""The file in a claimed folder that names its owner."""


def claim_folder(parent: str | os.PathLike[str], name: str, owner: str) -> Path:
    """Return the folder of an owner, and create it if needed.

    Processes with the same owner get the same folder.

    Args:
        parent: is created if needed.
        name: the name of the folder; `name-2` and so on if others have claimed that, or created it
            without a claim.
        owner: unique text.
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
        return Path(folder, MARK).read_text(encoding="utf-8") == owner
    except (OSError, UnicodeDecodeError):
        return False


def _claim(folder: Path, owner: str) -> bool:
    """Create a folder with its mark in it, in one step.

    Returns:
        whether it belongs to the owner afterwards.
    """
    new = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    new.mkdir()
    (new / MARK).write_text(owner, encoding="utf-8")
    try:
        # Fails if the folder exists and is not empty.
        new.rename(folder)
    except OSError:
        shutil.rmtree(new)
        return is_claimed(folder, owner)
    return True
