"""The result of a comparison: differences by their reasons, those without one, and a text for
the terminal.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..command_line import table
from .differences import Compared, Difference
from .findings import Findings
from .known import Facts, Known, reason

_WIDTH = 79
_MOST = 12
"""Unexplained differences that the text shows; `comparison.json` has all of them."""


@dataclass(kw_only=True)
class Verdict:
    """The two sides, and all values in which they differ."""

    script: str
    words: list[str]
    reference: Findings
    lightrainer: Findings
    compared: list[Compared]
    tolerance: float = 0.0
    repeats_itself: bool | None = None
    """True if a second run of the reference equals the first; None without one."""

    @property
    def sides(self) -> tuple[Findings, Findings]:
        """Return the reference and ours."""
        return self.reference, self.lightrainer

    @cached_property
    def reasons(self) -> list[tuple[Difference, Known | None]]:
        """Return each difference with its reason, where there is one."""
        facts: Facts = {**self.reference.facts, "version": self.reference.version}
        facts["gradient_norms"] = (self.reference.gradient_norm, self.lightrainer.gradient_norm)
        return [(one, reason(one, facts)) for group in self.compared for one in group.differences]

    @property
    def known(self) -> dict[str, tuple[Known, list[Difference]]]:
        """Return the reasons, each with its differences."""
        found: dict[str, tuple[Known, list[Difference]]] = {}
        for difference, known in self.reasons:
            if known is not None:
                found.setdefault(known.name, (known, []))[1].append(difference)
        return found

    @property
    def unexplained(self) -> list[Difference]:
        """Return the differences without a known reason."""
        return [difference for difference, known in self.reasons if known is None]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each kind of value: number compared, equal, known, unexplained, and
        largest difference.
        """
        unexplained = {id(difference) for difference in self.unexplained}
        rows = []
        for group in self.compared:
            unknown = sum(id(difference) in unexplained for difference in group.differences)
            sizes = [
                difference.size for difference in group.differences if difference.size is not None
            ]
            rows.append(
                {
                    "what": group.group,
                    "compared": group.count,
                    "equal": group.count - len(group.differences),
                    "known": len(group.differences) - unknown,
                    "unexplained": unknown,
                    "largest": max(sizes, default=0.0),
                }
            )
        return rows

    def conclusion(self) -> str:
        """Summarize the comparison in a sentence or two."""
        count = len(self.unexplained)
        if not count:
            return "Nothing unexplained differs." if self.known else "Nothing differs."
        if self.repeats_itself is None:
            advice = "Is the script deterministic? Add --again to run the reference twice."
        elif self.repeats_itself:
            advice = "A second run of the reference equals the first."
        else:
            advice = (
                "The reference differs from itself, too: the script draws random numbers without a "
                "seed."
            )
        return f"{count} difference{'s have' if count > 1 else ' has'} no known reason. {advice}"


def shown(value: Any, missing: str = "-") -> str:
    """Format a value in a few characters."""
    if value is None:
        return missing
    if isinstance(value, float):
        return f"{value:.8g}"
    text = (
        f"tensor {list(value.shape)}" if hasattr(value, "shape") else " ".join(str(value).split())
    )
    return text if len(text) <= 60 else f"{text[:57]}..."


def as_text(verdict: Verdict) -> str:
    """Format a comparison for a terminal of 80 columns."""
    parts = [_sides(verdict), _counts(verdict)]
    if verdict.known:
        parts.append(_known(verdict))
    if verdict.unexplained:
        parts.append(_unexplained(verdict.unexplained))
    return "\n\n".join([*parts, _wrapped(verdict.conclusion())])


def _sides(verdict: Verdict) -> str:
    rows = [("", "version", "wall time")]
    rows += [(side.run.side, side.version, f"{side.run.seconds:.1f} s") for side in verdict.sides]
    return "\n".join(table(rows, left=2))


def _counts(verdict: Verdict) -> str:
    rows: list[Any] = [("", "compared", "equal", "known", "unexplained", "largest diff.")]
    for row in verdict.rows():
        numbers = [row[name] for name in ("compared", "equal", "known", "unexplained")]
        rows.append((row["what"], *numbers, f"{row['largest']:.1e}" if row["largest"] else "-"))
    return "\n".join(table(rows))


def _known(verdict: Verdict) -> str:
    lines = ["Known differences:"]
    for known, differences in verdict.known.values():
        count = len(differences)
        lines.append(
            _wrapped(f"- {known.name} ({count} value{'s' * (count > 1)}): {known.why}.", "  ")
        )
        if known.remedy:
            lines.append(_wrapped(f"  To be sure, {known.remedy}.", "  "))
    return "\n".join(lines)


def _unexplained(differences: list[Difference]) -> str:
    rows = [("", "reference", "lightrainer", "difference")]
    for one in differences[:_MOST]:
        # the end tells more than the beginning
        name = one.name if len(one.name) <= 34 else f"...{one.name[-31:]}"
        size = "" if one.size is None else f"{one.size:.1e}"
        rows.append((name, shown(one.reference)[:14], shown(one.lightrainer)[:14], size))
    more = f"\n... and {len(differences) - _MOST} more" if len(differences) > _MOST else ""
    return "\n".join(["Unexplained differences:", *table(rows)]) + more


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)
