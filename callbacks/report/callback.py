"""The callback that writes a page with the curves of a run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .._files import trial_folder, write_atomically
from .._log_values import failures_as_warnings
from ..base import TrainerCallback
from ..state import TrainerControl, TrainerState
from .curves import panels
from .page import render_page
from .pictures import check_matplotlib, draw

if TYPE_CHECKING:
    from ...facade import TrainingArguments


_MAX_TIME_SHARE = 0.02
"""The fraction of the training time that may be spent on drawing."""


class RunReportCallback(TrainerCallback):
    """Writes `report.html` and `report.png` about a run into its folder. Not in transformers.

    The picture has at most 40 charts over the steps, one for each logged value. The page is a
    single file with that picture and a table of the last logs.

    Process 0 writes both files when training ends, and after evaluations and checkpoints as long as
    that takes at most 2 % of the time. Each file is replaced atomically. They show
    `state.log_history`, so a resumed training has the curves of the whole run. Values that are not
    finite are marked. In a hyperparameter search each trial has a subfolder with its name.

    Raises:
        ImportError: matplotlib is not installed.
    """

    reads_checkpoints = False

    def __init__(self) -> None:
        check_matplotlib(type(self).__name__)
        self._next_drawing = 0.0

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Draw the logs so far, unless the last drawing was too recent."""
        if time.monotonic() >= self._next_drawing:
            self._write(args, state)

    on_save = on_evaluate

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Draw the whole run."""
        self._write(args, state)

    def _write(self, args: TrainingArguments, state: TrainerState) -> None:
        """Write page and picture, in process 0."""
        if not state.is_world_process_zero:
            return
        started = time.monotonic()
        with failures_as_warnings(self, f"{type(self).__name__}: drawing"):
            output_dir = str(args.output_dir)
            name = getattr(args, "run_name", None) or os.path.basename(os.path.abspath(output_dir))
            folder = Path(trial_folder(output_dir, state))
            folder.mkdir(parents=True, exist_ok=True)

            charts = panels(state.log_history)
            picture = draw(charts, name) if charts else b""
            page = render_page(name, state, picture)
            write_atomically(folder / "report.html", page.encode())
            if picture:
                write_atomically(folder / "report.png", picture)

        # Do not draw again before this drawing has become the allowed fraction of the time.
        finished = time.monotonic()
        self._next_drawing = finished + (finished - started) / _MAX_TIME_SHARE
