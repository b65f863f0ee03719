"""The charts of a report as one picture, drawn by matplotlib."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

from .curves import Panel, smoothed
from .scales import Scale, fitting

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = ("#2563eb", "#ea6a12", "#0d9466", "#8b46e0", "#d6336c", "#0c8599", "#a16207", "#5f6b7a")
_MANY_POINTS = 60


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
    figure.suptitle(_plain(title), x=0.01, y=0.992, ha="left", va="top", fontsize=15, fontweight="bold")
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
        color, points = _COLORS[index % len(_COLORS)], curve.finite
        label = _plain(curve.label)
        if len(points) >= _MANY_POINTS and panel.is_noisy:
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
