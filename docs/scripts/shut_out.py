"""Print the bounds that shut out the newest release of a package that pyproject.toml names.

`make test-newest-packages` runs it in the environment that it has made: bounds of other packages
there are named, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution, distributions
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def shutting_out(newest: dict[str, str], packages: Iterable[Any]) -> Iterator[str]:
    """Yield a line for each requirement that forbids the newest release.

    Args:
        newest: releases by name.
        packages: distributions; of the extras only those of this one count.
    """
    for package in packages:
        is_own = package.name == "lightrainer"
        for line in package.requires or ():
            needed = Requirement(line)
            latest = newest.get(canonicalize_name(needed.name))
            counts = is_own or needed.marker is None or needed.marker.evaluate({"extra": ""})
            if latest and counts and not needed.specifier.contains(latest, prereleases=True):
                yield f"{package.name} shuts out {needed.name} {latest}: {line}"


def newest_release(name: str) -> str | None:
    """Ask the package index; None where it has nothing for this Python."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", name]
    listed = re.match(r"\S+ \((\S+)\)", subprocess.run(pip, capture_output=True, text=True).stdout)
    return listed and listed[1]


if __name__ == "__main__":
    names = {
        canonicalize_name(Requirement(line).name)
        for line in distribution("lightrainer").requires or ()
    }
    newest = {
        name: release
        for name in sorted(names - {"lightrainer"})
        if (release := newest_release(name))
    }
    print(
        *sorted(set(shutting_out(newest, distributions()))),
        f"{len(newest)} packages looked at",
        sep="\n",
    )
