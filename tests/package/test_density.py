"""The volume and the density of the code, so that neither grows unnoticed.

A figure is raised only in a commit that says why.
"""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOKENS = {"package": 32_018, "facade": 146_210, "lightning_modules": 166_810, "callbacks": 42_462}
"""Tokens of code, without comments and docstrings."""
A_THOUSAND_LINES = {"packed": 0.5, "conditional": 8.0, "comprehension": 18.5}
"""Packed assignments of several values, conditional expressions and comprehensions."""
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def measured(path: Path) -> Counter:
    """Count tokens, lines with tokens, and the expressions that make code dense."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    counts = Counter()
    docstring_lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstring_lines.update(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            counts["packed"] += isinstance(node.targets[0], ast.Tuple)
        counts["conditional"] += isinstance(node, ast.IfExp)
        counts["comprehension"] += isinstance(node, COMPREHENSIONS)

    code_lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT and token.start[0] not in docstring_lines:
            counts["tokens"] += 1
            code_lines.update(range(token.start[0], token.end[0] + 1))
    counts["lines"] = len(code_lines)
    return counts


@pytest.fixture(scope="module")
def counts_by_folder():
    counts = {}
    for folder in TOKENS:
        counts[folder] = Counter()
        for path in (ROOT / folder).rglob("*.py"):
            counts[folder] += measured(path)
    return counts


@pytest.mark.parametrize("folder", TOKENS)
def test_tokens_of_a_folder(counts_by_folder, folder):
    assert counts_by_folder[folder]["tokens"] <= TOKENS[folder]


def test_tokens_a_line(counts_by_folder):
    counts = sum(counts_by_folder.values(), Counter())
    assert 5 < counts["tokens"] / counts["lines"] <= 7.5


@pytest.mark.parametrize("name", A_THOUSAND_LINES)
def test_expressions_a_thousand_lines(counts_by_folder, name):
    counts = sum(counts_by_folder.values(), Counter())
    assert counts[name] / counts["lines"] * 1000 <= A_THOUSAND_LINES[name]
