"""The callbacks that draw a run: `RunReportCallback` and `LossCurveCallback`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._files import trial_folder, write_whole
from .._log_values import add_to_logs, going_on, is_training_log
from ..base import TrainerCallback
from ..memory import memory_in_use
from ..state import TrainerControl, TrainerState
from ..throughput import ThroughputCallback
from .curves import panels
from .page import render_page
from .pictures import check_matplotlib, draw, draw_loss_curve

_SHARE = 0.02
"""At most this part of the time goes into drawing during training."""


class _DrawingCallback(TrainerCallback):
    """Base of callbacks that draw during a training, as often as costs at most 2 % of the time.

    Raises:
        ImportError: matplotlib is not installed.
    """

    def __init__(self) -> None:
        check_matplotlib(type(self).__name__)
        self._not_before = 0.0

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget how long drawings took."""
        self._not_before = 0.0

    def _write_files(self, draw: Callable[[], dict[Path, bytes]]) -> None:
        """Write what `draw` returns, unless the time for drawing is used up; a failure is logged
        once.
        """
        started = time.monotonic()
        if started < self._not_before:
            return
        with going_on(self, f"{type(self).__name__}: drawing"):
            for path, content in draw().items():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, content)
        finished = time.monotonic()
        self._not_before = finished + (finished - started) / _SHARE


class LossCurveCallback(_DrawingCallback):
    """No counterpart in transformers: draws training loss, evaluation losses and learning rate over
    the steps.

    The picture is drawn from `state.log_history` after evaluations, as often as costs at most 2 %
    of the time, and when training ends. Only the first process of all draws.

    Args:
        path: the PNG file; `loss_curve.png` in `output_dir` if not given.

    Raises:
        ImportError: matplotlib is not installed.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self.path = path

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Draw what there is so far, unless the last drawing was too short a time ago."""
        if state.is_world_process_zero:
            self._write_files(lambda: self._draw(args, state))

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Draw the whole run."""
        self._not_before = 0.0
        self.on_evaluate(args, state, control)

    def _draw(self, args: Any, state: TrainerState) -> dict[Path, bytes]:
        path = Path(args.output_dir) / "loss_curve.png" if self.path is None else Path(self.path)
        picture = draw_loss_curve(state.log_history)
        return {} if picture is None else {path: picture}


class RunReportCallback(_DrawingCallback):
    """No counterpart in transformers: writes `report.html` and `report.png` about the run into its
    folder.

    The picture shows losses, metrics of evaluations, learning rate, gradient norm, throughput,
    memory, and what a script logs of its own, over the steps: at most 40 charts. The page is a
    single file with that picture and a table of the last logs. Both are written after evaluations
    and checkpoints, as often as costs at most 2 % of the time, and when training ends, atomically,
    by process 0. They show `state.log_history`, so a resumed training has the curves of the whole
    one. Values that are not finite are marked and counted.

    Throughput and memory are added to the logs (`samples_per_second`, `tokens_per_second`,
    `steps_per_second`, `host_memory_gib`, `device_memory_peak_gib`) unless a `ThroughputCallback`
    or `MemoryCallback` does so. The device is not synchronized.

    Args:
        folder: where the files go; `output_dir` if not given, in a search for hyperparameters a
            subfolder of it with the name of the trial.
        picture: write the PNG as a file, too.

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
        self._speed = ThroughputCallback(flops=None)
        self._status = "running"

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to measure the speed."""
        super().on_train_begin(args, state, control)
        self._status = "running"
        self._speed.on_train_begin(args, state, control, **kwargs)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **kwargs: Any,
    ) -> None:
        """Add speed and memory to the training logs, unless another callback has."""
        if not is_training_log(logs):
            return
        present = dict(logs)
        self._speed.on_log(args, state, control, logs=logs, **kwargs)
        add_to_logs(logs, state, memory_in_use() | present)

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write what there is so far, unless the last time was too short a time ago; after the
        training always.
        """
        if self._status != "running":
            self._not_before = 0.0
        self._write(args, state)
        self._speed.on_evaluate(args, state, control, **kwargs)

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, *metrics: Any, **kwargs: Any
    ) -> None:
        """Keep the time for predicting out of the speed."""
        self._speed.on_predict(args, state, control)

    def on_save(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write what there is so far, unless the last time was too short a time ago."""
        self._write(args, state)
        self._speed.on_save(args, state, control, **kwargs)

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the report on the whole run."""
        self._speed.on_train_end(args, state, control, **kwargs)
        self._not_before = 0.0
        self._status = "finished" if state.global_step >= state.max_steps else "stopped"
        self._write(args, state)

    def _write(self, args: Any, state: TrainerState) -> None:
        if state.is_world_process_zero:
            self._write_files(lambda: self._draw(args, state))

    def _draw(self, args: Any, state: TrainerState) -> dict[Path, bytes]:
        folder = Path(trial_folder(args.output_dir if self.folder is None else self.folder, state))
        name = getattr(args, "run_name", None) or os.path.basename(os.path.abspath(args.output_dir))
        status = self._status if state.max_steps else "evaluated"
        charts = panels(state.log_history)
        picture = draw(charts, name) if charts else b""
        files = {folder / "report.html": render_page(name, state, status, picture).encode()}
        if self.picture and picture:
            files[folder / "report.png"] = picture
        return files
