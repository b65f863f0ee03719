"""Files, classes and their members that pages about the code name are in the code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("package", "facade", "lightning_modules", "callbacks")
MODULES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
SOURCES = [path.read_text(encoding="utf-8") for path in MODULES]
PAGES = ("architecture", "components", "processes", "interception", "trials", "decisions")
# Names of libraries that the code does not use.
FOREIGN = {"ShardedGradScaler", "ShardedTensor"}


def is_in_code(pattern):
    expression = re.compile(pattern, re.MULTILINE)
    return any(expression.search(source) for source in SOURCES)


def is_file(name):
    folders = [ROOT / name, *(path for path in MODULES if f"/{path}".endswith(f"/{name}"))]
    return any(path.is_file() for path in folders)


def missing_names(text):
    """Return the names in a page's code quotes that the code does not have."""
    missing = []
    for name in set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))):
        is_module = re.fullmatch(r"[\w/]+\.py", name)
        member = re.fullmatch(r"([A-Z]\w+)\.(\w+)", name)
        is_class = re.fullmatch(r"[A-Z][a-z]+[A-Z]\w+", name)
        exists = True
        if is_module:
            exists = is_file(name)
        elif member:
            # A member may be inherited, so it is looked for in all classes.
            defined = rf"def {member[2]}\b|^\s+(self\.)?{member[2]}(:| =)|\.{member[2]}\("
            exists = is_in_code(rf"\b{member[1]}\b") and is_in_code(defined)
        elif is_class:
            exists = name in FOREIGN or is_in_code(rf"\b{name}\b")
        if not exists:
            missing.append(name)
    return missing


@pytest.mark.parametrize("page", PAGES)
def test_develop_page_names_what_the_code_has(page):
    text = (ROOT / "docs" / "develop" / f"{page}.md").read_text(encoding="utf-8")
    assert missing_names(text) == []


def test_develop_page_check_finds_a_fault():
    text = "`facade/no_such_file.py`, `Strategy.no_such_method`, `NoSuchClass`, `Strategy.wrap`"
    assert len(missing_names(text)) == 3
