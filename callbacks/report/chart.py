"""A panel of curves as a picture: SVG for the page, PNG with matplotlib."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from .curves import Curve, Panel, Points, smoothed, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMALLEST = 1e-300
"""Below it a float has fewer digits, until it is zero."""
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
        """Round values to be written beside the axis."""
        return _powers(self.low, self.high) if self.is_logarithmic else round_values(self.low, self.high)

    def _stretched(self, value: float) -> float:
        return math.log10(value) if self.is_logarithmic else value


def fitting(values: list[float], *, from_zero: bool = False, may_be_logarithmic: bool = False) -> Scale:
    """The scale on which values are seen well; logarithmic where they are hundredfold apart, and that is allowed."""
    low, high = min(values), max(values)
    if may_be_logarithmic and low > _SMALLEST and high / low > 100:
        return Scale(low / 1.15, high * 1.15, is_logarithmic=True)
    low = min(low, 0.0) if from_zero else low
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Scale(low if from_zero and low == 0 else low - room, high + room)


def round_values(low: float, high: float, about: int = 5) -> list[float]:
    """Some five multiples of 1, 2 or 5 times a power of ten."""
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
    """A number for people: `12.3k`, `0.0213`, `5e-5`, `NaN`, `∞`."""
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


MOST_POINTS = 500
MANY_POINTS = 60
COLORS = ("#2563eb", "#ea6a12", "#0d9466", "#8b46e0", "#d6336c", "#0c8599", "#a16207", "#5f6b7a")
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
    cursor = f'<div class="cursor"></div><div class="tip"></div>{_data(panel, across)}'
    return framed(panel.title, gaps + lines, up, across, cursor)


def framed(title: str, marks: str, up: Scale, across: Scale, beside: str = "") -> str:
    """Put marks between axes.

    Args:
        title: for readers of the screen.
        marks: SVG, in which both axes go from 0 to 1000.
        up: the vertical scale.
        across: the horizontal one.
        beside: more HTML over the plot.
    """
    grid = "".join(f'<line class="grid" x1="0" x2="1000" y1="{_y(up, v)}" y2="{_y(up, v)}"/>' for v in up.ticks)
    heights = "".join(f'<span style="top:{_y(up, tick) / 10:.2f}%">{short(tick)}</span>' for tick in up.ticks)
    below = "".join(
        f'<span style="left:{100 * across.place(tick):.2f}%">{short(tick)}</span>'
        for tick in across.ticks
        if 0 <= across.place(tick) <= 1
    )
    svg = (
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-label="{escape(title)}">'
        f"{grid}{marks}</svg>"
    )
    return (
        f'<div class="chart"><div class="y">{heights}</div><div class="plot">{svg}{beside}</div>'
        f'<div class="x">{below}</div></div>'
    )


def _lines(panel: Panel, index: int, up: Scale, across: Scale) -> str:
    """A curve; of a noisy one with many points the mean is what stands out."""
    curve = panel.curves[index]
    color, points = f"c{index % len(COLORS)}", curve.finite
    if not points:
        return ""
    seen = thinned(points, MOST_POINTS)
    if len(points) < MANY_POINTS or not panel.is_noisy:
        dots = _path(seen, "dots", color, up, across, dots=True) if curve.is_sparse or len(points) < 2 else ""
        return _path(seen, "line", color, up, across) + dots
    mean = smoothed(points, is_logarithmic=up.is_logarithmic)
    mean = [*mean[:: max(len(mean) // MOST_POINTS, 1)], mean[-1]]
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
    """Describe the values that cannot be drawn."""
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
        entries.append(f'<span class="key c{index % len(COLORS)}">{name}<b>{last}</b></span>')
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
    return sorted([*thinned(curve.finite, MOST_POINTS), *curve.others[:MOST_POINTS]])


def draw(panels: list[Panel], title: str) -> bytes:
    """A PNG with the charts side by side.

    Args:
        panels: one or more.
        title: stands above them.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(panels), 2 if len(panels) <= 4 else 3)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5.6 * columns, 3.2 * rows + 0.6), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    # Without a `y`: the layout keeps room for a title only as long as it may place it itself.
    figure.suptitle(_plain(title), x=0.01, ha="left", fontsize=15, fontweight="bold")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, panel in zip(grid, panels, strict=False):
        _draw_panel(axes, panel)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _draw_panel(axes: Axes, panel: Panel) -> None:
    values = [value for curve in panel.curves for _, value in curve.finite]
    scale = fitting(values or [0.0], from_zero=panel.from_zero, may_be_logarithmic=panel.may_be_logarithmic)
    for index, curve in enumerate(panel.curves):
        color, points = COLORS[index % len(COLORS)], curve.finite
        label = _plain(curve.label)
        if len(points) >= MANY_POINTS and panel.is_noisy:
            axes.plot(*zip(*points, strict=True), color=color, linewidth=0.7, alpha=0.3)
            points = smoothed(points, is_logarithmic=scale.is_logarithmic)
        if points:
            marker = "o" if curve.is_sparse or len(points) < 2 else None
            steps, heights = zip(*points, strict=True)
            axes.plot(steps, heights, color=color, linewidth=1.8, marker=marker, markersize=3.5, label=label)
        for step, _ in curve.others[:200]:
            axes.axvline(step, color="#d92d20", linewidth=0.8, linestyle=":", alpha=0.7)
    if not values:
        axes.text(0.5, 0.5, "no finite values", ha="center", va="center", transform=axes.transAxes, color="#667085")
    _label(axes, panel, scale)
    if len(panel.curves) > 1 and values:
        axes.legend(fontsize=8, framealpha=0.75, edgecolor="none")


def _label(axes: Axes, panel: Panel, scale: Scale) -> None:
    axes.set_yscale("log" if scale.is_logarithmic else "linear")
    axes.set_ylim(scale.low, scale.high)
    axes.set_title(_plain(panel.title), loc="left", fontsize=11, fontweight="bold")
    axes.set_ylabel(panel.unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=9)


def _plain(text: str) -> str:
    """Text as it is: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")
