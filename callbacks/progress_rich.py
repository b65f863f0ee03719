"""The bar, drawn by rich."""

from __future__ import annotations

from typing import Any

from .progress import ProgressCallback, fitting
from .state import TrainerControl, TrainerState

_WIDE = 110
"""Columns of a terminal from which on there is room for a long bar."""


class RichProgressCallback(ProgressCallback):
    """As `ProgressCallback`, which it takes the place of, but drawn by rich, also in
    `Trainer(callbacks=[...])`.

    Shown are steps, elapsed and remaining time, epoch, last losses, learning rate and speed; below
    it there is a second bar for evaluations and predictions. Logs are written above. Nothing is
    shown under `disable_tqdm`, nor in other processes than the first.

    Args:
        max_str_len: a logged string longer than this is not written out.
        console: a `rich.console.Console` to draw on; by default rich's own.
    """

    takes_place_of = ProgressCallback

    def __init__(self, max_str_len: int = 100, console: Any = None) -> None:
        super().__init__(max_str_len)
        self.console = console
        self._display: Any = None

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the bars on the screen as they are."""
        super().on_train_end(args, state, control, **kwargs)
        self._close_prediction_bar()

    def _is_shown(self, args: Any, state: TrainerState) -> bool:
        return state.is_world_process_zero and not getattr(args, "disable_tqdm", False)

    def _bar(self, **options: Any) -> Any:
        if self._display is None or not self._display.live.is_started:
            self._display = _display(self.console)
        return _Bar(self._display, "evaluating" if "leave" in options else "training", **options)


def _display(console: Any) -> Any:
    """Return rich's display of several bars."""
    from rich import get_console, progress
    from rich.table import Column

    console = console or get_console()
    return progress.Progress(
        progress.TextColumn("{task.description}", style="bold"),
        progress.BarColumn(bar_width=30 if console.width >= _WIDE else 12),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("<"),
        progress.TimeRemainingColumn(),
        progress.TextColumn(
            "{task.fields[beside]}", style="cyan", table_column=Column(no_wrap=True)
        ),
        console=console,
        refresh_per_second=4,
    )


class _Bar:
    """One bar of rich, with the methods of one of tqdm; the display stops when the last one is
    closed.
    """

    def __init__(
        self, display: Any, name: str, *, total: int | None, initial: int = 0, leave: bool = True
    ) -> None:
        self.display = display
        self.n = initial
        self.leave = leave
        count = 2 * len(str(total or 0)) + 1
        others = (
            len(name) + display.columns[1].bar_width + count + 2 * len("0:00:00") + len("<") + 6
        )
        self.room = display.console.width - others
        display.start()
        self._task = display.add_task(name, total=total, completed=initial, beside="")

    def update(self, n: int) -> None:
        """Move on by `n`."""
        self.n += n
        self.display.update(self._task, completed=self.n)

    def set_postfix(self, beside: dict[str, str], refresh: bool = True) -> None:
        """Show these beside the bar."""
        text = ", ".join(f"{name}={value}" for name, value in fitting(beside, self.room).items())
        self.display.update(self._task, beside=text, refresh=refresh)

    def write(self, text: str) -> None:
        """Write a line above all bars."""
        self.display.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave it on the screen or take it away."""
        self.display.stop_task(self._task)
        if not self.leave:
            self.display.remove_task(self._task)
        if all(task.stop_time is not None for task in self.display.tasks):
            self.display.stop()
