"""A comparison for a terminal of 80 columns."""

from __future__ import annotations

import os
import textwrap
from typing import Any

from .differences import Difference
from .verdict import Verdict, shown, size_of

_WIDTH = 79
_MOST = 12
"""Lines of differences; the page has more."""


def render(verdict: Verdict, page: str) -> str:
    """Show a comparison.

    Args:
        verdict: what it came to.
        page: where the HTML page is.
    """
    parts = [_sides(verdict), _counts(verdict)]
    if verdict.known:
        parts.append(_known(verdict))
    if verdict.unexplained:
        parts.append(_unexplained(verdict.unexplained))
    return "\n\n".join([*parts, f"{_wrapped(verdict.conclusion())}\nPage: {os.path.relpath(page)}\n"])


def _sides(verdict: Verdict) -> str:
    rows: list[Any] = [("", "version", "wall time", "memory, peak")]
    if any(side.device_peak_bytes for side in verdict.sides):
        rows[0] = (*rows[0], "GPU, peak")
    for side in verdict.sides:
        row = (side.run.side, side.version, f"{side.run.seconds:.1f} s", size_of(side.peak_bytes))
        rows.append((*row, size_of(side.device_peak_bytes))[: len(rows[0])])
    return _table(rows, left=2)


def _counts(verdict: Verdict) -> str:
    rows: list[Any] = [("", "compared", "equal", "known", "unexplained", "largest diff.")]
    for row in verdict.rows():
        largest = f"{row['largest']:.1e}" if row["largest"] else "-"
        numbers = [row[name] for name in ("compared", "equal", "known", "unexplained")]
        rows.append((row["what"], *numbers, largest))
    return _table(rows)


def _known(verdict: Verdict) -> str:
    lines = ["Known differences:"]
    for known, differences in verdict.known.values():
        count = len(differences)
        lines.append(_wrapped(f"- {known.name} ({count} value{'s' * (count > 1)}): {known.why}.", "  "))
        if known.remedy:
            lines.append(_wrapped(f"  To be sure, {known.remedy}.", "  "))
    return "\n".join(lines)


def _unexplained(differences: list[Difference]) -> str:
    rows = [("", "reference", "lightrainer", "difference")]
    rows += [(_short(one.name), *_values(one)) for one in differences[:_MOST]]
    more = f"\n... and {len(differences) - _MOST} more" if len(differences) > _MOST else ""
    return "Unexplained differences:\n" + _table(rows) + more


def _values(one: Difference) -> tuple[str, str, str]:
    """What the sides have, and how far apart it is."""
    if one.only_in:
        has = {"reference": ("there", "-"), "lightrainer": ("-", "there")}[one.only_in]
        return (*has, "")
    size = "" if one.size is None else f"{one.size:.1e}"
    return shown(one.reference)[:14], shown(one.lightrainer)[:14], size


def _short(name: str) -> str:
    """The end of a long name, which tells more than its beginning."""
    return name if len(name) <= 34 else f"...{name[-31:]}"


def _table(rows: list[Any], left: int = 1) -> str:
    """Columns beside one another; the first ones flush left, numbers flush right."""
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            str(cell).ljust(width) if column < left else str(cell).rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)
