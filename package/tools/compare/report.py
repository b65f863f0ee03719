"""The result of a comparison, for the terminal and as JSON."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from ..command_line import table
from .differences import Comparison, Difference
from .findings import Findings

_WIDTH = 79
_MAX_DIFFERENCES = 12
"""How many differences the text shows; `comparison.json` has all of them."""
_MAX_NAME_LENGTH = 34
_MAX_VALUE_LENGTH = 14
_REASONS = {
    "gradient_accumulation_steps": (
        "transformers before 5.10 divides the loss twice, so its gradients are too small by this "
        "factor; if a model returns a mean, transformers logs the sum. Compare with 1 and a larger "
        "batch."
    ),
    "label_smoothing_factor": (
        "under accumulation transformers takes the mean of the batches' means, lightrainer the "
        "mean over all tokens of a step."
    ),
    "fp16": "on the CPU transformers trains in float32 without a warning.",
    "load_best_model_at_end": (
        "with save_strategy='best' transformers before 5.23 forgets the best checkpoint, and loads "
        "nothing."
    ),
    "resume_from_checkpoint": (
        "transformers before 5.23 divides train_loss since the resumption by the number of all "
        "steps."
    ),
    "world_size": (
        "for the steps since the last log the train_loss of transformers is that of one process."
    ),
    "auto_find_batch_size": (
        "transformers continues with the weights of the failed attempt, lightrainer starts again."
    ),
    "disable_tqdm": "transformers leaves total_flos out of the metrics of train.",
}
"""Reasons for differences, by the argument that has to be set."""


def as_text(sides: Sequence[Findings], comparisons: Sequence[Comparison]) -> str:
    """Format a comparison for a terminal of 80 columns."""
    versions = [("", "version", "wall time")]
    for side in sides:
        versions.append((side.run.side, side.version, f"{side.run.seconds:.1f} s"))
    counts: list[tuple[object, ...]] = [("", "compared", "equal", "largest diff.")]
    for row in _rows(comparisons):
        largest = f"{row['largest']:.1e}" if row["largest"] else "-"
        counts.append((row["what"], row["compared"], row["equal"], largest))
    parts = ["\n".join(table(versions, left=2)), "\n".join(table(counts))]

    differences = _all_differences(comparisons)
    if differences:
        parts += [_format_differences(differences), *_possible_reasons(sides[0].arguments)]
        parts.append(
            textwrap.fill(
                "Does the script use random numbers without a seed? Then two runs with "
                "transformers differ as well.",
                _WIDTH,
            )
        )
    else:
        parts.append("Nothing differs.")
    return "\n\n".join(parts)


def as_dict(sides: Sequence[Findings], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the content of `comparison.json`."""
    differences = []
    for difference in _all_differences(comparisons):
        entry = {
            "what": difference.group,
            "name": difference.name,
            "reference": _format_value(difference.reference),
            "lightrainer": _format_value(difference.lightrainer),
            "largest": difference.size,
        }
        differences.append(entry)
    return {
        "compared": _rows(comparisons),
        "differences": differences,
        "sides": [
            {"version": side.version, "seconds": round(side.run.seconds, 2)} for side in sides
        ],
    }


def _rows(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the counts and the largest difference for each kind of value."""
    rows = []
    for comparison in comparisons:
        sizes = [difference.size or 0.0 for difference in comparison.differences]
        row = {
            "what": comparison.group,
            "compared": comparison.count,
            "equal": comparison.count - len(comparison.differences),
            "largest": max(sizes, default=0.0),
        }
        rows.append(row)
    return rows


def _all_differences(comparisons: Sequence[Comparison]) -> list[Difference]:
    differences: list[Difference] = []
    for comparison in comparisons:
        differences += comparison.differences
    return differences


def _format_differences(differences: Sequence[Difference]) -> str:
    rows = [("", "reference", "lightrainer", "difference")]
    for difference in differences[:_MAX_DIFFERENCES]:
        # The end of a name says more than its start.
        name = difference.name
        if len(name) > _MAX_NAME_LENGTH:
            name = f"...{name[3 - _MAX_NAME_LENGTH :]}"
        reference = _format_value(difference.reference)[:_MAX_VALUE_LENGTH]
        lightrainer = _format_value(difference.lightrainer)[:_MAX_VALUE_LENGTH]
        size = "" if difference.size is None else f"{difference.size:.1e}"
        rows.append((name, reference, lightrainer, size))

    lines = ["Differences:", *table(rows)]
    if len(differences) > _MAX_DIFFERENCES:
        lines.append(f"... and {len(differences) - _MAX_DIFFERENCES} more")
    return "\n".join(lines)


def _possible_reasons(arguments: dict[str, Any]) -> list[str]:
    """Return known differences that may be the reason, for arguments that are set."""
    lines = []
    for name, reason in _REASONS.items():
        value = arguments.get(name)
        is_set = value is True or value not in (None, False, 0, 1)
        if is_set:
            lines.append(
                textwrap.fill(f"- {name}={value}: {reason}", _WIDTH, subsequent_indent="  ")
            )
    if not lines:
        return []
    return ["\n".join(["Possible reasons (docs/user/migrate.md has all of them):", *lines])]


def _format_value(value: object) -> str:
    """Format a number, text or tensor; None if the side does not have it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.8g}"
    return textwrap.shorten(str(value), 60, placeholder="...")
