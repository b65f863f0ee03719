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
CONCERNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "run": ("Length of the training, batch size, output folder.", ("RunArguments",)),
    "optimization": (
        "The optimizer, its learning rate, and the gradients.",
        ("OptimizationArguments", "RuleArguments"),
    ),
    "precision": (
        "The number formats that the model computes in.",
        ("PrecisionArguments", "OwnPrecisionArguments"),
    ),
    "execution": (
        "Activation checkpointing, compilation, kernels.",
        ("ExecutionArguments", "LaterExecutionArguments"),
    ),
    "reporting": (
        "Logs: contents, intervals, trackers.",
        ("ReportingArguments", "LaterReportingArguments", "OwnReportingArguments"),
    ),
    "evaluation": (
        "Evaluation: intervals, batches, inputs of the metrics.",
        ("EvaluationArguments",),
    ),
    "saving": (
        "Checkpoints: intervals, contents, and resuming.",
        ("SavingArguments", "CheckpointUseArguments"),
    ),
    "hub": ("Uploading to the Hugging Face Hub.", ("HubArguments",)),
    "platform": ("Random seeds and the device.", ("PlatformArguments",)),
    "data": (
        "Reading samples and batching them.",
        ("DataArguments", "LaterDataArguments", "OwnDataArguments"),
    ),
    "distributed": (
        "Training in several processes.",
        ("DistributedArguments", "LaterDistributedArguments"),
    ),
    "script": (
        "Diagnostics, flags for scripts to read, and names kept for older scripts.",
        ("ScriptArguments",),
    ),
    "generation": (
        "Generation in evaluation, for sequence-to-sequence models.",
        ("GenerationArguments",),
    ),
}
"""The headings that fields stand under: what they hold, and the classes that declare it."""
HEAD = "| argument | default | effect | in Lightning |\n|---|---|---|---|\n"


def page() -> str:
    """Return the whole page."""
    return "".join([INTRODUCTION, *sections(Seq2SeqTrainingArguments)])


def sections(kind: type[Seq2SeqTrainingArguments]) -> Iterator[str]:
    """Return one section for each concern: its heading, what it holds, its table."""
    rows: dict[tuple[str, str], list[str]] = {}
    for item in dataclasses.fields(kind):
        rows.setdefault(argument_group_of(kind, item.name), []).append(row(item))
    for (name, sentence), lines in rows.items():
        yield f"\n## {name}\n\n{sentence}\n\n{HEAD}{''.join(lines)}"


def argument_group_of(dataclass_type: type, field_name: str) -> tuple[str, str]:
    """Return title and description of the heading of a training argument.

    Both follow from the class that declares the field first: a subclass may change its default.

    Args:
        dataclass_type: the training arguments, or a subclass.
        field_name: one of the fields.

    Raises:
        KeyError: the class that declares it has no heading.
    """
    # The last class of the MRO that has the field declared it.
    declaring_class = dataclass_type
    for base in dataclass_type.__mro__:
        if field_name in getattr(base, "__dataclass_fields__", ()):
            declaring_class = base

    for title, (description, classes) in CONCERNS.items():
        if declaring_class.__name__ in classes:
            return title, description
    raise KeyError(field_name)


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
