"""The progress bar, drawn by rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .progress import ProgressBar, ProgressCallback, values_that_fit
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from ..facade import TrainingArguments


_WIDE = 110
"""Columns of a terminal that is wide enough for a long bar."""


class RichProgressCallback(ProgressCallback):
    """Show the progress of training and evaluations as bars of rich.

    In `callbacks` it replaces a `ProgressCallback`.

    It shows steps, elapsed and remaining time, epoch, last losses, learning rate and speed, and a
    second bar for evaluations and predictions. Logs are written above. Nothing is shown with
    `disable_tqdm`, nor in processes other than process 0.

    Args:
        max_str_len: a logged string longer than this is not shown.
        console: a `rich.console.Console` to draw on; by default rich's own.
    """

    replaces = ProgressCallback
    _obeys_disable_tqdm = True

    def __init__(self, max_str_len: int = 100, console: Console | None = None) -> None:
        super().__init__(max_str_len)
        self.console = console
        self._display: Progress | None = None

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Leave the bars on the screen as they are."""
        super().on_train_end(args, state, control, **kwargs)
        self._close_prediction_bar()

    def _make_bar(
        self, name: str, *, total: int | None, initial: int = 0, leave: bool = True
    ) -> ProgressBar:
        # A display that was stopped cannot be started again below the lines that followed.
        if self._display is None or not self._display.live.is_started:
            self._display = _make_display(self.console)
        return _RichBar(self._display, name, total=total, initial=initial, leave=leave)


def _make_display(console: Console | None) -> Progress:
    """Return rich's display of several bars."""
    from rich import get_console, progress
    from rich.table import Column

    console = console or get_console()
    return progress.Progress(
        progress.TextColumn("{task.description}", style="bold"),
        progress.BarColumn(bar_width=_bar_width(console)),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("<"),
        progress.TimeRemainingColumn(),
        progress.TextColumn(
            "{task.fields[values]}", style="cyan", table_column=Column(no_wrap=True)
        ),
        console=console,
        refresh_per_second=4,
    )


def _bar_width(console: Console) -> int:
    return 30 if console.width >= _WIDE else 12


class _RichBar:
    """One bar of rich, with the methods of a `ProgressBar`.

    The display stops when the last bar is closed.
    """

    def __init__(
        self, display: Progress, name: str, *, total: int | None, initial: int, leave: bool
    ) -> None:
        self.display = display
        self.n = initial
        self.leave = leave

        # Columns that are left for values, after all other columns and the spaces between them.
        counts_width = 2 * len(str(total or 0)) + len("/")
        times_width = 2 * len("0:00:00") + len("<")
        used = len(name) + _bar_width(display.console) + counts_width + times_width + 6
        self.room = display.console.width - used

        display.start()
        self._task = display.add_task(name, total=total, completed=initial, values="")

    def update(self, n: int) -> None:
        """Advance by `n`."""
        self.n += n
        self.display.update(self._task, completed=self.n)

    def set_postfix(self, values: dict[str, str], refresh: bool = True) -> None:
        """Show the values that fit beside the bar."""
        fitting = values_that_fit(values, self.room)
        text = ", ".join(f"{label}={value}" for label, value in fitting.items())
        self.display.update(self._task, values=text, refresh=refresh)

    def write(self, text: str) -> None:
        """Write a line above all bars."""
        self.display.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the bar on the screen or remove it."""
        self.display.stop_task(self._task)
        if not self.leave:
            self.display.remove_task(self._task)
        if all(task.stop_time is not None for task in self.display.tasks):
            self.display.stop()
