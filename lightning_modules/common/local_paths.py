"""Distinguish local paths from URLs such as `s3://bucket/x`.

Used as a path, a URL would become a local folder `s3:`. The local folder for the files of a URL
contains the URL in its path, so that each can be computed from the other.
"""

from __future__ import annotations

import os
import re
from typing import TypeAlias

StrPath: TypeAlias = str | os.PathLike[str]
"""Type of path arguments."""

# `Path` replaces two slashes by one. A single letter is a Windows drive.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

_NO_HOST = "-"
"""Represents the empty host of `file:///folder`. It is not a valid bucket name."""


def is_url(path: object) -> bool:
    """Return whether a value is a URL such as `s3://bucket/run`, including its form as a `Path`."""
    if not isinstance(path, (str, os.PathLike)):
        return False
    text = os.fspath(path)
    return isinstance(text, str) and _URL.match(text) is not None


def require_local(path: object, argument: str) -> None:
    """Raise for a URL before anything is written.

    Args:
        path: the value.
        argument: the name of the argument.

    Raises:
        ValueError: the path is a URL.
    """
    if is_url(path):
        raise ValueError(
            f"{argument}={str(path)!r} is a URL, not a local folder. Pass a local folder."
        )


def local_folder(path: StrPath) -> str:
    """Return the local folder for the files of a path or URL.

    For a path, this is the path with `~` expanded. For a URL, it is in the user's cache, or in the
    folder named by the environment variable `LIGHTRAINER_STORES`.

    Raises:
        ValueError: the URL is invalid, or fsspec does not support its protocol.
        ImportError: the package for the protocol is not installed. The message names it.
    """
    if not is_url(path):
        return os.path.expanduser(path)
    import fsspec

    scheme, _, location = os.fspath(path).rstrip("/").partition("://")
    host = location.partition("/")[0]
    credentials = host.rpartition("@")[0]
    if ":" in credentials:
        raise ValueError(f"{scheme}://...: remove the password, because logs would show it.")

    # The URL becomes a path below a local folder, and must not lead outside of it.
    folders = location.removeprefix("/").split("/")
    if location.startswith("//") or not {"", ".", ".."}.isdisjoint(folders):
        raise ValueError(
            f"{path!r} must name a bucket or host, and no folder may be empty, '.' or '..'."
        )

    # Raise if the protocol is unknown or its package is not installed.
    fsspec.get_filesystem_class(scheme)
    if location.startswith("/"):
        location = _NO_HOST + location
    return os.path.join(_stores_folder(), scheme, location)


def url_of(path: StrPath) -> str | None:
    """Return the URL whose local folder contains a path, or None."""
    scheme, _, location = os.path.relpath(path, _stores_folder()).partition("/")
    if scheme == ".." or not location:
        return None
    if location.startswith(f"{_NO_HOST}/"):
        location = location.removeprefix(_NO_HOST)
    return f"{scheme}://{location}"


def _stores_folder() -> str:
    """Return the local folder for the files of all URLs."""
    folder = os.environ.get("LIGHTRAINER_STORES")
    if not folder:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = f"{cache}/lightrainer/stores"
    return os.path.expanduser(folder)
