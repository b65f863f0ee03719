"""Code of the package that only runs on CUDA, and the stage or test that runs it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from .page import PAGE

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("package", "facade", "lightning_modules", "callbacks")
MARKS = {"is_pinned", "is_cuda", "non_blocking", "pin_memory", "Stream", "GradScaler"}
TEXTS = {"cuda", "nccl"}

ROW = re.compile(r"^\| `(\S+::\S+)` \| .+ \| (.+) \|$", re.MULTILINE)


def listed() -> dict[str, str]:
    """Return what shows each function, by `path::name`, as the page says."""
    return dict(ROW.findall(PAGE.read_text(encoding="utf-8")))


def found() -> set[str]:
    """Return the functions that speak of CUDA, as `path::name`."""
    return {
        f"{path.relative_to(ROOT)}::{name}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in _functions(ast.parse(path.read_text(encoding="utf-8")), "")
    }


def _functions(node: ast.AST, name: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            inner = f"{name}.{child.name}".lstrip(".")
        elif _speaks_of_cuda(child):
            yield name or "module"
        yield from _functions(child, inner)


def _speaks_of_cuda(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        of_torch = (
            node.attr == "cuda" and isinstance(node.value, ast.Name) and node.value.id == "torch"
        )
        return of_torch or node.attr in MARKS
    if isinstance(node, ast.keyword):
        return node.arg in MARKS
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in TEXTS
