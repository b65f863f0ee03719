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
from lightrainer.facade.parser.argument_parser import argument_group_of

PAGE = Path(__file__).resolve().parents[1] / "reference" / "arguments.md"
INTRODUCTION = """\
# Training arguments

The arguments of `TrainingArguments`, by concern; the last table has those that
`Seq2SeqTrainingArguments` adds. The column "in Lightning" names the setting of Lightning, or of
lightrainer where Lightning has none. `python -m lightrainer plan --bf16 ...` shows it for one set
of arguments.

Nothing is ignored, and all errors are raised before anything is written. Unknown names raise a
`TypeError`. Otherwise all invalid values and combinations are reported in one error, and after
these all unsupported values in one `NotImplementedError`.

This page is generated: `python docs/scripts/arguments_table.py`.
"""
HEAD = "| argument | default | effect | in Lightning |\n|---|---|---|---|\n"


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
    maps_to = ARGUMENTS[item.name].maps_to
    cells = (f"`{item.name}`", default(item), item.metadata["help"], maps_to)
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |\n"


def default(item: dataclasses.Field[Any]) -> str:
    """Return the default, as a user would write it."""
    value = item.default_factory() if callable(item.default_factory) else item.default
    return f"`{getattr(value, 'value', value)!r}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
