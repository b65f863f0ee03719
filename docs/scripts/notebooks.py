"""Write the notebooks of the tutorials from their pages: `python docs/scripts/notebooks.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

START = Path(__file__).resolve().parents[1] / "start"
TUTORIALS = ("first-training", "fine-tuning", "lightning", "sweeps")
BLOCK = re.compile(r"^(?:<!-- run: [^\n]* -->\n)?```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w-]+\.\w+)\n")
DOWNLOAD = re.compile(r"\[Download this page as a notebook\]\([^)]*\)\.\n\n")


def notebook(name: str) -> str:
    """Return the notebook of a tutorial, as JSON.

    Python runs in the notebook, bash in a shell, and a block that begins with the name of a file
    writes that file. What a page shows as output is left out: running the notebook gives it.
    """
    page = DOWNLOAD.sub("", (START / f"{name}.md").read_text(encoding="utf-8"))
    cells: list[dict[str, Any]] = []
    end = 0
    for block in BLOCK.finditer(page):
        add_text(cells, page[end : block.start()])
        end = block.end()
        language, code = block.groups()
        if language == "output":
            continue
        file_name = FILE_NAME.match(code)
        if file_name is not None:
            code = f"%%writefile {file_name[1]}\n{code}"
        elif language == "bash":
            code = f"%%bash\n{code}"
        add(cells, "code", code, execution_count=None, outputs=[])
    add_text(cells, page[end:])
    content = {
        "cells": cells,
        "metadata": {"language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1) + "\n"


def add_text(cells: list[dict[str, Any]], text: str) -> None:
    """Add a cell of text, unless it is empty."""
    if text.strip():
        add(cells, "markdown", text)


def add(cells: list[dict[str, Any]], kind: str, source: str, **fields: Any) -> None:
    """Add a cell; its number is its identity, so that the file changes with the page only."""
    lines = source.strip("\n").splitlines(keepends=True)
    identity = f"cell-{len(cells)}"
    cells.append({"cell_type": kind, "id": identity, "metadata": {}, "source": lines, **fields})


if __name__ == "__main__":
    for tutorial in TUTORIALS:
        path = START / f"{tutorial}.ipynb"
        path.write_text(notebook(tutorial), encoding="utf-8")
