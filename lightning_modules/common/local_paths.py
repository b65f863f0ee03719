"""Distinguish local paths from addresses such as `s3://bucket/x`, which would become a local folder `s3:`."""

from __future__ import annotations

import os
import re
from typing import Any, TypeAlias

StrPath: TypeAlias = str | os.PathLike[str]
"""Type of path arguments."""

# `Path` makes one slash of two. A single letter is a drive of Windows.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def remote_fault(path: Any, what: str) -> str | None:
    """Return the error for an address in the place of a folder; None for a path or any other value.

    Args:
        path: the value passed.
        what: the name of the argument.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    found = _ADDRESS.match(text) if isinstance(text, str) else None
    if found is None:
        return None
    return (
        f"{what}={text!r} is an address ({found[1]}), not a folder of this machine, and nothing is written to or read "
        "from such. Pass a local folder, or one where the storage is mounted, and copy from or to the storage before "
        "or after the run; push_to_hub=True uploads to the Hugging Face Hub."
    )


def require_local(path: Any, what: str) -> None:
    """Refuse an address before anything is written.

    Args:
        path: the value passed.
        what: the name of the argument.

    Raises:
        ValueError: It is one.
    """
    said = remote_fault(path, what)
    if said is not None:
        raise ValueError(said)
