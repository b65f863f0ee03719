"""The table of the training arguments is that of the code, and what it speaks of exists."""

import dataclasses
import importlib.util
from pathlib import Path

import pytest

import lightrainer
from lightrainer.facade.arguments.fields import ARGUMENTS

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {item.name: item for item in dataclasses.fields(lightrainer.Seq2SeqTrainingArguments)}


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location(
        "arguments_table", ROOT / "docs" / "scripts" / "arguments_table.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_arguments_page_is_up_to_date(tool):
    """`python docs/scripts/arguments_table.py` writes it."""
    assert (ROOT / "docs" / "reference" / "arguments.md").read_text(encoding="utf-8") == tool.page()


def test_arguments_page_shows_every_counterpart():
    assert [
        name
        for name in FIELDS
        if len(ARGUMENTS[name].maps_to) < 6 or ARGUMENTS[name].maps_to.endswith(".")
    ] == []
