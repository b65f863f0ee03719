"""Show the progress of training as a table in a notebook."""

from __future__ import annotations

import time
from html import escape
from typing import Any

from ..lightning_modules.common.libraries import loaded
from ._log_values import going_on, shortened
from ._work import clock
from .progress import ProgressCallback, beside_the_bar
from .state import TrainerControl, TrainerState

_SECONDS_BETWEEN_DRAWINGS = 0.2
_MOST_ROWS = 200
_NOT_SHOWN = (
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "model_preparation_time",
    "jit_compilation_time",
)


class NotebookProgressCallback(ProgressCallback):
    """As `transformers.utils.notebook.NotebookProgressCallback`: a bar and a table of losses and
    metrics.

    The Trainer uses it by itself in the kernel of a notebook. Above, a bar with steps, elapsed and
    remaining time, epoch, last losses, learning rate and speed; below, a row for each evaluation,
    with training loss, validation loss and metrics, or a row for each log where there are no
    evaluations. Evaluations and predictions have a bar of their own. Nothing is shown under
    `disable_tqdm`, nor in other processes than the first.

    Args:
        max_str_len: a longer string is cut in the table.
    """

    takes_place_of = ProgressCallback

    def __init__(self, max_str_len: int = 100) -> None:
        super().__init__(max_str_len)
        self.table = _Table(max_str_len)
        self._view: _View | None = None
        self._has_ended = False

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Show a bar and, once there is something to put into it, a table."""
        self._view = None
        self._has_ended = False
        self.table = _Table(self.max_str_len)
        return super().on_train_begin(args, state, control, **kwargs)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **kwargs: Any,
    ) -> None:
        """Show the last values beside the bar, and add a row where there are no evaluations."""
        if self.training_bar is None or not logs:
            return
        with going_on(self, "Showing the logs"):
            self._beside |= beside_the_bar(logs) | self._speed(
                args, state, kwargs.get("train_dataloader")
            )
            if getattr(args, "eval_strategy", "no") == "no" and "loss" in logs:
                self.table.add({"Step": state.global_step, "Training Loss": logs["loss"]})
            self.training_bar.set_postfix(self._beside)

    def on_evaluate(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """Add a row, or in a row for the same step the metrics of another set."""
        if self._is_shown(args, state):
            with going_on(self, "Showing the evaluation"):
                by_epoch = getattr(args, "eval_strategy", "no") == "epoch"
                place = (
                    {"Epoch": f"{state.epoch or 0:.4g}"}
                    if by_epoch
                    else {"Step": state.global_step}
                )
                # the model may be another one by now: the best, or one that was loaded
                if self._has_ended:
                    self.table.rows.append(
                        {next(iter(place)): "after training", **_titles(metrics or {})}
                    )
                else:
                    # The last one, which may have been logged some steps before.
                    loss = next(
                        (entry["loss"] for entry in reversed(state.log_history) if "loss" in entry),
                        "No log",
                    )
                    self.table.add({**place, "Training Loss": loss, **_titles(metrics or {})})
                self._shown().draw()
        # Afterwards, as this lets go of an output that has no training: the table would be drawn
        # into another one.
        super().on_evaluate(args, state, control, **kwargs)

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave bar and table in the notebook, as they are now."""
        if self._is_shown(args, state) and self.training_bar is not None:
            self._shown().draw()
        super().on_train_end(args, state, control, **kwargs)
        self._view = None
        self._has_ended = True

    def _is_shown(self, args: Any, state: TrainerState) -> bool:
        return state.is_world_process_zero and not getattr(args, "disable_tqdm", False)

    def _bar(self, **options: Any) -> Any:
        view = self._shown()
        bar = _Bar(view, **options)
        view.bars.append(bar)
        view.draw()
        return bar

    def _shown(self) -> _View:
        if self._view is None:
            self._view = _View(self.table)
        return self._view

    def _close_prediction_bar(self) -> None:
        super()._close_prediction_bar()
        if self.training_bar is None:
            self._view = None


class _View:
    """An output of a cell, which is redrawn in its place."""

    def __init__(self, table: _Table) -> None:
        self.table = table
        self.bars: list[_Bar] = []
        self._handle: Any = None
        self._not_before = 0.0

    def draw(self, now: bool = True) -> None:
        """Draw the output, if not `now` then only after a while: drawing takes longer than a
        step may.
        """
        moment = time.monotonic()
        if not now and moment < self._not_before:
            return
        self._not_before = moment + _SECONDS_BETWEEN_DRAWINGS
        from IPython.display import HTML, display

        page = HTML("".join([*(bar.html() for bar in self.bars), self.table.html()]))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)


class _Bar:
    """One bar, with the methods of one of tqdm."""

    def __init__(
        self, view: _View, *, total: int | None, initial: int = 0, leave: bool = True
    ) -> None:
        self.view = view
        self.total = total
        self.leave = leave
        self.n = self.initial = initial
        self.beside: dict[str, str] = {}
        self._began = time.monotonic()

    def update(self, n: int) -> None:
        """Move on by `n`."""
        self.n += n
        self.view.draw(now=self.n == self.total)

    def set_postfix(self, beside: dict[str, str], refresh: bool = True) -> None:
        """Show these beside the bar."""
        self.beside = dict(beside)
        self.view.draw()

    def close(self) -> None:
        """Leave it in the notebook or take it away."""
        if not self.leave:
            self.view.bars.remove(self)
        self.view.draw()

    def html(self) -> str:
        """Return the bar, with the values beside it in one line."""
        elapsed = time.monotonic() - self._began
        done = self.n - self.initial
        left = (
            float("nan")
            if self.total is None or not done
            else elapsed / done * (self.total - self.n)
        )
        of = "" if self.total is None else f"/{self.total}"
        facts = [f"{self.n}{of}", f"{clock(elapsed)} &lt; {clock(left)}"]
        facts += [f"{escape(name)} {escape(value)}" for name, value in self.beside.items()]
        limits = "" if self.total is None else f' value="{self.n}" max="{max(self.total, 1)}"'
        return (
            f'<div style="font-variant-numeric: tabular-nums"><progress{limits} style="width: '
            f'300px; height: 1.2em; vertical-align: middle"></progress> {" · ".join(facts)}</div>'
        )


class _Table:
    """Rows of values under named columns, which may become more."""

    def __init__(self, max_str_len: int) -> None:
        self.max_str_len = max_str_len
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Add a row; one for the same step, or epoch, as the last is joined with that."""
        place = next(iter(row))
        if self.rows and self.rows[-1].get(place) == row[place]:
            self.rows[-1].update(row)
        else:
            self.rows.append(row)

    def html(self) -> str:
        """Return the last rows as a table, with the number of earlier ones."""
        if not self.rows:
            return ""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        lines = [f"<thead><tr>{head}</tr></thead>"]
        if len(self.rows) > _MOST_ROWS:
            lines.append(f"<tr><td>{len(self.rows) - _MOST_ROWS} earlier rows</td></tr>")
        for row in self.rows[-_MOST_ROWS:]:
            cells = "".join(f"<td>{self._text(row.get(name, ''))}</td>" for name in names)
            lines.append(f"<tr>{cells}</tr>")
        return f'<table class="dataframe">{"".join(lines)}</table>'

    def _text(self, value: Any) -> str:
        text = f"{value:.6f}" if isinstance(value, float) and abs(value) >= 1e-3 else value
        return escape(shortened(text, self.max_str_len))


def _titles(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of an evaluation under readable names, without times and speeds."""
    shown = {}
    for name, value in metrics.items():
        _, _, rest = str(name).partition("_")
        if name == "epoch" or not rest or any(rest.endswith(end) for end in _NOT_SHOWN):
            continue
        shown["Validation Loss" if rest == "loss" else rest.replace("_", " ").title()] = value
    return shown


def default_progress_callback() -> type[ProgressCallback]:
    """Return `NotebookProgressCallback` in a notebook, elsewhere the bar of tqdm."""
    return NotebookProgressCallback if is_in_notebook() else ProgressCallback


def is_in_notebook() -> bool:
    """Return whether this process is a notebook kernel, without importing IPython."""
    ipython = loaded("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})
