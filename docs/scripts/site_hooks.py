"""Hooks of mkdocs: the README becomes the first page, and the package is laid out as it is
installed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "build" / "docs" / "lightrainer"


def on_files(files: Files, config: Any) -> Files:
    """Add the first page, whose links are those of the README, seen from docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/user\)", "](user/migrate.md)", text)
    files.append(File.generated(config, "index.md", content=re.sub(r"\]\(docs/", "](", text)))
    return files


def on_startup(**_: Any) -> None:
    """Link the folders of the package into one, as pyproject.toml maps them; the API pages are
    read from there.
    """
    PACKAGE.mkdir(parents=True, exist_ok=True)
    folders = [ROOT / name for name in ("facade", "lightning_modules", "callbacks")]
    for source in [*(ROOT / "package").iterdir(), *folders]:
        link = PACKAGE / source.name
        if link.is_symlink():
            link.unlink()
        link.symlink_to(source)
