"""Format the result of a comparison for the terminal, and as JSON."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from ..command_line import table
from .differences import Comparison, Difference
from .results import Results

_MAX_DIFFERENCES = 12
"""Number of differences that the terminal shows; `comparison.json` lists all of them."""
_MAX_NAME_LENGTH = 34
_MAX_VALUE_LENGTH = 14
_ADVICE = """\
docs/user/migrate.md lists the intended differences. If the script uses random
numbers without a seed, two runs with transformers differ as well."""


def as_text(sides: Sequence[Results], comparisons: Sequence[Comparison]) -> str:
    """Format a comparison for a terminal of 80 columns."""
    versions = [("", "version", "wall time")]
    for side in sides:
        versions.append((side.run.side, side.version, f"{side.run.seconds:.1f} s"))
    counts = [("", "compared", "equal", "largest diff.")]
    differences: list[Difference] = []
    for comparison in comparisons:
        equal = comparison.count - len(comparison.differences)
        largest = "-"
        size = _largest_size(comparison)
        if size > 0:
            largest = f"{size:.1e}"
        counts.append((comparison.group, str(comparison.count), str(equal), largest))
        differences += comparison.differences

    parts = [table(versions, left_aligned=2), table(counts)]
    if differences:
        parts.append(_format_differences(differences))
        parts.append([_ADVICE])
    else:
        parts.append(["Nothing differs."])

    # The parts are separated by empty lines.
    texts = ["\n".join(lines) for lines in parts]
    return "\n\n".join(texts)


def _format_differences(differences: Sequence[Difference]) -> list[str]:
    """Return lines with the first differences."""
    rows = [("", "reference", "lightrainer", "difference")]
    for difference in differences[:_MAX_DIFFERENCES]:
        # Cut a long name at its start, because many names start with the same words.
        name = difference.name
        if len(name) > _MAX_NAME_LENGTH:
            name = f"...{name[3 - _MAX_NAME_LENGTH :]}"
        reference = _format_value(difference.reference)[:_MAX_VALUE_LENGTH]
        lightrainer = _format_value(difference.lightrainer)[:_MAX_VALUE_LENGTH]
        size = ""
        if difference.size is not None:
            size = f"{difference.size:.1e}"
        rows.append((name, reference, lightrainer, size))

    lines = table(rows)
    not_shown = len(differences) - _MAX_DIFFERENCES
    if not_shown > 0:
        lines.append(f"... and {not_shown} more")
    return lines


def as_dict(sides: Sequence[Results], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the content of `comparison.json`."""
    compared = []
    differences = []
    for comparison in comparisons:
        compared.append(
            {
                "what": comparison.group,
                "compared": comparison.count,
                "equal": comparison.count - len(comparison.differences),
                "largest": _largest_size(comparison),
            }
        )
        for difference in comparison.differences:
            differences.append(
                {
                    "what": comparison.group,
                    "name": difference.name,
                    "reference": _format_value(difference.reference),
                    "lightrainer": _format_value(difference.lightrainer),
                    "largest": difference.size,
                }
            )

    versions = []
    for side in sides:
        versions.append({"version": side.version, "seconds": round(side.run.seconds, 2)})
    return {"compared": compared, "differences": differences, "sides": versions}


def _largest_size(comparison: Comparison) -> float:
    """Return the largest absolute difference of numbers."""
    return max((difference.size or 0.0 for difference in comparison.differences), default=0.0)


def _format_value(value: object) -> str:
    """Format a number, tensor or text in a few characters."""
    if isinstance(value, float):
        return f"{value:.8g}"
    if hasattr(value, "shape"):
        return "tensor"
    return textwrap.shorten(str(value), 60, placeholder="...")
