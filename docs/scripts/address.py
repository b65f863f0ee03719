"""Write the address of the project, `[project.urls]` of pyproject.toml, into the other files that
name it: `python docs/scripts/address.py`.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = {
    "CITATION.cff": r"(?<=^repository-code: ).*$",
    "SECURITY.md": r"(?<=<)https://\S+(?=/security>)",
    "mkdocs.yml": r"(?<=^repo_url: ).*$",
}


def address() -> str:
    """Return the address of the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["urls"]["Repository"]


def with_address(name: str) -> str:
    """Return the text of a file with the address in its place."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text, count = re.subn(PLACES[name], address(), text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{name} has {count} places for the address, instead of one.")
    return text


if __name__ == "__main__":
    for file_name in PLACES:
        (ROOT / file_name).write_text(with_address(file_name), encoding="utf-8")
