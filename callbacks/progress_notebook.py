"""Show the progress of training as a table in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ._log_values import failures_as_warnings, is_training_log
from ._text import shortened
from .progress import ProgressBar, ProgressCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from ..facade import TrainingArguments

_MAX_ROWS = 200
_HIDDEN_METRIC_SUFFIXES = (
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "model_preparation_time",
    "jit_compilation_time",
)


class NotebookProgressCallback(ProgressCallback):
    """Show the progress of a training in a notebook: a bar, and a table of metrics.

    Works like `transformers.utils.notebook.NotebookProgressCallback`.

    The Trainer uses it by default in the kernel of a notebook. The table below the bar has a row
    for each evaluation, with training loss, validation loss and metrics, or a row for each log if
    there are no evaluations. Evaluations and predictions have a second bar. Only process 0 shows
    anything.

    Args:
        max_str_len: a longer string is truncated in the table.
    """

    def __init__(self, max_str_len: int = 100) -> None:
        super().__init__(max_str_len)
        self._output = _CellOutput(max_str_len)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> None:
        """Add a row if there are no evaluations, and show the last values beside the bar."""
        has_no_evaluations = getattr(args, "eval_strategy", "no") == "no"
        if self.training_bar is not None and has_no_evaluations and is_training_log(logs):
            self._output.add_row({"Step": state.global_step, "Training Loss": logs["loss"]})
        super().on_log(args, state, control, logs, **kwargs)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        """Add a row, or the metrics of another set to the row of the same step."""
        if state.is_world_process_zero:
            with failures_as_warnings(self, "Showing the evaluation"):
                row = _position(args, state)
                row["Training Loss"] = _last_loss(state)
                row |= _metrics_by_title(metrics or {})
                self._output.add_row(row)
                self._output.draw()
        super().on_evaluate(args, state, control, **kwargs)

    def _make_bar(self, **options: Any) -> ProgressBar:
        bar = _CellBar(self._output, **options)
        self._output.bars.append(bar)
        self._output.draw()
        return bar

    def _close_training_bar(self) -> None:
        super()._close_training_bar()
        self._output = _CellOutput(self.max_str_len)

    def _close_prediction_bar(self) -> None:
        super()._close_prediction_bar()
        # An evaluation or a prediction without a training leaves its own output.
        if self.training_bar is None:
            self._output = _CellOutput(self.max_str_len)


class _CellOutput:
    """The output of a cell, bars and a table, which is redrawn in place.

    Attributes:
        bars: the bars, in their order.
        rows: values by column; later rows may add columns.
    """

    def __init__(self, max_str_len: int) -> None:
        self.max_str_len = max_str_len
        self.bars: list[_CellBar] = []
        self.rows: list[dict[str, Any]] = []
        # A `DisplayHandle` of IPython, which is imported when something is drawn.
        self._handle: Any = None

    def add_row(self, row: dict[str, Any]) -> None:
        """Add a row, or merge it into the last row if that is of the same step or epoch.

        Args:
            row: values by column; the first column is the step or the epoch.
        """
        first_column = next(iter(row))
        if self.rows and self.rows[-1].get(first_column) == row[first_column]:
            self.rows[-1].update(row)
        else:
            self.rows.append(row)

    def draw(self) -> None:
        """Draw the bars and the table."""
        from IPython.display import (
            HTML,
            display,  # pyright: ignore[reportUnknownVariableType] - untyped in IPython
        )

        parts = [bar.html() for bar in self.bars]
        parts.append(self._table())
        page = HTML("".join(parts))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)

    def _table(self) -> str:
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
        # Six decimals would leave few digits of a smaller number, such as a learning rate.
        if isinstance(value, float) and abs(value) >= 1e-3:
            value = f"{value:.6f}"
        return escape(shortened(value, self.max_str_len))


class _CellBar(tqdm):  # pyright: ignore[reportMissingTypeArgument] - it cannot be subscripted
    """A bar of tqdm that is drawn in the output of a cell; tqdm decides when.

    Args:
        output: the output of the cell.
        options: as tqdm takes them.
    """

    def __init__(self, output: _CellOutput, **options: Any) -> None:
        self.output = output
        # With `gui` tqdm writes nothing itself, and with a width of 0 its text has no bar.
        super().__init__(gui=True, ncols=0, **options)  # pyright: ignore[reportUnknownMemberType] - untyped in tqdm

    def display(self, *args: object, **kwargs: object) -> None:
        """Draw the cell; tqdm calls this when the bar has changed."""
        self.output.draw()

    def write(self, *args: object, **kwargs: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - accepts all arguments of tqdm
        """Drop the text, since the table has the logs, and draw the cell."""
        self.output.draw()

    def close(self) -> None:
        """Leave the bar in the notebook or remove it."""
        if self.disable:  # closed before
            return
        super().close()
        if not self.leave:
            self.output.bars.remove(self)
        self.output.draw()

    def html(self) -> str:
        """Return the bar, with its text in one line."""
        # Without a total the browser draws a bar that moves back and forth.
        limits = ""
        if self.total is not None:
            limits = f' value="{self.n}" max="{max(self.total, 1)}"'

        return (
            f'<div style="font-variant-numeric: tabular-nums"><progress{limits} style="width: '
            f'300px; height: 1.2em; vertical-align: middle"></progress> {escape(str(self))}</div>'
        )


def _position(args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
    """Return the first column of a row, with its value."""
    if getattr(args, "eval_strategy", "no") == "epoch":
        return {"Epoch": f"{state.epoch or 0:.4g}"}
    return {"Step": state.global_step}


def _last_loss(state: TrainerState) -> float | str:
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
        if name == "epoch" or not metric or metric.endswith(_HIDDEN_METRIC_SUFFIXES):
            continue
        title = "Validation Loss" if metric == "loss" else metric.replace("_", " ").title()
        by_title[title] = value
    return by_title
