"""Panels of curves as files: a PNG drawn by matplotlib, and an SVG that stands alone, for model cards."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from .chart import COLORS, Scale, marks, panel_scale, short, strokes
from .curves import Curve, Panel, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STROKES: dict[str, dict[str, Any]] = {
    "faint": {"linewidth": 0.7, "alpha": 0.3},
    "line": {"linewidth": 1.8},
    "dots": {"linestyle": "none", "marker": "o", "markersize": 3.5},
}
_HEIGHTS = {"Loss": 400, "Learning rate": 110}
"""Panels of the picture of losses, and their heights in the SVG."""
_WIDTH, _LEFT, _RIGHT, _TOP, _BELOW = 1000, 84, 24, 44, 64
_LINE_OF_LEGEND = 26
_LETTER = 8.5
"""About the width of a letter of the legend."""
_MOST_NAMES = 12
_SVG_STROKES = {
    "grid": 'stroke="#e4e7ec"',
    "gap": 'stroke="#d92d20" stroke-dasharray="2 3"',
    "faint": 'stroke-opacity="0.3"',
    "line": 'stroke-width="2.5" stroke-linejoin="round"',
    "dots": 'stroke-width="8" stroke-linecap="round"',
}
"""As attributes: where a page forbids styles, pictures in it may have none."""


def draw(panels: Sequence[Panel], title: str = "", columns: int = 3) -> bytes:
    """Return a PNG with the charts side by side.

    Args:
        panels: one or more.
        title: stands above them.
        columns: at most so many charts are in a row.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(columns, len(panels), 2 if len(panels) <= 4 else 3)
    rows = math.ceil(len(panels) / columns)
    size = (max(5.6 * columns, 9), 3.2 * rows + 0.6)
    figure = Figure(figsize=size, dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    if title:  # without a `y`: the layout keeps room for a title only as long as it may place it itself
        figure.suptitle(_plain(title), x=0.01, ha="left", fontsize=15, fontweight="bold")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, panel in zip(grid, panels, strict=False):
        _draw_panel(axes, panel)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def draw_loss_curve(log_history: Iterable[dict[str, Any]]) -> bytes | None:
    """Return a PNG of the losses and learning rates in `log_history`, or `None` if there are no losses in it."""
    drawn = _loss_panels(log_history)
    return draw(drawn, columns=1) if drawn else None


def _loss_panels(log_history: Iterable[dict[str, Any]]) -> list[Panel]:
    drawn = [panel for panel in panels(log_history) if panel.title in _HEIGHTS]
    return drawn if drawn and drawn[0].title == "Loss" else []


def _draw_panel(axes: Axes, panel: Panel) -> None:
    up = panel_scale(panel)
    for index, curve in enumerate(panel.curves):
        label = _plain(_with_lowest(curve))
        for kind, points in strokes(panel, curve, up):
            named: dict[str, Any] = {"label": label} if kind == "line" else {}
            steps, heights = zip(*points, strict=True)
            axes.plot(steps, heights, color=COLORS[index % len(COLORS)], **_STROKES[kind], **named)
        for step, _ in curve.others[:200]:
            axes.axvline(step, color="#d92d20", linewidth=0.8, linestyle=":", alpha=0.7)
    if not any(curve.finite for curve in panel.curves):
        axes.text(0.5, 0.5, "no finite values", ha="center", va="center", transform=axes.transAxes, color="#667085")
    elif len(panel.curves) > 1:
        axes.legend(fontsize=8, framealpha=0.75, edgecolor="none")
    axes.set_yscale("log" if up.is_logarithmic else "linear")
    axes.set_ylim(up.low, up.high)
    axes.set_title(_plain(panel.title), loc="left", fontsize=11, fontweight="bold")
    axes.set_ylabel(panel.unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=9)


def _plain(text: str) -> str:
    """Escape dollar signs, which would begin a formula."""
    return text.replace("$", r"\$")


def _with_lowest(curve: Curve) -> str:
    """Return the label, for an evaluation with its lowest value and the step of it."""
    if not curve.is_sparse or not curve.finite:
        return curve.label
    value, step = min((value, step) for step, value in curve.finite)
    return f"{curve.label} (lowest {short(value)} at step {short(step, 6)})"


def draw_loss_picture(log_history: Iterable[dict[str, Any]]) -> str | None:
    """Return an SVG of the losses and learning rates over the steps; None if no loss was logged."""
    drawn = _loss_panels(log_history)
    if not drawn:
        return None
    across = Scale(0, max(1, *(step for panel in drawn for curve in panel.curves for step, _ in curve.points)))
    bottom, parts = 0, []
    for panel in drawn:
        parts += _svg_panel(panel, across, bottom + _TOP)
        bottom += _TOP + _HEIGHTS[panel.title]
    for at, text in across.labels:
        parts.append(_text(_x(at), bottom + 22, text, 'text-anchor="middle"'))
    parts.append(_text(_x(0.5), bottom + 48, "step", 'text-anchor="middle"'))
    height = bottom + _BELOW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="16" fill="#344054" role="img">\n'
        f'<title>Loss over the steps</title>\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        + "".join(f"{part}\n" for part in parts)
        + "</svg>\n"
    )


def _svg_panel(panel: Panel, across: Scale, top: int) -> list[str]:
    """Return the curves of a panel between axes; `top` is where it begins."""
    up, height = panel_scale(panel), _HEIGHTS[panel.title]
    title = f"{panel.title} (logarithmic)" if up.is_logarithmic else panel.title
    curves = re.sub(r'class="(\w+)(?: c(\d))?"', _svg_stroke, marks(panel, up, across))
    box = f'x="{_LEFT}" y="{top}" width="{_WIDTH - _LEFT - _RIGHT}" height="{height}" viewBox="0 0 1000 1000"'
    parts = [
        _text(_LEFT, top - 16, title, 'font-weight="bold" font-size="20"'),
        *(_text(_LEFT - 10, top + height * (1 - at) + 5, text, 'text-anchor="end"') for at, text in up.labels),
        f'<path d="M{_LEFT} {top}v{height}H{_WIDTH - _RIGHT}" fill="none" stroke="#98a2b3"/>',
        f'<svg {box} preserveAspectRatio="none" overflow="visible">{curves}</svg>',
    ]
    if not any(curve.finite for curve in panel.curves):
        parts.append(_text(_x(0.5), top + height / 2, "no finite values", 'text-anchor="middle"'))
    return parts + (_legend(panel, top) if panel.title == "Loss" else [])


def _svg_stroke(found: re.Match[str]) -> str:
    color = f' stroke="{COLORS[int(found[2])]}"' if found[2] else ""
    return f'fill="none" vector-effect="non-scaling-stroke" {_SVG_STROKES[found[1]]}{color}'


def _legend(panel: Panel, top: int) -> list[str]:
    names = [_with_lowest(curve) for curve in panel.curves[:_MOST_NAMES]]
    width, height = 64 + _LETTER * max(map(len, names)), _LINE_OF_LEGEND * len(names)
    left = _WIDTH - _RIGHT - width
    parts = [f'<rect x="{left}" y="{top - 4}" width="{width}" height="{height}" fill="#ffffff" fill-opacity="0.8"/>']
    for index, name in enumerate(names):
        y, color = top + 10 + index * _LINE_OF_LEGEND, COLORS[index % len(COLORS)]
        parts.append(f'<path d="M{left + 8} {y}h28" stroke="{color}" stroke-width="4"/>')
        parts.append(_text(left + 44, y + 5, name))
    return parts


def _x(at: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at


def _text(x: float, y: float, text: str, style: str = "") -> str:
    """Return an element with the text, without what XML has no letters for."""
    shown = escape("".join(letter for letter in text if letter.isprintable()))
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{shown}</text>'
