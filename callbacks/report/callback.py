"""The callbacks that draw a run: `RunReportCallback` and `LossCurveCallback`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._files import trial_folder, write_whole
from .._log_values import add_to_logs, failures_as_warnings, is_training_log
from ..base import TrainerCallback
from ..memory import memory_in_use
from ..state import TrainerControl, TrainerState
from ..throughput import ThroughputCallback
from .curves import panels
from .page import render_page
from .pictures import check_matplotlib, draw, draw_loss_curve

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments


_MAX_TIME_SHARE = 0.02
"""The fraction of the training time that may be spent on drawing."""


class _DrawingCallback(TrainerCallback):
    """Base of callbacks that draw during a training, for at most 2 % of its time.

    Raises:
        ImportError: matplotlib is not installed.
    """

    def __init__(self) -> None:
        check_matplotlib(type(self).__name__)
        self._next_drawing = 0.0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Let the first drawing of this training happen at once."""
        self._next_drawing = 0.0

    def _write_files(self, draw: Callable[[], dict[Path, bytes]]) -> None:
        """Write the files that `draw` returns, unless the time for drawing is used up.

        A failure is logged once.

        Args:
            draw: returns the content of each file.
        """
        started = time.monotonic()
        if started < self._next_drawing:
            return
        with failures_as_warnings(self, f"{type(self).__name__}: drawing"):
            for path, content in draw().items():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, content)

        # The next drawing comes when this one was the allowed fraction of the time.
        finished = time.monotonic()
        self._next_drawing = finished + (finished - started) / _MAX_TIME_SHARE


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

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Draw the logs so far, unless the last drawing was too recent."""
        if state.is_world_process_zero:
            self._write_files(lambda: self._draw(args, state))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Draw the whole run."""
        self._next_drawing = 0.0
        self.on_evaluate(args, state, control)

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
    gradient norm, throughput, memory, and the values that the script logs. The page is a single
    file with that picture and a table of the last logs. Both are written after evaluations and
    checkpoints, for at most 2 % of the time, and when training ends, atomically, by process 0. They
    show `state.log_history`, so a resumed training has the curves of the whole run. Values that are
    not finite are marked and counted.

    Throughput and memory are added to the logs (`samples_per_second`, `tokens_per_second`,
    `steps_per_second`, `host_memory_gib`, `device_memory_peak_gib`) unless a `ThroughputCallback`
    or `MemoryCallback` does so. The device is not synchronized.

    Args:
        folder: the folder of the files, by default `output_dir`; in a hyperparameter search its
            subfolder with the name of the trial.
        picture: whether to write the PNG as a file too.

    Raises:
        ImportError: matplotlib is not installed.
    """

    adds_to_logs = True
    reads_checkpoints = False

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, *, picture: bool = True
    ) -> None:
        super().__init__()
        self.folder = folder
        self.picture = picture
        self._throughput = ThroughputCallback(flops=None)
        self._status = "running"

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Start to measure the speed."""
        super().on_train_begin(args, state, control)
        self._status = "running"
        self._throughput.on_train_begin(args, state, control, model)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        *,
        model: nn.Module | None = None,
        train_dataloader: object = None,
        **kwargs: object,
    ) -> None:
        """Add speed and memory to the training logs, unless another callback has."""
        if not is_training_log(logs):
            return
        logged_by_others = dict(logs)
        self._throughput.on_log(
            args, state, control, logs, model=model, train_dataloader=train_dataloader
        )
        add_to_logs(logs, state, memory_in_use() | logged_by_others)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Write the report so far, unless the last one in this training was too recent."""
        if self._status != "running":
            self._next_drawing = 0.0
        self._write(args, state)
        self._throughput.on_evaluate(args, state, control)

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *metrics: object,
        **kwargs: object,
    ) -> None:
        """Exclude the time for predicting from the speed."""
        self._throughput.on_predict(args, state, control)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Write the report so far, unless the last one was too recent."""
        self._write(args, state)
        self._throughput.on_save(args, state, control)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Write the report of the whole run."""
        self._throughput.on_train_end(args, state, control)
        self._next_drawing = 0.0
        self._status = "finished" if state.global_step >= state.max_steps else "stopped"
        self._write(args, state)

    def _write(self, args: TrainingArguments, state: TrainerState) -> None:
        if state.is_world_process_zero:
            self._write_files(lambda: self._draw(args, state))

    def _draw(self, args: TrainingArguments, state: TrainerState) -> dict[Path, bytes]:
        output_dir = str(args.output_dir)
        chosen_folder = output_dir if self.folder is None else self.folder
        folder = Path(trial_folder(chosen_folder, state))
        name = getattr(args, "run_name", None) or os.path.basename(os.path.abspath(output_dir))

        # Without any steps to do, there was no training but an evaluation.
        status = self._status if state.max_steps else "evaluated"
        charts = panels(state.log_history)
        picture = draw(charts, name) if charts else b""

        page = render_page(name, state, status, picture)
        files = {folder / "report.html": page.encode()}
        if self.picture and picture:
            files[folder / "report.png"] = picture
        return files
