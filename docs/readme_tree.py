"""Writes the tree of files, with the first sentence of each, into the README: `python docs/readme_tree.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("package", "facade", "lightning_modules", "callbacks", "examples", "benchmarks", "docs", "tests")
BEGIN, END = "<!-- tree: docs/readme_tree.py -->\n```\n", "```\n<!-- end of tree -->"
COLUMN = 34


def tree() -> str:
    """All folders and files, one line each; tests by folder only."""
    return "".join(line for name in FOLDERS for line in lines_of(ROOT / name, 0))


def readme_with_tree() -> str:
    """The README's text with the tree as it is now."""
    before, rest = (ROOT / "README.md").read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + tree() + END + rest.split(END)[1]


def lines_of(folder: Path, depth: int) -> Iterator[str]:
    """The lines of a folder: itself, its files, its subfolders."""
    yield line(f"{folder.name}/", depth, TEST_FOLDERS.get(folder.name, first_sentence(folder / "__init__.py")))
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "__pycache__")))
    in_tests = "tests" in folder.relative_to(ROOT).parts
    for path in entries:
        if path.is_file() and path.name != "__init__.py" and not in_tests:
            yield line(path.name, depth + 1, first_sentence(path))
    for path in entries:
        if path.is_dir():
            yield from lines_of(path, depth + 1)


def line(name: str, depth: int, comment: str) -> str:
    """One line of the tree."""
    start = "  " * depth + name
    return f"{start:<{COLUMN}} {comment}".rstrip() + "\n"


def first_sentence(path: Path) -> str:
    """What a file says of itself in its first line."""
    if path.suffix == ".pyi":
        return "The names that can be imported from here, in one list"
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
    if path.suffix != ".py" or not path.exists():
        return OTHER_FILES.get(path.name, "")
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0].rstrip(".")


OTHER_FILES = {"py.typed": "Says that the package has type annotations"}
TEST_FOLDERS = {
    "tests": "One folder for each folder of the code, and:",
    "parity": "Trains the same thing with the reference and with lightrainer, and compares bit for bit",
    "contract": "Every training argument: what it changes, and which combinations are refused",
    "ddp": "Two real processes under torchrun, against the reference's two",
}

if __name__ == "__main__":
    (ROOT / "README.md").write_text(readme_with_tree(), encoding="utf-8")
