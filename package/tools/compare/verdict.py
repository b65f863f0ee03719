"""What a comparison came to: the differences by their reason, and what is left."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .differences import Compared, Difference
from .known import Facts, Known, reason
from .reading import Findings


@dataclass(kw_only=True)
class Verdict:
    """The two sides, and all places where they differ."""

    script: str
    words: list[str]
    reference: Findings
    lightrainer: Findings
    compared: list[Compared]
    tolerance: float = 0.0
    repeats_itself: bool | None = None
    """Whether a second run of the reference equals the first; None where there was none."""

    @property
    def sides(self) -> tuple[Findings, Findings]:
        """The reference and ours."""
        return self.reference, self.lightrainer

    @cached_property
    def reasons(self) -> list[tuple[Difference, Known | None]]:
        """Each difference with its reason, where there is one."""
        facts: Facts = {**self.reference.facts, "version": self.reference.version}
        return [(one, reason(one, facts)) for group in self.compared for one in group.differences]

    @property
    def known(self) -> dict[str, tuple[Known, list[Difference]]]:
        """The reasons, each with its differences."""
        found: dict[str, tuple[Known, list[Difference]]] = {}
        for difference, known in self.reasons:
            if known is not None:
                found.setdefault(known.name, (known, []))[1].append(difference)
        return found

    @property
    def unexplained(self) -> list[Difference]:
        """The differences for which nobody knows a reason."""
        return [difference for difference, known in self.reasons if known is None]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each kind of value: how many there are, how many differ, and by how much at most."""
        unexplained, rows = {id(one) for one in self.unexplained}, []
        for group in self.compared:
            unknown = sum(id(one) in unexplained for one in group.differences)
            sizes = [one.size for one in group.differences if one.size is not None]
            rows.append(
                {
                    "what": group.group,
                    "compared": group.count,
                    "equal": group.count - len({one.name for one in group.differences}),
                    "known": len(group.differences) - unknown,
                    "unexplained": unknown,
                    "largest": max(sizes, default=0.0),
                }
            )
        return rows

    def conclusion(self) -> str:
        """Say it in a sentence or two."""
        count = len(self.unexplained)
        if not count:
            return "Nothing unexplained differs." if self.known else "Nothing differs."
        said = f"{count} difference{'s have' if count > 1 else ' has'} no known reason."
        if self.repeats_itself is None:
            return f"{said} Does the script repeat itself? Add --again to run the reference twice."
        if self.repeats_itself:
            return f"{said} A second run of the reference equals the first."
        return f"{said} The reference differs from itself, too: the script draws random numbers without a seed."


def shown(value: Any, missing: str = "-") -> str:
    """A value in a few characters."""
    if value is None:
        return missing
    if isinstance(value, float):
        return f"{value:.8g}"
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def size_of(count: int | None) -> str:
    """Bytes in MiB or GiB."""
    if count is None:
        return "-"
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
