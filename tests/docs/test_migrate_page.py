"""The page about scripts of transformers says what the code does."""

from pathlib import Path

from lightrainer.interception.names import SERVED

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "user" / "migrate.md").read_text(encoding="utf-8")


def test_migrate_page_names_every_served_module():
    for module in SERVED:
        assert f"`.{module}`" in PAGE or f"`transformers.{module}`" in PAGE
