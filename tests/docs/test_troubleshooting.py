"""The messages on the page of troubleshooting are those of the code."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "start" / "troubleshooting.md").read_text(encoding="utf-8")
OWN, _, OTHERS = PAGE.partition("## Messages of torch and others")
FIRST_CELL = re.compile(r"^\| (`.*?) \|", re.MULTILINE)
MESSAGES = FIRST_CELL.findall(OWN)


@cache
def texts() -> list[str]:
    """Return the texts in the code, with `\\0` where a value is filled in."""
    strings = []
    for folder in ("package", "facade", "lightning_modules", "callbacks"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant | ast.JoinedStr):
                    strings.append(text_of(node))
    return strings


def text_of(node: ast.AST) -> str:
    """Return the text of a literal."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    return "\0"


def is_in_the_code(message: str) -> bool:
    """Whether all parts of a message, between `...`, are in texts of the code."""
    parts = [
        part.strip(" ,.;:()=")
        for piece in re.findall("`+(.*?)`+", message)
        for part in piece.split("...")
    ]
    return all(any(part in text for text in texts()) for part in parts if len(part) > 3)


@pytest.mark.parametrize("message", MESSAGES)
def test_message_is_in_the_code(message):
    assert is_in_the_code(message)


def test_troubleshooting_check_finds_an_unknown_message():
    """Negative control."""
    assert not is_in_the_code("`The output_dir ... has been eaten by a whale`")


def test_troubleshooting_has_many_rows():
    assert len(MESSAGES) >= 40
    assert len(FIRST_CELL.findall(OTHERS)) >= 8
