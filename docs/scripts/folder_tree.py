"""Write the tree of folders into the README, and with the inner ones into
`docs/develop/folders.md`.

Each line is the first sentence of the folder's `__init__`: `python docs/scripts/folder_tree.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEPTHS = {ROOT / "README.md": 0, ROOT / "docs" / "develop" / "folders.md": 1}
BEGIN, END = "<!-- tree: docs/scripts/folder_tree.py -->\n```text\n", "```\n<!-- end of tree -->"
COLUMN = 22
WIDTH = 120
# The contents of a folder of the package are in its `__init__`; the others have none.
OTHER_FOLDERS = {
    "examples": "Scripts that run without a network in a minute or two",
    "benchmarks": "Promises about speed and memory: each a script that prints ratios of one run",
    "docs": (
        "user/: guides; reference/: every argument; develop/: architecture, for who changes the "
        "code"
    ),
    "tests": (
        "Mirrors the folders of the code; parity/ compares with the reference; helpers/ has no test"
    ),
}


def tree(depth: int) -> str:
    """Return the folders of the package, so many levels below the top, then the others; one line
    each.
    """
    code = [
        line
        for name in ("package", "facade", "lightning_modules", "callbacks")
        for line in lines_of(name, depth)
    ]
    return "".join(
        [*code, *(line(f"{name}/", 0, comment) for name, comment in OTHER_FOLDERS.items())]
    )


def page_with_tree(page: Path) -> str:
    """Return a page's text with the tree as it is now."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + tree(DEPTHS[page]) + END + rest.split(END)[1]


def lines_of(name: str, depth: int) -> Iterator[str]:
    """Return the lines of a folder of the package: itself, and the packages in it."""
    folder = ROOT / name
    yield line(f"{name}/", 0, first_sentence(folder / "__init__.py"))
    for inner in sorted(folder.glob("*/__init__.py")) if depth else ():
        yield line(f"{inner.parent.name}/", 1, first_sentence(inner))


def line(name: str, depth: int, comment: str) -> str:
    """Return one line of the tree."""
    whole = f"{'  ' * depth + name:<{COLUMN}} {comment}"
    if len(whole) > WIDTH:
        raise ValueError(
            f"The first sentence of {name}__init__.py makes a line of {len(whole)} columns: "
            f"{comment}"
        )
    return whole.rstrip() + "\n"


def first_sentence(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (
        (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
        .split("\n")[0]
        .rstrip(".")
    )


if __name__ == "__main__":
    for page in DEPTHS:
        page.write_text(page_with_tree(page), encoding="utf-8")
