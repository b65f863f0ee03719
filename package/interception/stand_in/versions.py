"""Check the versions that scripts require."""

from __future__ import annotations

import importlib.metadata
import sys


def check_min_version(min_version: str) -> None:
    """Check that the API version served here is new enough for a script.

    Works like `transformers.utils.check_min_version`.

    Args:
        min_version: a version of transformers.

    Raises:
        ImportError: the script requires a newer version.
    """
    from packaging.version import parse

    from ..names import VERSION

    # Scripts in the development branch require a version such as "5.4.0.dev0".
    if parse(VERSION) < parse(min_version):
        raise ImportError(
            f"This script requires transformers {min_version}, but lightrainer stands in for "
            f"{VERSION}. Install transformers {min_version}, or use the script's version for "
            f"{VERSION}."
        )


def require_version(requirement: str, hint: str | None = None) -> None:
    """Check the version of an installed package.

    Works like `transformers.utils.versions.require_version`.

    Args:
        requirement: such as "datasets>=2.14.0", or "python>=3.10".
        hint: added to the error message.

    Raises:
        importlib.metadata.PackageNotFoundError: the package is not installed.
        ImportError: another version is installed.
    """
    from packaging.requirements import Requirement

    parsed = Requirement(requirement)
    if parsed.name == "python":
        installed_version = ".".join(map(str, sys.version_info[:3]))
    else:
        installed_version = importlib.metadata.version(parsed.name)
    if not parsed.specifier.contains(installed_version, prereleases=True):
        message = f"{requirement} is required, but {parsed.name} {installed_version} is installed."
        if hint:
            message = f"{message} {hint}"
        raise ImportError(message)


def send_example_telemetry(
    example_name: str, *example_args: object, framework: str = "pytorch"
) -> None:
    """Do nothing: no telemetry is sent.

    Works like `transformers.utils.send_example_telemetry`, so that scripts that call it run.

    Args:
        example_name: ignored.
        example_args: ignored.
        framework: ignored.
    """
