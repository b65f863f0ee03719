"""Write the tables of training arguments into docs/reference:
`python docs/scripts/arguments_table.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightrainer import Seq2SeqTrainingArguments
from lightrainer.facade.arguments.fields import ARGUMENTS
from lightrainer.facade.parser.help_formatter import argument_group_of

PAGE = Path(__file__).resolve().parents[1] / "reference" / "arguments.md"
INTRODUCTION = """\
# Training arguments

All of `TrainingArguments`, by concern, as in `facade/arguments/`, and what
`Seq2SeqTrainingArguments` adds (the last table): what each does, and what it becomes in Lightning,
or in lightrainer where Lightning has no such thing. For one set of arguments `python -m lightrainer
plan --bf16 ...` shows it.

Nothing is ignored, and all errors are raised before anything is written: names that do not
exist in a `TypeError`; if there are none, all invalid values and combinations in one error; if
there are none either, all unsupported values in one `NotImplementedError`.

This page is generated: `python docs/scripts/arguments_table.py`.
"""
HEAD = "| argument | default | what it does | what it becomes |\n|---|---|---|---|\n"


def page() -> str:
    """Return the whole page."""
    return "".join([INTRODUCTION, *sections(Seq2SeqTrainingArguments)])


def sections(kind: type[Seq2SeqTrainingArguments]) -> Iterator[str]:
    """Return one section for each concern: its heading, what it holds, its table."""
    rows: dict[tuple[str, str], list[str]] = {}
    for item in dataclasses.fields(kind):
        rows.setdefault(argument_group_of(kind, item.name) or ("more", ""), []).append(row(item))
    for (name, sentence), lines in rows.items():
        yield f"\n## {name}\n\n{sentence}\n\n{HEAD}{''.join(lines)}"


def row(item: dataclasses.Field[Any]) -> str:
    """Return one line of a table."""
    becomes = ARGUMENTS[item.name].becomes
    cells = (f"`{item.name}`", default(item), item.metadata["help"], becomes)
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |\n"


def default(item: dataclasses.Field[Any]) -> str:
    """Return the default, as a user would write it."""
    value = item.default_factory() if callable(item.default_factory) else item.default
    return f"`{getattr(value, 'value', value)!r}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
