"""Show the progress of training as a table in a notebook."""

from __future__ import annotations

import time
from html import escape
from typing import TYPE_CHECKING, Any

from ..lightning_modules.common.libraries import loaded
from ._log_values import failures_as_warnings, is_training_log
from ._text import shortened
from .progress import ProgressBar, ProgressCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from ..facade import TrainingArguments

_SECONDS_BETWEEN_DRAWINGS = 0.2
_MAX_ROWS = 200
_HIDDEN_METRICS = (
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "model_preparation_time",
    "jit_compilation_time",
)
"""Metrics whose names end with these are not in the table."""


class NotebookProgressCallback(ProgressCallback):
    """Show the progress of a training in a notebook: a bar, and a table of metrics.

    Works like `transformers.utils.notebook.NotebookProgressCallback`.

    The Trainer uses it by default in the kernel of a notebook. The bar shows steps, elapsed and
    remaining time, epoch, last losses, learning rate and speed. The table below has a row for each
    evaluation, with training loss, validation loss and metrics, or a row for each log if there are
    no evaluations. Evaluations and predictions have a second bar. Nothing is shown with
    `disable_tqdm`, nor in processes other than process 0.

    Args:
        max_str_len: a longer string is truncated in the table.
    """

    replaces = ProgressCallback
    _obeys_disable_tqdm = True

    def __init__(self, max_str_len: int = 100) -> None:
        super().__init__(max_str_len)
        self.table = _Table(max_str_len)
        self._output: _CellOutput | None = None
        self._has_ended = False

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Show a bar and, from the first row on, a table."""
        self._output = None
        self._has_ended = False
        self.table = _Table(self.max_str_len)
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None:
            self._get_output().table = self.table

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        *,
        train_dataloader: object = None,
        **kwargs: object,
    ) -> None:
        """Add a row if there are no evaluations, and show the last values beside the bar."""
        has_no_evaluations = getattr(args, "eval_strategy", "no") == "no"
        if self.training_bar is not None and has_no_evaluations and is_training_log(logs):
            self.table.add({"Step": state.global_step, "Training Loss": logs["loss"]})
        super().on_log(args, state, control, logs, train_dataloader=train_dataloader)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        """Add a row, or the metrics of another set to the row of the same step."""
        if self._is_shown(args, state):
            with failures_as_warnings(self, "Showing the evaluation"):
                self._add_evaluation(args, state, metrics or {})
                self._draw_table()
        # After drawing, since this drops the output of an evaluation without a training.
        super().on_evaluate(args, state, control, **kwargs)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Leave bar and table in the notebook, as they are now."""
        if self._is_shown(args, state) and self.training_bar is not None:
            self._draw_table()
        super().on_train_end(args, state, control, **kwargs)
        self._output = None
        self._has_ended = True

    def _add_evaluation(
        self, args: TrainingArguments, state: TrainerState, metrics: dict[str, float]
    ) -> None:
        """Add an evaluation to the table."""
        column = "Step"
        position: object = state.global_step
        if getattr(args, "eval_strategy", "no") == "epoch":
            column = "Epoch"
            position = f"{state.epoch or 0:.4g}"

        # After the training, the model may be another one: the best, or one that was loaded.
        if self._has_ended:
            self.table.rows.append({column: "after training", **_metrics_by_title(metrics)})
            return

        row = {column: position, "Training Loss": _last_loss(state)}
        self.table.add(row | _metrics_by_title(metrics))

    def _make_bar(
        self, name: str, *, total: int | None, initial: int = 0, leave: bool = True
    ) -> ProgressBar:
        output = self._get_output()
        bar = _NotebookBar(output, total=total, initial=initial, leave=leave)
        output.bars.append(bar)
        output.draw()
        return bar

    def _draw_table(self) -> None:
        output = self._get_output()
        output.table = self.table
        output.draw()

    def _get_output(self) -> _CellOutput:
        """Return the output of the cell, without a table until the training or an evaluation has
        something to show: predictions have a bar only.
        """
        if self._output is None:
            self._output = _CellOutput(_Table(self.max_str_len))
        return self._output

    def _close_prediction_bar(self) -> None:
        super()._close_prediction_bar()
        if self.training_bar is None:
            self._output = None


class _CellOutput:
    """The output of a cell, which is redrawn in place."""

    def __init__(self, table: _Table) -> None:
        self.table = table
        self.bars: list[_NotebookBar] = []
        # A `DisplayHandle` of IPython, which is imported when something is drawn.
        self._handle: Any = None
        self._next_drawing = 0.0

    def draw(self, now: bool = True) -> None:
        """Draw the bars and the table.

        Args:
            now: False skips drawings that are too frequent; drawing may take longer than a step.
        """
        current_time = time.monotonic()
        if not now and current_time < self._next_drawing:
            return
        self._next_drawing = current_time + _SECONDS_BETWEEN_DRAWINGS
        from IPython.display import (
            HTML,
            display,  # pyright: ignore[reportUnknownVariableType] - untyped in IPython
        )

        parts = [bar.html() for bar in self.bars]
        parts.append(self.table.html())
        page = HTML("".join(parts))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)


class _NotebookBar:
    """One bar, with the methods of a `ProgressBar`."""

    def __init__(
        self, output: _CellOutput, *, total: int | None, initial: int, leave: bool
    ) -> None:
        self.output = output
        self.total = total
        self.leave = leave
        self.initial = initial
        self.n = initial
        self.values: dict[str, str] = {}
        self._start_time = time.monotonic()

    def update(self, n: int) -> None:
        """Advance by `n`."""
        self.n += n
        self.output.draw(now=self.n == self.total)

    def set_postfix(self, values: dict[str, str], refresh: bool = True) -> None:
        """Show these values beside the bar."""
        self.values = dict(values)
        self.output.draw()

    def write(self, text: str) -> None:
        """Ignore the line: the table shows the logs."""

    def close(self) -> None:
        """Leave the bar in the notebook or remove it."""
        if not self.leave:
            self.output.bars.remove(self)
        self.output.draw()

    def html(self) -> str:
        """Return the bar, with the values beside it in one line."""
        # Without a total the browser draws a bar that moves back and forth.
        count = f"{self.n}"
        limits = ""
        if self.total is not None:
            count = f"{self.n}/{self.total}"
            limits = f' value="{self.n}" max="{max(self.total, 1)}"'

        # The speed is that since the start of the bar, which may resume at a later step.
        from tqdm import tqdm

        elapsed = time.monotonic() - self._start_time
        steps_done = self.n - self.initial
        remaining = "?"
        if self.total is not None and steps_done > 0 and self.n <= self.total:
            seconds = elapsed / steps_done * (self.total - self.n)
            remaining = tqdm.format_interval(round(seconds))

        texts = [count, f"{tqdm.format_interval(round(elapsed))} &lt; {remaining}"]
        for label, value in self.values.items():
            texts.append(f"{escape(label)} {escape(value)}")
        return (
            f'<div style="font-variant-numeric: tabular-nums"><progress{limits} style="width: '
            f'300px; height: 1.2em; vertical-align: middle"></progress> {" · ".join(texts)}</div>'
        )


class _Table:
    """Rows of values by column; later rows may add columns."""

    def __init__(self, max_str_len: int) -> None:
        self.max_str_len = max_str_len
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, or merge it into the last row if that is of the same step or epoch.

        Args:
            row: values by column; the first column is the step or the epoch.
        """
        first_column = next(iter(row))
        if self.rows and self.rows[-1].get(first_column) == row[first_column]:
            self.rows[-1].update(row)
        else:
            self.rows.append(row)

    def html(self) -> str:
        """Return the last rows as a table, with the number of earlier ones."""
        if not self.rows:
            return ""
        # The columns of all rows, in the order of their first values.
        columns: dict[str, None] = {}
        for row in self.rows:
            columns.update(dict.fromkeys(row))

        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        lines = [f"<thead><tr>{head}</tr></thead>"]
        if len(self.rows) > _MAX_ROWS:
            lines.append(f"<tr><td>{len(self.rows) - _MAX_ROWS} earlier rows</td></tr>")
        for row in self.rows[-_MAX_ROWS:]:
            cells = "".join(f"<td>{self._text(row.get(name, ''))}</td>" for name in columns)
            lines.append(f"<tr>{cells}</tr>")
        return f'<table class="dataframe">{"".join(lines)}</table>'

    def _text(self, value: object) -> str:
        if isinstance(value, float) and abs(value) >= 1e-3:
            value = f"{value:.6f}"
        return escape(shortened(value, self.max_str_len))


def _last_loss(state: TrainerState) -> object:
    """Return the last logged training loss, which may be older than the current step."""
    for entry in reversed(state.log_history):
        if "loss" in entry:
            return entry["loss"]
    return "No log"


def _metrics_by_title(metrics: dict[str, float]) -> dict[str, object]:
    """Return the metrics of an evaluation by readable titles, without times and speeds."""
    by_title: dict[str, object] = {}
    for name, value in metrics.items():
        _, _, metric = str(name).partition("_")
        if name == "epoch" or not metric or metric.endswith(_HIDDEN_METRICS):
            continue
        title = "Validation Loss" if metric == "loss" else metric.replace("_", " ").title()
        by_title[title] = value
    return by_title


def default_progress_callback() -> type[ProgressCallback]:
    """Return `NotebookProgressCallback` in a notebook, otherwise `ProgressCallback`."""
    return NotebookProgressCallback if is_in_notebook() else ProgressCallback


def is_in_notebook() -> bool:
    """Return whether this process is a notebook kernel, without importing IPython."""
    ipython = loaded("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})
