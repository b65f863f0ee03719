"""Check versions for scripts that require them."""

from __future__ import annotations

import importlib.metadata
import sys


def check_min_version(min_version: str) -> None:
    """As `transformers.utils.check_min_version`: check that the API served here is new enough.

    Raises:
        ImportError: The script wants a newer one.
    """
    from packaging.version import parse

    from ..names import VERSION

    # A script of the next version's development says "5.4.0.dev0".
    if parse(VERSION) < parse(min_version):
        raise ImportError(
            f"This script asks for transformers {min_version}, and lightrainer stands in for "
            f"{VERSION}. Install transformers, or run the script of that version."
        )


def require_version(requirement: str, hint: str | None = None) -> None:
    """As `transformers.utils.versions.require_version`: check that a package is installed in a
    fitting version.

    Args:
        requirement: Such as "datasets>=2.14.0", or "python>=3.10".
        hint: Added to the error.

    Raises:
        importlib.metadata.PackageNotFoundError: It is not installed.
        ImportError: It is of another version.
    """
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    if wanted.name == "python":
        found = ".".join(map(str, sys.version_info[:3]))
    else:
        found = importlib.metadata.version(wanted.name)
    if not wanted.specifier.contains(found, prereleases=True):
        raise ImportError(f"{requirement} is required, but {wanted.name} is {found}. {hint or ''}")


def require_version_core(requirement: str) -> None:
    """As `transformers.utils.versions.require_version_core`."""
    require_version(requirement, "Try: pip install -U transformers")


def send_example_telemetry(
    example_name: str, *example_args: object, framework: str = "pytorch"
) -> None:
    """As `transformers.utils.send_example_telemetry`, but sends nothing."""
