"""Each change between the two versions of transformers that are installed has a row in
docs/develop/followed.md.
"""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEWEST = Path(sys.prefix) / "newest" / "transformers"
needs_newest = pytest.mark.skipif(
    not NEWEST.is_dir(), reason="the newest transformers is not installed separately; run `make`"
)


@pytest.fixture
def follow():
    spec = importlib.util.spec_from_file_location("follow", ROOT / "docs" / "scripts" / "follow.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def older():
    return Path(importlib.util.find_spec("transformers").origin).parent


@needs_newest
def test_follow_has_exactly_a_row_per_change(follow, older):
    (info,) = NEWEST.parent.glob("transformers-*.dist-info")
    assert (
        follow.nameless(older, NEWEST, "5.3.0", info.name.split("-")[1].removesuffix(".dist")) == []
    )


@needs_newest
def test_rows_count_for_a_part_of_the_way_that_they_describe(follow, older):
    assert (
        follow.nameless(older, NEWEST, "5.3.0", "5.20.2")
        == follow.nameless(older, NEWEST, "5.10.1", "5.24.0")
        == []
    )


def test_follow_names_a_row_without_a_reason(follow):
    open_rows = (
        "| changed | what | why |\n|---|---|---|\n| `a.b` | new |\n| `a.c` | new | |\n| `a.d` | "
        "new | torch |\n"
    )
    assert list(follow.unexplained(f"Open:\n\n{open_rows}")) == ["`a.b`", "`a.c`"]
    assert list(follow.unexplained(follow.PAGE.read_text(encoding="utf-8"))) == []


def test_followed_changes_name_existing_tests(follow):
    page = follow.PAGE.read_text(encoding="utf-8")
    version_behavior = page[page.index("Followed:") : page.index("Not needed:")]
    named = re.findall(r"`(tests/[^`:]+)(?:::(\w+))?`", version_behavior)
    assert len(named) >= version_behavior.count("\n| `")
    for file, test in named:
        assert test, f"{file} is named without a test"
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")
