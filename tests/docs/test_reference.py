"""What guides import is public where they import it from, and is described in the reference."""

import ast
import importlib
import re
from pathlib import Path

import pytest
import yaml

import lightrainer
from helpers.scripts.page_runner import blocks

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GUIDES = [
    ROOT / "README.md",
    *(page for folder in ("start", "user") for page in sorted((DOCS / folder).glob("*.md"))),
]


def imported_names(code):
    """Yield module and name of each import of lightrainer in Python code."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.ImportFrom) or node.level > 0:
            continue
        if (node.module or "").partition(".")[0] == "lightrainer":
            for alias in node.names:
                yield node.module, alias.name


def names_of_guides():
    """Return the imports of all guides, each once, with a page that has it."""
    pages = {}
    for page in GUIDES:
        for block in blocks(page):
            if block.language == "python":
                for name in imported_names(block.code):
                    pages.setdefault(name, page.name)
    return pages


def entries():
    """Return the names that the pages of the reference describe, with their modules."""
    text = "".join(
        page.read_text(encoding="utf-8") for page in sorted((DOCS / "reference").glob("*.md"))
    )
    return re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)


def is_described(module, name, described):
    """Whether the reference has a name, in this module or in a package around it."""
    value = getattr(importlib.import_module(module), name)
    while module:
        if f"{module}.{name}" in described:
            return getattr(importlib.import_module(module), name) is value
        module = module.rpartition(".")[0]
    return False


def test_guides_import_names_that_are_public_there():
    imports = names_of_guides()
    private = [
        f"{page}: from {module} import {name}"
        for (module, name), page in imports.items()
        if name not in getattr(importlib.import_module(module), "__all__", ())
    ]
    assert len(imports) > 40
    assert private == []


def test_reference_lists_every_public_name_that_guides_import():
    described = set(entries())
    modules = {module for module, _ in names_of_guides()}
    assert {"lightrainer", "lightrainer.callbacks", "lightrainer.lightning_modules"} <= modules
    missing = [
        f"{module}.{name}"
        for module in sorted(modules)
        for name in importlib.import_module(module).__all__
        if not is_described(module, name, described)
    ]
    assert missing == []


def test_reference_lists_each_name_once():
    names = entries()
    assert len(names) > 150
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("entry", [one for one in entries() if one.count(".") > 1])
def test_reference_entries_of_subpackages_are_public_there(entry):
    module, _, name = entry.rpartition(".")
    assert name in importlib.import_module(module).__all__
    assert name not in lightrainer.__all__


def test_reference_check_finds_imports_in_every_form():
    """Negative control."""
    code = (
        "if True:\n    from lightrainer.a import (\n        b as c,\n        d,\n    )\nimport os\n"
    )
    assert list(imported_names(code)) == [("lightrainer.a", "b"), ("lightrainer.a", "d")]


def test_reference_check_finds_a_missing_name():
    """Negative control."""
    assert is_described("lightrainer.facade", "Trainer", {"lightrainer.Trainer"})
    assert not is_described("lightrainer.facade", "Trainer", {"lightrainer.Seq2SeqTrainer"})
    assert not is_described("lightrainer.callbacks", "rewrite_logs", {"lightrainer.Trainer"})


def test_reference_shows_forwarded_attributes():
    """What `forwarded` makes has no docstring in the source, from which the reference is read."""
    griffe = pytest.importorskip("griffe")
    extensions = griffe.load_extensions(str(ROOT / "docs" / "scripts" / "forwarded_docs.py"))
    name = "process_view"
    paths = [ROOT / "facade" / "arguments"]
    described = griffe.load(name, search_paths=paths, extensions=extensions)[
        "ProcessView.world_size"
    ]
    plain = griffe.load(name, search_paths=paths)["ProcessView.world_size"]
    assert described.docstring.value == "Number of processes."
    assert plain.docstring is None  # the negative control


def test_reference_shows_each_result_as_one_item():
    """A description of several lines is not one result a line."""
    griffe = pytest.importorskip("griffe")
    text = "Sum.\n\nReturns:\n    Names as in `named()`: all except those of\n    layers.\n"
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (options,) = re.findall(r"docstring_options: (\{.*\})", site)
    _, returns = griffe.Docstring(text).parse("google", **yaml.safe_load(options))
    assert [item.description for item in returns.value] == [
        "Names as in `named()`: all except those of\nlayers."
    ]
