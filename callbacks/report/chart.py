"""One chart, as HTML: lines in an SVG that fills its box, and text around it that keeps its size on any screen."""

from __future__ import annotations

import json
from html import escape

from .curves import Curve, Panel, Points, smoothed, thinned
from .scales import Scale, fitting, short

_MOST_POINTS = 500
_MANY_POINTS = 60
_COLORS = 8
"""As many as the page's style has."""


def chart(panel: Panel, last_step: float) -> str:
    """A figure with the curves of a panel.

    Args:
        panel: what to draw.
        last_step: where the horizontal axes of all charts end.
    """
    values = [value for curve in panel.curves for _, value in curve.finite]
    notes = [note for curve in panel.curves for note in _notes(curve, several=len(panel.curves) > 1)]
    if values:
        scale = fitting(values, from_zero=panel.from_zero, may_be_logarithmic=panel.may_be_logarithmic)
        drawing = _drawing(panel, scale, Scale(0, max(last_step, 1)))
    else:
        scale, drawing = Scale(0, 1), '<div class="empty">No finite values.</div>'
    unit = ", ".join(filter(None, [panel.unit, "logarithmic" if scale.is_logarithmic else ""]))
    title = escape(panel.title) + (f' <span class="unit">{escape(unit)}</span>' if unit else "")
    said = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return f'<figure class="card"><figcaption><h2>{title}</h2>{_legend(panel)}</figcaption>{drawing}{said}</figure>'


def _drawing(panel: Panel, up: Scale, across: Scale) -> str:
    lines = "".join(_lines(panel, index, up, across) for index in range(len(panel.curves)))
    gaps = "".join(_gap(across.place(step)) for curve in panel.curves for step in _distinct(curve, across))
    grid = "".join(f'<line class="grid" x1="0" x2="1000" y1="{_y(up, v)}" y2="{_y(up, v)}"/>' for v in up.ticks)
    beside = "".join(f'<span style="top:{_y(up, tick) / 10:.2f}%">{short(tick)}</span>' for tick in up.ticks)
    below = "".join(
        f'<span style="left:{100 * across.place(tick):.2f}%">{short(tick)}</span>'
        for tick in across.ticks
        if 0 <= across.place(tick) <= 1
    )
    svg = (
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-label="{escape(panel.title)}">'
        f"{grid}{gaps}{lines}</svg>"
    )
    return (
        f'<div class="chart"><div class="y">{beside}</div><div class="plot">{svg}<div class="cursor"></div>'
        f'<div class="tip"></div>{_data(panel, across)}</div><div class="x">{below}</div></div>'
    )


def _lines(panel: Panel, index: int, up: Scale, across: Scale) -> str:
    """A curve; of a noisy one with many points the mean is what stands out."""
    curve = panel.curves[index]
    color, points = f"c{index % _COLORS}", curve.finite
    if not points:
        return ""
    seen = thinned(points, _MOST_POINTS)
    if len(points) < _MANY_POINTS or not panel.is_noisy:
        dots = _path(seen, "dots", color, up, across, dots=True) if curve.is_sparse or len(points) < 2 else ""
        return _path(seen, "line", color, up, across) + dots
    mean = smoothed(points, is_logarithmic=up.is_logarithmic)
    mean = [*mean[:: max(len(mean) // _MOST_POINTS, 1)], mean[-1]]
    return _path(seen, "faint", color, up, across) + _path(mean, "line", color, up, across)


def _path(points: Points, kind: str, color: str, up: Scale, across: Scale, *, dots: bool = False) -> str:
    places = [f"{1000 * across.place(step):.1f} {_y(up, value)}" for step, value in points]
    way = "".join(f"M{place}h0" for place in places) if dots else f"M{'L'.join(places)}"
    return f'<path class="{kind} {color}" d="{way}"/>'


def _y(up: Scale, value: float) -> float:
    return round(1000 * (1 - up.place(value)), 1)


def _gap(place: float) -> str:
    x = round(1000 * place, 1)
    return f'<line class="gap" x1="{x}" x2="{x}" y1="0" y2="1000"/>'


def _distinct(curve: Curve, across: Scale) -> list[float]:
    """Steps with a value that is no number; not more than can be told apart."""
    return list({round(200 * across.place(step)): step for step, _ in curve.others}.values())


def _notes(curve: Curve, *, several: bool) -> list[str]:
    """What is to be said of values that cannot be drawn."""
    others = curve.others
    if not others:
        return []
    of = f"{curve.label}: " if several else ""
    first = ", ".join(f"{short(value)} at step {short(step, 6)}" for step, value in others[:3])
    more = f", and {len(others) - 3} more" if len(others) > 3 else ""
    return [f"{of}{len(others)} of {len(curve.points)} values not finite: {first}{more}."]


def _legend(panel: Panel) -> str:
    """The names of the curves with their last values; of a single one just the value."""
    entries = []
    for index, curve in enumerate(panel.curves):
        last = short(curve.points[-1][1])
        name = f"{escape(curve.label)} " if len(panel.curves) > 1 else ""
        entries.append(f'<span class="key c{index % _COLORS}">{name}<b>{last}</b></span>')
    return f'<div class="legend">{"".join(entries)}</div>'


def _data(panel: Panel, across: Scale) -> str:
    """The points, for the script that shows the values under the pointer."""
    curves = [
        {
            "label": curve.label,
            "points": [[step, short(value), round(across.place(step), 5)] for step, value in _told(curve)],
        }
        for curve in panel.curves
    ]
    text = json.dumps(curves, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def _told(curve: Curve) -> Points:
    return sorted([*thinned(curve.finite, _MOST_POINTS), *curve.others[:_MOST_POINTS]])
