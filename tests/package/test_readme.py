"""The README's tree is that of the folders that are there."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_tree_is_up_to_date():
    """`python docs/scripts/readme_tree.py` writes it."""
    spec = importlib.util.spec_from_file_location("readme_tree", ROOT / "docs" / "scripts" / "readme_tree.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert (ROOT / "README.md").read_text(encoding="utf-8") == tool.readme_with_tree()
    assert "  trainer/" in tool.tree()
