"""Compare package versions by their base release."""

from __future__ import annotations

from importlib import metadata


def installed(package: str) -> str | None:
    """Return the version of an installed package.

    Args:
        package: the name on the package index.

    Returns:
        The version, or None if the package is not installed or has no version.
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def is_older(version: str, than: str) -> bool:
    """Return whether a version is of an older release than another; `0.19.1rc2+cpu` belongs to
    release `0.19.1`.

    Raises:
        ValueError: one of them is not a valid package version.
    """
    from packaging.version import Version

    release = Version(Version(version).base_version)
    other_release = Version(Version(than).base_version)
    return release < other_release
