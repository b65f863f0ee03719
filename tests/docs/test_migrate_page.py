"""The page about scripts of transformers says what the code does."""

import importlib.util
from pathlib import Path

from lightrainer.interception.names import SERVED

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "user" / "migrate.md").read_text(encoding="utf-8")


def test_migrate_page_tables_equal_the_code():
    spec = importlib.util.spec_from_file_location(
        "old_names_table", DOCS / "scripts" / "old_names_table.py"
    )
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.page(PAGE) == PAGE, "run python docs/scripts/old_names_table.py"
    assert PAGE.count("\n| `") > 35


def test_migrate_page_names_every_served_module():
    for module in SERVED:
        assert f"`.{module}`" in PAGE or f"`transformers.{module}`" in PAGE
