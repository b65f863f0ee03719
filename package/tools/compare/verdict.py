"""The result of a comparison: differences with and without a known reason, and its text."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..command_line import table
from .differences import Comparison, Difference
from .findings import Findings
from .known import Facts, KnownDifference, find_reason

_WIDTH = 79
_MAX_UNEXPLAINED = 12
"""How many unexplained differences the text shows; `comparison.json` has all of them."""
_MAX_NAME_LENGTH = 34
_MAX_VALUE_LENGTH = 14
_MAX_TEXT_LENGTH = 60


@dataclass(kw_only=True)
class Verdict:
    """The two sides, and all values in which they differ."""

    script: str
    script_arguments: list[str]
    reference: Findings
    lightrainer: Findings
    comparisons: list[Comparison]
    tolerance: float = 0.0
    is_deterministic: bool | None = None
    """Whether a second run of the reference equals the first one; None without a second run."""

    @property
    def sides(self) -> tuple[Findings, Findings]:
        """Return the side of transformers and that of lightrainer."""
        return self.reference, self.lightrainer

    @cached_property
    def reasons(self) -> list[tuple[Difference, KnownDifference | None]]:
        """Return each difference with its reason, None if that is unknown."""
        facts: Facts = {**self.reference.arguments, "version": self.reference.version}
        facts["gradient_norms"] = (self.reference.gradient_norm, self.lightrainer.gradient_norm)
        reasons = []
        for comparison in self.comparisons:
            for difference in comparison.differences:
                reasons.append((difference, find_reason(difference, facts)))
        return reasons

    @property
    def known(self) -> dict[str, tuple[KnownDifference, list[Difference]]]:
        """Return each reason, by its name, with its differences."""
        by_name: dict[str, tuple[KnownDifference, list[Difference]]] = {}
        for difference, known in self.reasons:
            if known is not None:
                _, differences = by_name.setdefault(known.name, (known, []))
                differences.append(difference)
        return by_name

    @property
    def unexplained(self) -> list[Difference]:
        """Return the differences without a known reason."""
        return [difference for difference, known in self.reasons if known is None]

    def rows(self) -> list[dict[str, Any]]:
        """Return the counts and the largest difference for each kind of value."""
        # Differences contain tensors and lists, which cannot be hashed.
        unexplained_ids = {id(difference) for difference in self.unexplained}
        rows = []
        for comparison in self.comparisons:
            unexplained = 0
            largest = 0.0
            for difference in comparison.differences:
                if id(difference) in unexplained_ids:
                    unexplained += 1
                if difference.size is not None:
                    largest = max(largest, difference.size)
            differing = len(comparison.differences)
            row = {
                "what": comparison.group,
                "compared": comparison.count,
                "equal": comparison.count - differing,
                "known": differing - unexplained,
                "unexplained": unexplained,
                "largest": largest,
            }
            rows.append(row)
        return rows

    def conclusion(self) -> str:
        """Summarize the comparison in a sentence or two."""
        count = len(self.unexplained)
        if count == 0:
            return "Nothing unexplained differs." if self.known else "Nothing differs."
        if self.is_deterministic is None:
            advice = "Is the script deterministic? Add --again to run the reference twice."
        elif self.is_deterministic:
            advice = "A second run of the reference equals the first one."
        else:
            advice = (
                "Two runs of the reference differ as well: the script uses random numbers without "
                "a seed."
            )
        subject = "1 difference has" if count == 1 else f"{count} differences have"
        return f"{subject} no known reason. {advice}"


def format_value(value: Any, missing: str = "-") -> str:
    """Format a value in a few characters.

    Args:
        value: a number, text or tensor; None if the side does not have it.
        missing: the text for None.
    """
    if value is None:
        return missing
    if isinstance(value, float):
        return f"{value:.8g}"
    if hasattr(value, "shape"):
        return f"tensor {list(value.shape)}"
    text = " ".join(str(value).split())
    if len(text) > _MAX_TEXT_LENGTH:
        text = f"{text[: _MAX_TEXT_LENGTH - 3]}..."
    return text


def as_text(verdict: Verdict) -> str:
    """Format a comparison for a terminal of 80 columns."""
    parts = [_format_sides(verdict), _format_counts(verdict)]
    if verdict.known:
        parts.append(_format_known(verdict))
    if verdict.unexplained:
        parts.append(_format_unexplained(verdict.unexplained))
    parts.append(_wrap(verdict.conclusion()))
    return "\n\n".join(parts)


def _format_sides(verdict: Verdict) -> str:
    rows = [("", "version", "wall time")]
    for side in verdict.sides:
        rows.append((side.run.side, side.version, f"{side.run.seconds:.1f} s"))
    return "\n".join(table(rows, left=2))


def _format_counts(verdict: Verdict) -> str:
    rows: list[tuple[Any, ...]] = [
        ("", "compared", "equal", "known", "unexplained", "largest diff.")
    ]
    for row in verdict.rows():
        counts = [row[name] for name in ("compared", "equal", "known", "unexplained")]
        largest = f"{row['largest']:.1e}" if row["largest"] else "-"
        rows.append((row["what"], *counts, largest))
    return "\n".join(table(rows))


def _format_known(verdict: Verdict) -> str:
    lines = ["Known differences:"]
    for known, differences in verdict.known.values():
        count = len(differences)
        values = "1 value" if count == 1 else f"{count} values"
        lines.append(_wrap(f"- {known.name} ({values}): {known.why}.", "  "))
        if known.remedy:
            lines.append(_wrap(f"  To be sure, {known.remedy}.", "  "))
    return "\n".join(lines)


def _format_unexplained(differences: list[Difference]) -> str:
    rows = [("", "reference", "lightrainer", "difference")]
    for difference in differences[:_MAX_UNEXPLAINED]:
        # The end of a name says more than its start.
        name = difference.name
        if len(name) > _MAX_NAME_LENGTH:
            name = f"...{name[3 - _MAX_NAME_LENGTH :]}"
        reference = format_value(difference.reference)[:_MAX_VALUE_LENGTH]
        lightrainer = format_value(difference.lightrainer)[:_MAX_VALUE_LENGTH]
        size = "" if difference.size is None else f"{difference.size:.1e}"
        rows.append((name, reference, lightrainer, size))

    lines = ["Unexplained differences:", *table(rows)]
    if len(differences) > _MAX_UNEXPLAINED:
        lines.append(f"... and {len(differences) - _MAX_UNEXPLAINED} more")
    return "\n".join(lines)


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)
