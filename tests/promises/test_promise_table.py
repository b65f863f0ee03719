"""Every promise of README and differences.md has a row in the table, and every test that it
names exists.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from helpers.promises.promise_table import KINDS, PROMISES

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "## What is better than in transformers",
    "docs/user/differences.md": "# What is better than in transformers",
}
"""Pages, and the heading above the tables of each."""


def rows(page: str) -> list[str]:
    """Return the left cells of the tables under the heading of a page."""
    heading = PAGES[page]
    level = heading.partition(" ")[0]
    section = (ROOT / page).read_text().partition(f"{heading}\n")[2]
    lines = section.partition(f"\n{level} ")[0].splitlines()

    cells = []
    for number, line in enumerate(lines):
        is_header = lines[number + 1 : number + 2] == ["|---|---|"]
        if line.startswith("| ") and not is_header:
            cells.append(line.split("|")[1].strip())
    return cells


@cache
def functions_in(file: str) -> set[str]:
    """Return the names of the test functions of a file, without importing it."""
    tree = ast.parse((ROOT / file).read_text())
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


ALL_ROWS = [row for page in PAGES for row in rows(page)]


@pytest.mark.parametrize("row", ALL_ROWS)
def test_promise_table_has_every_promise(row):
    assert [name for name in PROMISES if row.startswith(name)] != [], (
        "tests/helpers/promises/promise_table.py lacks it"
    )


@pytest.mark.parametrize("name", PROMISES)
def test_promise_table_rows_are_promises_for_all_kinds(name):
    promise = PROMISES[name]
    assert len({row for row in ALL_ROWS if row.startswith(name)}) in (
        1,
        2,
    ), "of each page one at most"
    assert promise.tests.keys() <= set(KINDS)
    assert bool(promise.others) == (set(KINDS) != promise.tests.keys()), (
        "say why the other kinds cannot differ"
    )


@pytest.mark.parametrize(
    "node", sorted({node for promise in PROMISES.values() for node in promise.tests.values()})
)
def test_promise_table_names_existing_tests(node):
    file, _, name = node.partition("::")
    assert (ROOT / file).is_file()
    assert name in functions_in(file)


def test_pages_have_their_tables():
    """The reader of the tables finds the rows of both."""
    assert len(rows("README.md")) >= 6
    assert len(rows("docs/user/differences.md")) >= 30
