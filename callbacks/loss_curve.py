"""A picture of the losses."""

from __future__ import annotations

import io
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..lightning_modules.common.libraries import is_installed
from ._files import write_whole
from ._log_values import going_on, numbers_in, split_history
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = list[tuple[float, float]]
"""Points of step and value, by ascending step."""

_TRAIN_COLOR = "#4c72b0"
_EVAL_COLORS = ("#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")
_LARGEST = 1e300
"""Of a value that is drawn: an axis for it would be infinite otherwise."""
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
    losses = {name: curve for name, curve in _curves(log_history).items() if name.endswith("loss")}
    rates = _curves(log_history).get("learning_rate", [])
    if not losses:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.6 if rates else 4.6), dpi=120)
    figure.subplots_adjust(left=0.1, right=0.97, top=0.92, bottom=0.11, hspace=0.12)  # to measure takes half the time
    FigureCanvasAgg(figure)
    if rates:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        _draw_rates(lower, rates)
    else:
        upper = lower = figure.subplots()
    _draw_losses(upper, losses)
    lower.set_xlabel("step")
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _curves(log_history: list[dict[str, Any]]) -> dict[str, Curve]:
    """Return the numbers in the logs as curves; `loss`, `learning_rate` and each loss of an evaluation."""
    curves: dict[str, dict[float, float]] = {}
    for step, values in numbers_in(split_history(log_history)[0]):
        for name, value in values.items():
            if name in ("loss", "learning_rate") or (name.startswith("eval_") and name.endswith("loss")):
                curves.setdefault(name, {})[step] = value if abs(value) <= _LARGEST else math.nan
    return {name: sorted(points.items()) for name, points in curves.items()}


def _draw_losses(axes: Axes, losses: dict[str, Curve]) -> None:
    """Draw the training loss, with its running mean if it has many points, and the evaluation losses."""
    evaluations = {name: curve for name, curve in losses.items() if name != "loss"}
    if "loss" in losses:
        _draw_training(axes, losses["loss"])
    for index, (name, curve) in enumerate(evaluations.items()):
        label = "evaluation" if name == "eval_loss" else f"evaluation: {name[5:].removesuffix('_loss')}"
        color = _EVAL_COLORS[index % len(_EVAL_COLORS)]
        axes.plot(
            *_columns(curve), color=color, linewidth=2, marker="o", markersize=4, label=f"{label}{_lowest(curve)}"
        )
    axes.set_title("Loss", loc="left", fontsize=14, fontweight="bold")
    axes.set_ylabel("loss")
    axes.legend(frameon=False)
    _tidy(axes)


def _draw_training(axes: Axes, curve: Curve) -> None:
    if len(curve) < _MANY_POINTS:
        axes.plot(*_columns(curve), color=_TRAIN_COLOR, linewidth=2, label="training")
        return
    axes.plot(*_columns(curve), color=_TRAIN_COLOR, linewidth=0.8, alpha=0.35)
    reach = len(curve) // 40
    smooth = _columns(_smooth(curve, reach))
    axes.plot(*smooth, color=_TRAIN_COLOR, linewidth=2, label=f"training, mean of {2 * reach + 1} logs")


def _draw_rates(axes: Axes, rates: Curve) -> None:
    axes.plot(*_columns(rates), color="#777777", linewidth=1.5)
    axes.fill_between(*_columns(rates), color="#777777", alpha=0.12)
    axes.set_ylabel("learning rate")
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.margins(x=0.02)


def _columns(curve: Curve) -> tuple[list[float], list[float]]:
    return [step for step, _ in curve], [value for _, value in curve]


def _lowest(curve: Curve) -> str:
    """Say where the curve is lowest, for the legend."""
    finite = [(value, step) for step, value in curve if math.isfinite(value)]
    if not finite:
        return ""
    value, step = min(finite)
    return f" (lowest {value:.4g} at step {step})"


def _smooth(curve: Curve, reach: int) -> Curve:
    """Return the mean of each point and `reach` neighbours on either side, fewer at the ends, which then do not bend.

    Values that are not finite are left out.
    """
    smooth = []
    for index, (step, _) in enumerate(curve):
        near = min(reach, index, len(curve) - 1 - index)
        window = [value for _, value in curve[index - near : index + near + 1] if math.isfinite(value)]
        smooth.append((step, sum(window) / len(window) if window else math.nan))
    return smooth
