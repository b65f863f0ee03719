"""Draw panels of curves with matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from ...lightning_modules.common.libraries import is_installed
from .curves import Panel, Points, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_PANELS = 40
_MANY_POINTS = 60
_LOGARITHMIC = ("Loss", "Gradient norm", "Gradient norm by layer")
"""Panels whose axis is logarithmic where values are more than a hundredfold apart."""


def check_matplotlib(purpose: str) -> None:
    """Check that matplotlib is installed.

    Raises:
        ImportError: it is not; names the purpose, and how to install it.
    """
    if not is_installed("matplotlib"):
        raise ImportError(
            f"{purpose} needs matplotlib, which is not installed: pip install 'lightrainer[plot]'."
        )


def draw(
    panels: Sequence[Panel], title: str = "", columns: int = 3, file_format: str = "png"
) -> bytes:
    """Return a picture with the charts side by side.

    Args:
        panels: one or more, of which at most 40 are drawn.
        title: stands above them.
        columns: the largest number of charts in a row.
        file_format: `png` or `svg`.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Lay out the charts. Without pyplot the settings and windows of the script are left alone.
    panels = panels[:_MOST_PANELS]
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(
        figsize=(max(5.6 * columns, 9), 3.2 * rows + 0.6), dpi=110, layout="constrained"
    )
    figure.suptitle(_plain(title), x=0.01, ha="left", fontsize=15)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()

    # Draw them.
    for axes, panel in zip(grid, panels, strict=False):
        _draw_panel(axes, panel)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()

    # Write the picture. In an SVG text stays text, and equal pictures are equal files.
    picture = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "lightrainer"}):
        figure.savefig(
            picture, format=file_format, metadata={"Date": None} if file_format == "svg" else None
        )
    return picture.getvalue()


def draw_loss_curve(
    log_history: Iterable[dict[str, Any]], file_format: str = "png"
) -> bytes | None:
    """Return a picture of the losses and learning rates in `log_history`, or `None` if there are no
    losses in it.

    Args:
        log_history: of a `TrainerState`.
        file_format: `png` or `svg`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    check_matplotlib("The picture of the losses")
    drawn = [panel for panel in panels(log_history) if panel.title in ("Loss", "Learning rate")]
    if not drawn or drawn[0].title != "Loss":
        return None
    return draw(drawn, columns=1, file_format=file_format)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    finite_values = []
    for label, points in panel.curves.items():
        finite = [(step, value) for step, value in points if math.isfinite(value)]
        finite_values += [value for _, value in finite]
        text = _label(
            label,
            points,
            finite,
            with_lowest=panel.title == "Loss" and label.startswith("evaluation"),
        )
        _draw_curve(axes, text, finite, is_noisy=panel.title != "Learning rate")

        # Mark the values that cannot be drawn.
        for step, value in points:
            if not math.isfinite(value):
                axes.axvline(step, color="red", linewidth=0.8, linestyle=":")

    # Axes, title and legend.
    if panel.title in _LOGARITHMIC and finite_values and min(finite_values) > 0:
        axes.set_yscale("log" if max(finite_values) > 100 * min(finite_values) else "linear")
    axes.set_title(_plain(panel.title), loc="left", fontsize=11)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)


def _draw_curve(axes: Axes, label: str, points: Points, *, is_noisy: bool) -> None:
    """Draw the finite points of a curve; of a noisy one with many points the running mean stands
    out.
    """
    steps = [step for step, _ in points]
    values = [value for _, value in points]
    if not is_noisy or len(points) < _MANY_POINTS:
        axes.plot(steps, values, label=label, marker="." if len(points) < _MANY_POINTS else "")
        return
    (line,) = axes.plot(steps, values, linewidth=0.7, alpha=0.3)
    axes.plot(steps, _running_mean(values), label=label, color=line.get_color())


def _running_mean(values: Sequence[float]) -> numpy.ndarray:
    """Return the means over a twentieth of the values, over fewer at the ends."""
    window = numpy.ones(len(values) // 20)
    counts = numpy.convolve(numpy.ones(len(values)), window, mode="same")
    return numpy.convolve(values, window, mode="same") / counts


def _label(label: str, points: Points, finite: Points, *, with_lowest: bool) -> str:
    """Return the label in the legend, with the number of values that are not finite."""
    if with_lowest and finite:
        step, value = min(finite, key=lambda point: point[1])
        label = f"{label} (lowest {value:.4g} at step {step:g})"
    missing = len(points) - len(finite)
    if missing:
        label = f"{label} ({missing} of {len(points)} not finite)"
    # A label that begins with an underscore would be hidden.
    return f" {_plain(label)}" if label.startswith("_") else _plain(label)


def _plain(text: str) -> str:
    """Escape dollar signs, which would begin a formula, and drop what XML has no letters for."""
    return "".join(letter for letter in text if letter.isprintable()).replace("$", r"\$")
