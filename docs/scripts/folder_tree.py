"""Write the tree of folders into the README and into `docs/develop/folders.md`, which also lists
the modules of each folder.

Each line is the first sentence of a docstring: `python docs/scripts/folder_tree.py`.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS_PAGE = ROOT / "docs" / "develop" / "folders.md"
DEPTHS = {ROOT / "README.md": 0, FOLDERS_PAGE: 1}
BEGIN, END = "<!-- tree: docs/scripts/folder_tree.py -->\n```text\n", "```\n<!-- end of tree -->"
BEGIN_MODULES = "<!-- modules: docs/scripts/folder_tree.py -->\n"
END_MODULES = "<!-- end of modules -->"
COLUMN = 22
WIDTH = 82
PACKAGE = ("package", "facade", "lightning_modules", "callbacks")
# The contents of a folder of the package are in its `__init__`; the others have none.
OTHER_FOLDERS = {
    "examples": "Scripts that run without a network in a minute or two",
    "benchmarks": "Promises about speed and memory, as ratios of one run",
    "docs": "start/, user/, reference/; develop/ for changing the code",
    "tests": "As the folders of the code; parity/ with transformers",
}


def tree(depth: int) -> str:
    """Return the folders of the package, so many levels below the top, then the others."""
    entries: list[str] = []
    for name in PACKAGE:
        entries.extend(entries_of(name, depth))
    for name, comment in OTHER_FOLDERS.items():
        entries.append(entry(f"{name}/", 0, comment))
    return "".join(entries)


def modules() -> str:
    """Return a table of its modules for each folder of the package."""
    tables: list[str] = []
    for name in PACKAGE:
        for folder in [ROOT / name, *sorted((ROOT / name).rglob("*/"))]:
            rows = [
                f"| `{module.name}` | {first_sentence(module)} |\n"
                for module in sorted(folder.glob("*.py"))
                if module.name != "__init__.py"
            ]
            if rows:
                heading = folder.relative_to(ROOT).as_posix()
                tables.append(f"\n### {heading}\n\n| module | contents |\n|---|---|\n")
                tables.extend(rows)
    return "".join(tables) + "\n"


def page_with_tree(page: Path) -> str:
    """Return a page's text with the tree, and the modules, as they are now."""
    text = replaced(page.read_text(encoding="utf-8"), BEGIN, tree(DEPTHS[page]), END)
    if page == FOLDERS_PAGE:
        text = replaced(text, BEGIN_MODULES, modules(), END_MODULES)
    return text


def replaced(text: str, begin: str, middle: str, end: str) -> str:
    """Return a text with another part between two marks."""
    before, rest = text.split(begin)
    return before + begin + middle + end + rest.split(end)[1]


def entries_of(name: str, depth: int) -> Iterator[str]:
    """Return the entries of a folder of the package: itself, and the packages in it."""
    folder = ROOT / name
    yield entry(f"{name}/", 0, first_sentence(folder / "__init__.py"))
    for inner in sorted(folder.glob("*/__init__.py")) if depth else ():
        yield entry(f"{inner.parent.name}/", 1, first_sentence(inner))


def entry(name: str, depth: int, comment: str) -> str:
    """Return an entry of the tree, whose comment may take several lines."""
    label = f"{'  ' * depth + name:<{COLUMN}} "
    lines = textwrap.wrap(comment, WIDTH, initial_indent=label, subsequent_indent=" " * len(label))
    return "\n".join(lines) + "\n"


def first_sentence(path: Path) -> str:
    """Return the first paragraph of a module's docstring, in one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split()).rstrip(".")


if __name__ == "__main__":
    for page in DEPTHS:
        page.write_text(page_with_tree(page), encoding="utf-8")
