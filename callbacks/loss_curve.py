"""A picture of the losses."""

from __future__ import annotations

import io
import itertools
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..lightning_modules.common.libraries import is_installed
from ._files import write_whole
from ._log_values import going_on
from .base import TrainerCallback
from .report.curves import LARGEST, Curve, Points, panels, smoothed
from .report.loss_picture import label_with_lowest
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TRAIN_COLOR = "#4c72b0"
_EVAL_COLORS = ("#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")
_MANY_POINTS = 60
_DRAWING_SHARE = 0.02
"""At most this part of the time goes into drawing during training."""


class LossCurveCallback(TrainerCallback):
    """No counterpart in transformers: draws training loss, evaluation losses and learning rate over the steps.

    The picture is drawn from `state.log_history` after evaluations, as often as costs at most 2 % of the time, and
    when training ends. Only the first process of all draws.

    Args:
        path: the PNG file; `loss_curve.png` in `output_dir` if not given.

    Raises:
        ImportError: matplotlib is not installed.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        if not is_installed("matplotlib"):
            raise ImportError(
                "LossCurveCallback needs the package matplotlib, which is not installed: run `pip install "
                "'lightrainer[plot]'`, or leave the callback out."
            )
        self.path = path
        self._not_before = 0.0

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Draw what there is so far, unless the last drawing was too short a time ago."""
        if time.monotonic() >= self._not_before:
            self._draw(args, state)

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Draw the whole run."""
        self._draw(args, state)

    def _draw(self, args: Any, state: TrainerState) -> None:
        if not state.is_world_process_zero:
            return
        started = time.monotonic()
        with going_on(self, "Drawing the losses"):
            picture = draw_loss_curve(state.log_history)
            if picture is not None:
                path = Path(args.output_dir) / "loss_curve.png" if self.path is None else Path(self.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, picture)
        finished = time.monotonic()
        self._not_before = finished + (finished - started) / _DRAWING_SHARE


def draw_loss_curve(log_history: list[dict[str, Any]]) -> bytes | None:
    """Return a PNG of the losses and learning rates in `log_history`, or `None` if there are none in it."""
    drawn = {panel.title: panel.curves for panel in panels(log_history)}
    losses, rates = drawn.get("Loss"), drawn.get("Learning rate")
    if not losses:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.6 if rates else 4.6), dpi=120)
    figure.subplots_adjust(left=0.1, right=0.97, top=0.92, bottom=0.11, hspace=0.12)  # to measure takes half the time
    FigureCanvasAgg(figure)
    if rates:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        _draw_rates(lower, rates[0])
    else:
        upper = lower = figure.subplots()
    _draw_losses(upper, losses)
    lower.set_xlabel("step")
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _draw_losses(axes: Axes, losses: list[Curve]) -> None:
    """Draw the training loss, with its running mean if it has many points, and the evaluation losses."""
    colors = itertools.cycle(_EVAL_COLORS)
    for curve in losses:
        if not curve.is_sparse:
            _draw_training(axes, curve)
            continue
        label = label_with_lowest(curve)
        axes.plot(*_columns(curve.points), color=next(colors), linewidth=2, marker="o", markersize=4, label=label)
    axes.set_title("Loss", loc="left", fontsize=14, fontweight="bold")
    axes.set_ylabel("loss")
    axes.legend(frameon=False)
    _tidy(axes)


def _draw_training(axes: Axes, curve: Curve) -> None:
    points = _columns(curve.points)
    if len(curve.finite) < _MANY_POINTS:
        axes.plot(*points, color=_TRAIN_COLOR, linewidth=2, label="training")
        return
    axes.plot(*points, color=_TRAIN_COLOR, linewidth=0.8, alpha=0.35)
    label = f"training, mean of {2 * (len(curve.finite) // 40) + 1} logs"
    axes.plot(*_columns(smoothed(curve.finite)), color=_TRAIN_COLOR, linewidth=2, label=label)


def _draw_rates(axes: Axes, rates: Curve) -> None:
    axes.plot(*_columns(rates.points), color="#777777", linewidth=1.5)
    axes.fill_between(*_columns(rates.points), color="#777777", alpha=0.12)
    axes.set_ylabel("learning rate")
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.margins(x=0.02)


def _columns(points: Points) -> tuple[list[float], list[float]]:
    """Return steps and values; a value that no axis can show becomes NaN, which matplotlib leaves out."""
    return [step for step, _ in points], [value if abs(value) <= LARGEST else math.nan for _, value in points]
