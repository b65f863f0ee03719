"""A panel of curves as a chart of a page: curves as SVG, around them numbers that the browser lays out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from .curves import Curve, Panel, Points, smoothed, thinned
from .document import figure

MOST_POINTS = 500
_MANY_POINTS = 60
COLORS = ("#2563eb", "#ea6a12", "#0d9466", "#8b46e0", "#d6336c", "#0c8599", "#a16207", "#5f6b7a")
"""As many as the style of pages has."""
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Scale:
    """Maps values to positions between 0 and 1."""

    low: float
    high: float
    is_logarithmic: bool = False

    def place(self, value: float) -> float:
        """Return the position of a value, 0 at the lower end and 1 at the upper one."""
        low, high = self._stretched(self.low), self._stretched(self.high)
        return (self._stretched(value) - low) / (high - low)

    @property
    def ticks(self) -> list[float]:
        """Return round values to be written beside the axis."""
        return _powers(self.low, self.high) if self.is_logarithmic else round_values(self.low, self.high)

    @property
    def labels(self) -> list[tuple[float, str]]:
        """Return the positions of the ticks, and their texts."""
        return [(self.place(tick), short(tick)) for tick in self.ticks if 0 <= self.place(tick) <= 1]

    def _stretched(self, value: float) -> float:
        return math.log10(value) if self.is_logarithmic else value


def fitting(values: list[float], *, from_zero: bool = False, may_be_logarithmic: bool = False) -> Scale:
    """Return a scale for the values; logarithmic where that is allowed and they are hundredfold apart."""
    low, high = min(values), max(values)
    if may_be_logarithmic and low > 0 and high / low > 100:
        return Scale(low / 1.15, high * 1.15, is_logarithmic=True)
    low = min(low, 0.0) if from_zero else low
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Scale(low if from_zero and low == 0 else low - room, high + room)


def round_values(low: float, high: float, about: int = 5) -> list[float]:
    """Return some five multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [(first + index) * step for index in range(count)]


def _powers(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    every = max(1, math.ceil((last - first + 1) / 5))
    return [10.0**power for power in range(first, last + 1, every)] or [low, high]


def short(value: float, digits: int = 4) -> str:
    """Format a number in few characters: `12.3k`, `0.0213`, `5e-5`, `NaN`, `∞`."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-3:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        return f"{_trimmed(mantissa)}e{int(power)}"
    for factor, prefix in _PREFIXES:
        if size >= factor * (10 if prefix == "k" else 1):
            return f"{_trimmed(f'{value / factor:.{digits}g}')}{prefix}"
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text else text


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def panel_scale(panel: Panel) -> Scale:
    """Return the vertical scale of a panel."""
    values = [value for curve in panel.curves for _, value in curve.finite]
    return fitting(values or [0.0], from_zero=panel.from_zero, may_be_logarithmic=panel.may_be_logarithmic)


def chart(panel: Panel, last_step: float) -> str:
    """Return a card with the curves of a panel.

    Args:
        panel: what to draw.
        last_step: where the horizontal axes of all charts end.
    """
    up, across = panel_scale(panel), Scale(0, max(last_step, 1))
    notes = [note for curve in panel.curves for note in _notes(curve, several=len(panel.curves) > 1)]
    if any(curve.finite for curve in panel.curves):
        cursor = f'<div class="cursor"></div><div class="tip"></div>{_data(panel, across)}'
        drawing = framed(panel.title, marks(panel, up, across), up.labels, across.labels, cursor)
    else:
        drawing = '<div class="empty">No finite values.</div>'
    unit = ", ".join(filter(None, [panel.unit, "logarithmic" if up.is_logarithmic else ""]))
    below = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return figure(panel.title, drawing + below, unit, _legend(panel))


def framed(
    title: str, inside: str, left: Iterable[tuple[float, str]], below: Iterable[tuple[float, str]], over: str = ""
) -> str:
    """Return a plot between axes.

    Args:
        title: for screen readers.
        inside: SVG, in which both axes go from 0 to 1000.
        left: positions and texts along the vertical axis.
        below: those along the horizontal one.
        over: HTML over the plot.
    """
    heights = "".join(f'<span style="top:{100 - 100 * at:.2f}%">{escape(text)}</span>' for at, text in left)
    numbers = "".join(f'<span style="left:{100 * at:.2f}%">{escape(text)}</span>' for at, text in below)
    return (
        f'<div class="chart"><div class="y">{heights}</div><div class="plot">'
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-label="{escape(title)}">'
        f'{inside}</svg>{over}</div><div class="x">{numbers}</div></div>'
    )


def marks(panel: Panel, up: Scale, across: Scale) -> str:
    """Return grid, curves, and lines where a value is not finite, as SVG in which both axes go from 0 to 1000."""
    drawn = "".join(f'<path class="grid" d="M{place(0, at)}h1000"/>' for at, _ in up.labels)
    for curve in panel.curves:
        distinct = {round(200 * across.place(step)): step for step, _ in curve.others}
        drawn += "".join(f'<path class="gap" d="M{place(across.place(step), 1)}v1000"/>' for step in distinct.values())
    for index, curve in enumerate(panel.curves):
        for kind, points in strokes(panel, curve, up):
            places = [place(across.place(step), up.place(value)) for step, value in points]
            drawn += f'<path class="{kind} c{index % len(COLORS)}" d="{way(places, dots=kind == "dots")}"/>'
    return drawn


def strokes(panel: Panel, curve: Curve, up: Scale) -> list[tuple[str, Points]]:
    """Return the lines and dots of a curve; of a noisy one with many points the mean is what stands out."""
    points = curve.finite
    if not points:
        return []
    seen = thinned(points, MOST_POINTS)
    if len(points) < _MANY_POINTS or not panel.is_noisy:
        return [("line", seen), *([("dots", seen)] if curve.is_sparse or len(points) < 2 else [])]
    mean = smoothed(points, is_logarithmic=up.is_logarithmic)
    return [("faint", seen), ("line", [*mean[:: max(len(mean) // MOST_POINTS, 1)], mean[-1]])]


def place(x: float, y: float) -> str:
    """Return a position between 0 and 1 in the coordinates of the SVG."""
    return f"{1000 * x:.1f} {1000 - 1000 * y:.1f}"


def way(places: Iterable[str], *, dots: bool = False) -> str:
    """Return the way of a path through places, or dots on them."""
    return "".join(f"M{one}h0" for one in places) if dots else f"M{'L'.join(places)}"


def _notes(curve: Curve, *, several: bool) -> list[str]:
    """Describe the values that cannot be drawn."""
    others = curve.others
    if not others:
        return []
    of = f"{curve.label}: " if several else ""
    first = ", ".join(f"{short(value)} at step {short(step, 6)}" for step, value in others[:3])
    more = f", and {len(others) - 3} more" if len(others) > 3 else ""
    return [f"{of}{len(others)} of {len(curve.points)} values not finite: {first}{more}."]


def _legend(panel: Panel) -> str:
    """Return the names of the curves with their last values; of a single one just the value."""
    entries = []
    for index, curve in enumerate(panel.curves):
        last = short(curve.points[-1][1])
        name = f"{escape(curve.label)} " if len(panel.curves) > 1 else ""
        entries.append(f'<span class="key c{index % len(COLORS)}">{name}<b>{last}</b></span>')
    return f'<div class="legend">{"".join(entries)}</div>'


def _data(panel: Panel, across: Scale) -> str:
    """Return the points, for the script that shows the values under the pointer."""
    curves = []
    for curve in panel.curves:
        points = sorted([*thinned(curve.finite, MOST_POINTS), *curve.others[:MOST_POINTS]])
        places = [[step, short(value), round(across.place(step), 5)] for step, value in points]
        curves.append({"label": curve.label, "points": places})
    text = json.dumps(curves, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'
