"""The callbacks that draw a run: `RunReportCallback` and `LossCurveCallback`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .._files import trial_folder, write_whole
from .._log_values import failures_as_warnings
from ..base import TrainerCallback
from ..state import TrainerControl, TrainerState
from .curves import panels
from .page import render_page
from .pictures import check_matplotlib, draw, draw_loss_curve

if TYPE_CHECKING:
    from ...facade import TrainingArguments


_MAX_TIME_SHARE = 0.02
"""The fraction of the training time that may be spent on drawing."""


class _DrawingCallback(TrainerCallback):
    """Base of callbacks that draw the logs after evaluations, and when training ends.

    During a training they draw for at most 2 % of its time. Only process 0 draws.

    Raises:
        ImportError: matplotlib is not installed.
    """

    def __init__(self) -> None:
        check_matplotlib(type(self).__name__)
        self._has_ended = False
        self._next_drawing = 0.0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Let the first drawing of this training happen at once."""
        self._has_ended = False
        self._next_drawing = 0.0

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Draw the logs so far, unless the last drawing in this training was too recent."""
        started = time.monotonic()
        is_too_early = started < self._next_drawing and not self._has_ended
        if is_too_early or not state.is_world_process_zero:
            return
        with failures_as_warnings(self, f"{type(self).__name__}: drawing"):
            for path, content in self._draw(args, state).items():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, content)

        # The next drawing comes when this one was the allowed fraction of the time.
        finished = time.monotonic()
        self._next_drawing = finished + (finished - started) / _MAX_TIME_SHARE

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Draw the whole run."""
        self._has_ended = True
        self.on_evaluate(args, state, control)

    def _draw(self, args: TrainingArguments, state: TrainerState) -> dict[Path, bytes]:
        """Return the content of each file."""
        raise NotImplementedError


class LossCurveCallback(_DrawingCallback):
    """Draws training loss, evaluation losses and learning rate. Not in transformers.

    The picture is drawn from `state.log_history`, after evaluations, for at most 2 % of the time,
    and when training ends. Only process 0 draws.

    Args:
        path: the PNG file, by default `loss_curve.png` in `output_dir`.

    Raises:
        ImportError: matplotlib is not installed.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self.path = path

    def _draw(self, args: TrainingArguments, state: TrainerState) -> dict[Path, bytes]:
        picture = draw_loss_curve(state.log_history)
        if picture is None:
            return {}
        path = Path(str(args.output_dir)) / "loss_curve.png"
        if self.path is not None:
            path = Path(self.path)
        return {path: picture}


class RunReportCallback(_DrawingCallback):
    """Writes `report.html` and `report.png` about a run into its folder. Not in transformers.

    The picture has at most 40 charts over the steps: losses, metrics of evaluations, learning rate,
    gradient norm, and the values that the script and other callbacks log, such as
    `ThroughputCallback` and `MemoryCallback`. The page is a single file with that picture and a
    table of the last logs. Both are written after evaluations and checkpoints, for at most 2 % of
    the time, and when training ends, atomically, by process 0. They show `state.log_history`, so a
    resumed training has the curves of the whole run. Values that are not finite are marked and
    counted.

    Args:
        folder: the folder of the files, by default `output_dir`; in a hyperparameter search its
            subfolder with the name of the trial.
        picture: whether to write the PNG as a file too.

    Raises:
        ImportError: matplotlib is not installed.
    """

    reads_checkpoints = False

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, *, picture: bool = True
    ) -> None:
        super().__init__()
        self.folder = folder
        self.picture = picture

    on_save = _DrawingCallback.on_evaluate

    def _draw(self, args: TrainingArguments, state: TrainerState) -> dict[Path, bytes]:
        output_dir = str(args.output_dir)
        chosen_folder = output_dir if self.folder is None else self.folder
        folder = Path(trial_folder(chosen_folder, state))
        name = getattr(args, "run_name", None) or os.path.basename(os.path.abspath(output_dir))

        charts = panels(state.log_history)
        picture = draw(charts, name) if charts else b""
        page = render_page(name, state, self._status(state), picture)
        files = {folder / "report.html": page.encode()}
        if self.picture and picture:
            files[folder / "report.png"] = picture
        return files

    def _status(self, state: TrainerState) -> str:
        # Without any steps to do, there was no training but an evaluation.
        if not state.max_steps:
            return "evaluated"
        if not self._has_ended:
            return "running"
        return "finished" if state.global_step >= state.max_steps else "stopped"
