"""Draw panels of curves with matplotlib."""

# The methods of matplotlib take `**kwargs` without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ...lightning_modules.common.libraries import is_installed
from .curves import Panel, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_PANELS = 40
"""Largest number of charts in a picture."""

_MAX_LABELS = 8
"""Largest number of curves in a chart with a legend."""


def check_matplotlib(purpose: str) -> None:
    """Check that matplotlib is installed.

    Raises:
        ImportError: matplotlib is not installed; the message has the purpose and the command.
    """
    if not is_installed("matplotlib"):
        raise ImportError(
            f"{purpose} needs matplotlib, which is not installed. Install it with "
            "pip install 'lightrainer[plot]'."
        )


def draw(
    panels: Sequence[Panel], title: str = "", columns: int = 3, file_format: str = "png"
) -> bytes:
    """Return a picture with the charts side by side.

    Args:
        panels: at least one; the first 40 are drawn.
        title: the title of the picture, above the charts.
        columns: the largest number of charts in a row.
        file_format: `png` or `svg`.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Lay out the charts. pyplot is not used, because its settings and windows belong to the script.
    panels = panels[:_MAX_PANELS]
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = max(5.6 * columns, 9)
    height = 3.2 * rows + 0.6
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    figure.suptitle(_escaped(title), x=0.01, ha="left", fontsize=15)
    all_axes = figure.subplots(rows, columns, squeeze=False).flatten()

    # Draw the charts, and hide the axes that are left over in the last row.
    for axes, panel in zip(all_axes, panels, strict=False):
        _draw_panel(axes, panel)
    for axes in all_axes[len(panels) :]:
        axes.set_axis_off()

    # Write the picture. In an SVG, text is written as text instead of outlines; without the date,
    # and with a fixed salt of the ids, equal pictures are equal files.
    metadata = {"Date": None} if file_format == "svg" else None
    picture = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "lightrainer"}):
        figure.savefig(picture, format=file_format, metadata=metadata)
    return picture.getvalue()


def draw_loss_curve(
    log_history: Iterable[dict[str, Any]], file_format: str = "png"
) -> bytes | None:
    """Return a picture of the losses and learning rates; `None` if no losses were logged.

    Args:
        log_history: the `log_history` of a `TrainerState`.
        file_format: `png` or `svg`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    check_matplotlib("The picture of the losses")
    # The learning rates are only drawn below the losses.
    panels_by_title = {panel.title: panel for panel in panels(log_history)}
    if "loss" not in panels_by_title:
        return None
    drawn_panels = [panels_by_title["loss"]]
    if "learning_rate" in panels_by_title:
        drawn_panels.append(panels_by_title["learning_rate"])
    return draw(drawn_panels, columns=1, file_format=file_format)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw the curves of a panel, and mark the steps of values that are not finite."""
    for label, points in panel.curves.items():
        finite_points = [(step, value) for step, value in points if math.isfinite(value)]
        steps = [step for step, _ in finite_points]
        values = [value for _, value in finite_points]
        # The label begins with a space: matplotlib hides labels that begin with an underscore.
        axes.plot(steps, values, label=f" {_escaped(label)}", marker=".")

        # Draw a red line at the step of each value that is NaN or infinite.
        for step, value in points:
            if not math.isfinite(value):
                axes.axvline(step, color="red", linewidth=0.8, linestyle=":")

    axes.set_title(_escaped(panel.title), loc="left", fontsize=11)
    if len(panel.curves) <= _MAX_LABELS:
        axes.legend(fontsize=8)
    axes.grid(alpha=0.25)


def _escaped(text: str) -> str:
    """Escape dollar signs, which begin a formula, and drop characters that XML does not allow."""
    printable = "".join(character for character in text if character.isprintable())
    return printable.replace("$", r"\$")
