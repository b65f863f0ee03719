"""The callback that writes the report."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...lightning_modules.common.libraries import is_installed
from .._files import trial_folder, write_whole
from .._log_values import add_to_logs, going_on, is_training_log
from ..base import TrainerCallback
from ..memory import memory_in_use
from ..state import TrainerControl, TrainerState
from ..throughput import ThroughputCallback

logger = logging.getLogger(__name__)

_SHARE = 0.02
"""At most this part of the time goes into drawing during training."""


class RunReportCallback(TrainerCallback):
    """No counterpart in transformers: writes `report.html` and `report.png` about the run into its folder.

    Drawn over the steps are losses, metrics of evaluations, learning rate, gradient norm, throughput, memory, and what
    a script logs of its own. The page is one file that fetches nothing, for large and small screens, light and dark.
    It is written after evaluations and checkpoints, as often as costs at most 2 % of the time, and when training ends,
    each time whole or not at all; by the first process of all. What is drawn is `state.log_history`, so a resumed
    training has the curves of the whole one. Values that are not finite are marked and named.

    Throughput and memory are added to the logs (`samples_per_second`, `tokens_per_second`, `steps_per_second`,
    `host_memory_gib`, `device_memory_peak_gib`) where no `ThroughputCallback` and `MemoryCallback` does so. No device
    is waited for.

    Args:
        folder: where the files go; `output_dir` if not given, in a search for hyperparameters a subfolder of it with
            the name of the trial.
        picture: also draw the PNG, for which matplotlib is needed; by default if that is installed.

    Raises:
        ImportError: `picture` is True and matplotlib is not installed.
    """

    adds_to_logs = True
    reads_checkpoints = False

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, picture: bool | None = None) -> None:
        drawable = is_installed("matplotlib")
        if picture and not drawable:
            raise ImportError(
                "The picture of RunReportCallback needs the package matplotlib, which is not installed: run `pip "
                "install 'lightrainer[plot]'`, or leave `picture` out to get the page alone."
            )
        self.folder = folder
        self.picture = drawable if picture is None else picture
        self._speed = ThroughputCallback(flops=None)
        self._not_before: dict[str, float] = {}
        self._status = "running"

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Begin to measure the speed."""
        self._not_before = {}
        self._status = "running"
        self._speed.on_train_begin(args, state, control, **kwargs)

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> TrainerControl | None:
        """Add speed and memory to the training logs, unless another callback has."""
        if not is_training_log(logs):
            return
        present = dict(logs)
        self._speed.on_log(args, state, control, logs=logs, **kwargs)
        add_to_logs(logs, state, memory_in_use() | present)

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Write what there is so far, unless the last time was too short a time ago; after the training always."""
        if self._status != "running":
            self._not_before = {}
        self._write(args, state)
        self._speed.on_evaluate(args, state, control, **kwargs)

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> TrainerControl | None:
        """Keep the time for predicting out of the speed."""
        self._speed.on_predict(args, state, control, metrics)

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl | None:
        """Write what there is so far, unless the last time was too short a time ago."""
        self._write(args, state)
        self._speed.on_save(args, state, control, **kwargs)

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Write the report on the whole run."""
        self._speed.on_train_end(args, state, control, **kwargs)
        self._not_before = {}
        self._status = "finished" if state.global_step >= state.max_steps else "stopped"
        self._write(args, state)

    def _write(self, args: Any, state: TrainerState) -> None:
        if not state.is_world_process_zero:
            return
        folder = self._folder(args, state)
        self._draw(folder / "report.html", lambda: _page(args, state, self._status if state.max_steps else "evaluated"))
        if self.picture:
            self._draw(folder / "report.png", lambda: _picture(args, state))

    def _draw(self, path: Path, draw: Callable[[], bytes | None]) -> None:
        """Write a file, unless the time for drawing is used up; what fails in it does not stop the training."""
        started = time.monotonic()
        if started < self._not_before.get(path.name, 0.0):
            return
        with going_on(self, f"Writing the report {path}"):
            content = draw()
            if content is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, content)
        finished = time.monotonic()
        self._not_before[path.name] = finished + (finished - started) / _SHARE

    def _folder(self, args: Any, state: TrainerState) -> Path:
        return Path(trial_folder(args.output_dir if self.folder is None else self.folder, state))


def _page(args: Any, state: TrainerState, status: str) -> bytes:
    from .page import render_page

    return render_page(args, state, status=status).encode("utf-8")


def _picture(args: Any, state: TrainerState) -> bytes | None:
    from .chart import draw
    from .curves import panels
    from .page import run_name

    drawn = panels(state.log_history)
    return draw(drawn, run_name(args)) if drawn else None
