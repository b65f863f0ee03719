"""A comparison as one page of HTML that fetches nothing; it looks like the report on a run."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from ...callbacks.report.chart import chart
from ...callbacks.report.curves import Curve, Panel, panels
from ...callbacks.report.page import document
from .differences import Difference
from .verdict import Verdict, shown, size_of

_MOST = 500
_MORE_STYLE = "td, th { text-align: left; } td.n, th.n { text-align: right; } .wide { overflow-wrap: anywhere; }"


def render(verdict: Verdict) -> str:
    """Make the page.

    Args:
        verdict: what the comparison came to.
    """
    name = escape(verdict.script)
    body = (
        f"{_header(verdict, name)}{_tiles(verdict)}{_counts(verdict)}{_unexplained(verdict)}{_known(verdict)}"
        f'<div class="charts">{_charts(verdict)}</div>{_numbers(verdict)}{_tensors(verdict)}'
        "<footer>Written by lightrainer compare. Point at a chart to read its values.</footer>"
    )
    return document(f"{name} · comparison", body, _MORE_STYLE)


def _header(verdict: Verdict, name: str) -> str:
    state = ("stopped", "differs") if verdict.unexplained else ("finished", "same")
    words = escape(shlex.join([verdict.script, *verdict.words]))
    return (
        f'<header><h1>{name}</h1><span class="pill {state[0]}">{state[1]}</span>'
        f"<p>{escape(verdict.conclusion())}</p><p class='wide'>{words}</p></header>"
    )


def _tiles(verdict: Verdict) -> str:
    tiles = []
    for side in verdict.sides:
        memory = size_of(side.peak_bytes) + (
            f", GPU {size_of(side.device_peak_bytes)}" if side.device_peak_bytes else ""
        )
        tiles += [
            (f"{side.version}: wall time", f"{side.run.seconds:.1f} s"),
            (f"{side.version}: memory, peak", memory),
        ]
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><span>{escape(t)}</span><b>{escape(v)}</b></div>' for t, v in tiles)
        + "</div>"
    )


def _counts(verdict: Verdict) -> str:
    head = ("", "compared", "equal", "known", "unexplained", "largest difference")
    rows = [
        (row["what"], row["compared"], row["equal"], row["known"], row["unexplained"], f"{row['largest']:.3g}")
        for row in verdict.rows()
    ]
    return _card("What was compared", _table(head, rows), is_open=True)


def _unexplained(verdict: Verdict) -> str:
    if not verdict.unexplained:
        return ""
    return _card(
        f"Unexplained differences ({len(verdict.unexplained)})", _differences(verdict.unexplained), is_open=True
    )


def _known(verdict: Verdict) -> str:
    cards = []
    for known, differences in verdict.known.values():
        remedy = f" To be sure, {known.remedy}." if known.remedy else ""
        text = f"<p>{escape(known.why[0].upper() + known.why[1:])}.{escape(remedy)}</p>"
        cards.append(_card(f"Known: {escape(known.name)} ({len(differences)})", text + _differences(differences)))
    return "".join(cards)


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
    return _table(("", "where", "reference", "lightrainer", "difference"), rows, texts=2)


def _charts(verdict: Verdict) -> str:
    """Each curve of both sides in one chart."""
    drawn = []
    for number, (left, right) in enumerate(zip(verdict.reference.history, verdict.lightrainer.history, strict=False)):
        prefix = f"Training {number + 1}: " if len(verdict.reference.history) > 1 else ""
        last = max((entry.get("step", 0) for entry in [*left, *right]), default=0)
        ours = {panel.title: panel for panel in panels(right)}
        for panel in panels(left):
            other = ours.get(panel.title)
            if other is not None:
                both = Panel(
                    title=prefix + panel.title,
                    curves=[*_named(panel, "reference"), *_named(other, "lightrainer")],
                    from_zero=panel.from_zero,
                    may_be_logarithmic=panel.may_be_logarithmic,
                    is_noisy=panel.is_noisy,
                    unit=panel.unit,
                )
                drawn.append(chart(both, last))
    return "".join(drawn)


def _named(panel: Panel, side: str) -> list[Curve]:
    return [Curve(f"{curve.label}, {side}", curve.points, is_sparse=True, unit=curve.unit) for curve in panel.curves]


def _numbers(verdict: Verdict) -> str:
    """All metrics and logs, equal ones too."""
    cards = []
    for title, (left, right) in {
        "Metrics": (verdict.reference.metrics, verdict.lightrainer.metrics),
        "Logged numbers": (verdict.reference.logs, verdict.lightrainer.logs),
    }.items():
        names = list({**left, **right})
        rows = [(name, shown(left.get(name)), shown(right.get(name))) for name in names[:_MOST]]
        of = f"the first {_MOST} of {len(names)}" if len(names) > _MOST else str(len(names))
        cards.append(_card(f"{title} ({of})", _table(("", "reference", "lightrainer"), rows)))
    return "".join(cards)


def _tensors(verdict: Verdict) -> str:
    tensors = {name: size for group in verdict.compared for name, size in group.tensors.items()}
    rows = [
        (name, f"{size:.3g}") for name, size in sorted(tensors.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST]
    ]
    return _card(f"Final weights ({len(tensors)} tensors)", _table(("", "largest difference"), rows)) if rows else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], texts: int = 1) -> str:
    def line(cells: Sequence[Any], tag: str) -> str:
        told = (f"<{tag}{' class=n' if i >= texts else ''}>{escape(str(cell))}</{tag}>" for i, cell in enumerate(cells))
        return f"<tr>{''.join(told)}</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def _card(title: str, inside: str, *, is_open: bool = False) -> str:
    return (
        f'<details class="card"{" open" if is_open else ""}><summary>{title}</summary>'
        f'<div class="scroll">{inside}</div></details>'
    )
