"""Write the tree of folders, with the first sentence of each, into the README: `python docs/scripts/readme_tree.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- tree: docs/scripts/readme_tree.py -->\n```\n", "```\n<!-- end of tree -->"
COLUMN = 22
WIDTH = 120
# What a folder of the package holds is said by its `__init__`; the others have none.
OTHER_FOLDERS = {
    "examples": "Scripts that run without a network in a minute or two",
    "benchmarks": "What is promised about speed and memory: each a script that prints ratios of one run",
    "docs": "user/: guides; reference/: every argument; develop/: architecture, for who changes the code",
    "tests": "Mirrors the folders of the code; parity/ trains the same thing with the reference and compares",
}


def tree() -> str:
    """The folders of the package, then the others, one line each."""
    code = [line for name in ("package", "facade", "lightning_modules", "callbacks") for line in lines_of(ROOT / name)]
    return "".join([*code, *(line(f"{name}/", 0, comment) for name, comment in OTHER_FOLDERS.items())])


def readme_with_tree() -> str:
    """The README's text with the tree as it is now."""
    before, rest = (ROOT / "README.md").read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + tree() + END + rest.split(END)[1]


def lines_of(folder: Path, depth: int = 0) -> Iterator[str]:
    """The lines of a folder of the package: itself, and the packages in it."""
    yield line(f"{folder.name}/", depth, first_sentence(folder / "__init__.py"))
    if depth < 1:
        for inner in sorted(folder.glob("*/__init__.py")):
            yield from lines_of(inner.parent, depth + 1)


def line(name: str, depth: int, comment: str) -> str:
    """One line of the tree."""
    whole = f"{'  ' * depth + name:<{COLUMN}} {comment}"
    if len(whole) > WIDTH:
        raise ValueError(f"The first sentence of {name}__init__.py makes a line of {len(whole)} columns: {comment}")
    return whole.rstrip() + "\n"


def first_sentence(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0].rstrip(".")


if __name__ == "__main__":
    (ROOT / "README.md").write_text(readme_with_tree(), encoding="utf-8")
