"""Distinguish local paths from addresses such as `s3://bucket/x`, which would become a local folder
`s3:`.

The folder on this machine for the files of an address has the address in its path, so that one
follows from the other.
"""

from __future__ import annotations

import os
import re
from typing import Any, TypeAlias

StrPath: TypeAlias = str | os.PathLike[str]
"""Type of path arguments."""

# `Path` makes one slash of two. A single letter is a drive of Windows.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

_NO_HOST = "-"
"""Stands for the empty host of `file:///folder`; a bucket cannot be called so."""


def is_address(path: Any) -> bool:
    """Return whether a value is an address, such as `s3://bucket/run`, also as `Path` writes it."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    return isinstance(text, str) and _ADDRESS.match(text) is not None


def require_local(path: Any, what: str) -> None:
    """Refuse an address before anything is written.

    Args:
        path: the value passed.
        what: the name of the argument.

    Raises:
        ValueError: It is one.
    """
    if is_address(path):
        raise ValueError(
            f"{what}={os.fspath(path)!r} is an address, and no folder here. Pass a local folder."
        )


def local_folder(path: StrPath) -> str:
    """Return the folder on this machine for the files of an address; of a path, the path without
    `~`.

    It is in the user's cache, or in the folder that the environment variable `LIGHTRAINER_STORES`
    names.

    Raises:
        ValueError: The address is none, or fsspec knows no such storage.
        ImportError: The package that reaches the storage is not installed; it says which.
    """
    if not is_address(path):
        return os.path.expanduser(path)
    import fsspec

    scheme, _, place = os.fspath(path).rstrip("/").partition("://")
    if ":" in place.partition("/")[0].rpartition("@")[0]:
        raise ValueError(f"{scheme}://...: leave the password out, which logs would show.")
    if place.startswith("//") or {"", ".", ".."} & {*place.removeprefix("/").split("/")}:
        raise ValueError(
            f"{path!r} has to name a bucket or host, and no folder may be empty, '.' or '..'."
        )
    fsspec.get_filesystem_class(scheme)
    return os.path.join(_stores(), scheme, _NO_HOST + place if place[0] == "/" else place)


def address_of(path: StrPath) -> str | None:
    """Return the address of which a folder on this machine, or one inside of it, holds the
    files; else None.
    """
    scheme, _, rest = os.path.relpath(path, _stores()).partition("/")
    path = rest.removeprefix(_NO_HOST) if rest.startswith(f"{_NO_HOST}/") else rest
    return None if scheme == ".." or not rest else f"{scheme}://{path}"


def _stores() -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return os.path.expanduser(os.environ.get("LIGHTRAINER_STORES") or f"{cache}/lightrainer/stores")
