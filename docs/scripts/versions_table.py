"""Write the versions that were tested into `docs/develop/releasing.md`:
`python docs/scripts/versions_table.py`.

Before that `make test-oldest` and `make test-newest-packages` have to pass: it reads what they have
resolved.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "develop" / "releasing.md"
BEGIN, END = "<!-- versions: docs/scripts/versions_table.py -->\n", "<!-- end of versions -->\n"
HEAD = "| package | lowest | with the pins | newest |\n|---|---|---|---|\n"


def bounds() -> dict[str, str]:
    """Return the lower bound of each package that is needed, and of those that the tests need
    beyond.
    """
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = configuration["project"]
    requirements = [*project["dependencies"], *configuration["dependency-groups"]["test"]]
    for extra in test_extras():
        requirements += requirements_of(project, extra)
    return {
        _known(name): bound
        for name, bound in re.findall(
            r"^([\w-]+)\S*?[>=]=([\d.]+)", "\n".join(requirements), re.MULTILINE
        )
    }


def test_extras() -> list[str]:
    """Return the extras that the tests are run with, from the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    line = re.search(r"^EXTRAS_test := (.*)$", makefile, re.MULTILINE)
    assert line is not None
    return line[1].split(",")


def requirements_of(project: dict[str, Any], extra: str) -> Iterator[str]:
    """Yield the requirements of an extra, and of the extras that it brings."""
    for requirement in project["optional-dependencies"][extra]:
        inner = re.match(rf"{project['name']}\[(.+)\]", requirement)
        if inner is None:
            yield requirement
            continue
        for name in inner[1].split(","):
            yield from requirements_of(project, name)


def pins(path: Path) -> dict[str, str]:
    """Return the versions in a file of constraints."""
    pairs = re.findall(r"^([\w-]+)==([\w.]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {_known(name): version for name, version in pairs}


def _known(name: str) -> str:
    return name.lower().replace("_", "-")


def table() -> str:
    """Return a line for each package; where the pins leave the version open the cell is empty."""
    oldest, pinned, newest = (
        pins(ROOT / name / "constraints.txt") for name in (".venv-oldest", "", ".venv-newest")
    )
    rows = [
        f"| {name} | {oldest[name]} | {pinned.get(name, '')} | {newest[name]} |\n"
        for name in sorted(bounds())
    ]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")
