"""Distinguish local paths from addresses such as `s3://bucket/x`.

As a path, that would become a local folder `s3:`. The folder on this machine for the files of an
address has the address in its path, so that one follows from the other.
"""

from __future__ import annotations

import os
import re
from typing import TypeAlias

StrPath: TypeAlias = str | os.PathLike[str]
"""Type of path arguments."""

# `Path` makes one slash of two. A single letter is a drive of Windows.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

_NO_HOST = "-"
"""Stands for the empty host of `file:///folder`; a bucket cannot be called so."""


def is_address(path: object) -> bool:
    """Return whether a value is an address, such as `s3://bucket/run`, also as `Path` writes it."""
    if not isinstance(path, (str, os.PathLike)):
        return False
    text = os.fspath(path)
    return isinstance(text, str) and _ADDRESS.match(text) is not None


def require_local(path: object, argument: str) -> None:
    """Refuse an address before anything is written.

    Args:
        path: the value passed.
        argument: the name of the argument.

    Raises:
        ValueError: the path is an address.
    """
    if is_address(path):
        raise ValueError(
            f"{argument}={str(path)!r} is an address, not a local folder. Pass a local folder."
        )


def local_folder(path: StrPath) -> str:
    """Return the folder on this machine for the files of an address.

    For a path, it is the path with `~` expanded. For an address, it is in the user's cache, or in
    the folder that the environment variable `LIGHTRAINER_STORES` names.

    Raises:
        ValueError: the address is not valid, or fsspec does not know its protocol.
        ImportError: the package for the storage is not installed; names it.
    """
    if not is_address(path):
        return os.path.expanduser(path)
    import fsspec

    scheme, _, location = os.fspath(path).rstrip("/").partition("://")
    host = location.partition("/")[0]
    credentials = host.rpartition("@")[0]
    if ":" in credentials:
        raise ValueError(f"{scheme}://...: leave the password out, because logs would show it.")

    # The address becomes a path below a local folder, which it must not leave.
    folders = location.removeprefix("/").split("/")
    if location.startswith("//") or not {"", ".", ".."}.isdisjoint(folders):
        raise ValueError(
            f"{path!r} has to name a bucket or host, and no folder may be empty, '.' or '..'."
        )

    # Raises if the scheme is unknown, or if its package is not installed.
    fsspec.get_filesystem_class(scheme)
    if location.startswith("/"):
        location = _NO_HOST + location
    return os.path.join(_stores(), scheme, location)


def address_of(path: StrPath) -> str | None:
    """Return the address whose files are in a folder on this machine, or above it; or None."""
    scheme, _, location = os.path.relpath(path, _stores()).partition("/")
    if scheme == ".." or not location:
        return None
    if location.startswith(f"{_NO_HOST}/"):
        location = location.removeprefix(_NO_HOST)
    return f"{scheme}://{location}"


def _stores() -> str:
    """Return the folder for the files of all addresses."""
    folder = os.environ.get("LIGHTRAINER_STORES")
    if not folder:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = f"{cache}/lightrainer/stores"
    return os.path.expanduser(folder)
