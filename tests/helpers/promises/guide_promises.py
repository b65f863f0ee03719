"""Which tests show what the guides promise: the files in `guides`, one for each page.

A row is a sentence, or a part of one, as it stands on the page; the indented lines below it name
its tests. Rows are separated by empty lines, and are in the order of the page.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "guides"
NO_PROMISES = {"start/glossary.md"}
"""Pages that only explain. The rows of `user/differences.md` are in `promise_table.py`."""


def guide_promises() -> dict[str, dict[str, list[str]]]:
    """Return the tests of each sentence, as node ids without parameters, for each page."""
    pages: dict[str, dict[str, list[str]]] = {}
    for file in sorted(FOLDER.rglob("*.txt")):
        name = file.relative_to(FOLDER).with_suffix(".md").as_posix()
        pages[name] = promises_in(file.read_text(encoding="utf-8"))
    return pages


def promises_in(text: str) -> dict[str, list[str]]:
    """Return the tests of each sentence in the text of a file."""
    promises: dict[str, list[str]] = {}
    for row in text.strip().split("\n\n"):
        lines = row.splitlines()
        sentence = " ".join(line for line in lines if not line.startswith(" "))
        promises[sentence] = [line.strip() for line in lines if line.startswith(" ")]
    return promises
