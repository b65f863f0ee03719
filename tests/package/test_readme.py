"""The README is short, and the trees of folders are those of the folders that are there."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_readme_trees_are_up_to_date():
    """`python docs/scripts/folder_tree.py` writes them."""
    spec = importlib.util.spec_from_file_location(
        "folder_tree", ROOT / "docs" / "scripts" / "folder_tree.py"
    )
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert len(tool.DEPTHS) == 2
    for page in tool.DEPTHS:
        assert page.read_text(encoding="utf-8") == tool.page_with_tree(page)
    assert "  trainer/" in tool.tree(1)
    assert "  trainer/" not in tool.tree(0)


def test_readme_fits_on_three_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 180
