"""A comparison as one page of HTML that fetches nothing; it looks like the report on a run."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from ...callbacks.report.chart import chart
from ...callbacks.report.curves import Curve, Panel, panels
from ...callbacks.report.document import charts, document, folded, header, table, tiles
from .differences import Difference
from .verdict import Verdict, shown, size_of

_MOST = 500
_MORE_STYLE = "header p { overflow-wrap: anywhere; }"


def render(verdict: Verdict) -> str:
    """Make the page.

    Args:
        verdict: what the comparison came to.
    """
    badge, kind = ("differs", "stopped") if verdict.unexplained else ("same", "finished")
    command = shlex.join([verdict.script, *verdict.words])
    body = [
        header(verdict.script, badge, verdict.conclusion(), command, kind=kind),
        tiles(_facts(verdict)),
        _counts(verdict),
        _unexplained(verdict.unexplained),
        *_known(verdict),
        charts(_charts(verdict)),
        *_numbers(verdict),
        _tensors(verdict),
        "<footer>Written by lightrainer compare. Point at a chart to read its values.</footer>",
    ]
    return document(f"{verdict.script} · comparison", body, _MORE_STYLE)


def _facts(verdict: Verdict) -> Iterator[tuple[str, str, str]]:
    for side in verdict.sides:
        on_device = f", GPU {size_of(side.device_peak_bytes)}" if side.device_peak_bytes else ""
        yield f"{side.version}: wall time", f"{side.run.seconds:.1f} s", ""
        yield f"{side.version}: memory, peak", size_of(side.peak_bytes) + on_device, ""


def _counts(verdict: Verdict) -> str:
    head = ("", "compared", "equal", "known", "unexplained", "largest difference")
    rows = [
        (row["what"], row["compared"], row["equal"], row["known"], row["unexplained"], f"{row['largest']:.3g}")
        for row in verdict.rows()
    ]
    return folded("What was compared", _table(head, rows), is_open=True)


def _unexplained(differences: Sequence[Difference]) -> str:
    title = f"Unexplained differences ({len(differences)})"
    return folded(title, _differences(differences), is_open=True) if differences else ""


def _known(verdict: Verdict) -> Iterator[str]:
    for known, differences in verdict.known.values():
        remedy = f" To be sure, {known.remedy}." if known.remedy else ""
        text = f"<p>{escape(known.why[0].upper() + known.why[1:])}.{escape(remedy)}</p>"
        yield folded(f"Known: {known.name} ({len(differences)})", text + _differences(differences))


def _differences(differences: Sequence[Difference]) -> str:
    rows = [
        (
            one.group,
            one.name,
            "only here" if one.only_in == "reference" else shown(one.reference),
            "only here" if one.only_in == "lightrainer" else shown(one.lightrainer),
            "" if one.size is None else f"{one.size:.3g}",
        )
        for one in differences[:_MOST]
    ]
    return _table(("", "where", "reference", "lightrainer", "difference"), rows, kind="texts2")


def _charts(verdict: Verdict) -> Iterator[str]:
    """Draw each curve of both sides in one chart."""
    for number, (left, right) in enumerate(zip(verdict.reference.history, verdict.lightrainer.history, strict=False)):
        prefix = f"Training {number + 1}: " if len(verdict.reference.history) > 1 else ""
        last = max((entry.get("step", 0) for entry in [*left, *right]), default=0)
        ours = {panel.title: panel for panel in panels(right)}
        for panel in panels(left):
            if panel.title in ours:
                curves = [*_named(panel, "reference"), *_named(ours[panel.title], "lightrainer")]
                yield chart(replace(panel, title=prefix + panel.title, curves=curves), last)


def _named(panel: Panel, side: str) -> list[Curve]:
    return [replace(curve, label=f"{curve.label}, {side}", is_sparse=True) for curve in panel.curves]


def _numbers(verdict: Verdict) -> Iterator[str]:
    """List all metrics and logs, equal ones too."""
    for title, (left, right) in {
        "Metrics": (verdict.reference.metrics, verdict.lightrainer.metrics),
        "Logged numbers": (verdict.reference.logs, verdict.lightrainer.logs),
    }.items():
        names = list({**left, **right})
        rows = [(name, shown(left.get(name)), shown(right.get(name))) for name in names[:_MOST]]
        of = f"the first {_MOST} of {len(names)}" if len(names) > _MOST else str(len(names))
        yield folded(f"{title} ({of})", _table(("", "reference", "lightrainer"), rows))


def _tensors(verdict: Verdict) -> str:
    tensors = {name: size for group in verdict.compared for name, size in group.tensors.items()}
    ranked = sorted(tensors.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST]
    rows = [(name, f"{size:.3g}") for name, size in ranked]
    return folded(f"Final weights ({len(tensors)} tensors)", _table(("", "largest difference"), rows)) if rows else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "texts") -> str:
    return table(head, ([escape(str(cell)) for cell in row] for row in rows), kind=kind)
