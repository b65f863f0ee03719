"""Every promise of README and differences.md has a row in the table, the sentences that guides
promise stand there, and every test that is named exists.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from helpers.promises.guide_promises import NO_PROMISES, guide_promises, promises_in
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


def exists(node: str) -> bool:
    """Return whether a file has the test of a node id."""
    file, _, name = node.partition("::")
    return (ROOT / file).is_file() and name in functions_in(file)


def sentences_missing(promises: dict[str, list[str]], page: str) -> list[str]:
    """Return the sentences that do not stand on a page, whatever its line breaks."""
    text = " ".join(page.split())
    return [sentence for sentence in promises if sentence not in text]


ALL_ROWS = [row for page in PAGES for row in rows(page)]
GUIDES = guide_promises()


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
    assert exists(node)


@pytest.mark.parametrize("page", GUIDES)
def test_guide_promises_stand_on_their_page(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    missing = sentences_missing(GUIDES[page], text)
    assert missing == [], (
        f"docs/{page} lacks these sentences of tests/helpers/promises/guides: {missing}"
    )


@pytest.mark.parametrize("page", GUIDES)
def test_guide_promises_name_existing_tests(page):
    tests = [test for named in GUIDES[page].values() for test in named]
    assert all(GUIDES[page].values()), "a sentence without a test"
    missing = [test for test in tests if not exists(test)]
    assert missing == [], f"tests/helpers/promises/guides names tests that do not exist: {missing}"


def test_guide_promises_have_every_guide():
    guides = {
        page.relative_to(ROOT / "docs").as_posix()
        for folder in ("start", "user")
        for page in (ROOT / "docs" / folder).glob("*.md")
    }
    assert set(GUIDES) == guides - NO_PROMISES - {"user/differences.md"}
    assert sum(len(promises) for promises in GUIDES.values()) > 500


def test_guide_promises_check_finds_a_changed_sentence():
    """Negative control."""
    promises = promises_in(
        "It is\nexact.\n    tests/a.py::test_a\n\nIt is quick.\n    tests/b.py::b\n"
    )
    assert promises == {"It is exact.": ["tests/a.py::test_a"], "It is quick.": ["tests/b.py::b"]}
    assert sentences_missing(promises, "It\nis exact. It is slow.") == ["It is quick."]
    assert not exists("tests/a.py::test_a")


def test_pages_have_their_tables():
    """The reader of the tables finds the rows of both."""
    assert len(rows("README.md")) >= 6
    assert len(rows("docs/user/differences.md")) >= 30
