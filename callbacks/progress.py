"""Show the progress of training as a bar or as plain lines."""

from __future__ import annotations

from typing import Any

from ._log_values import going_on, number_of
from ._work import Stretch, length
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

_FIRST_BESIDE_THE_BAR = ("loss", "eval_loss", "epoch", "samples/s", "tokens/s", "lr")
"""Order in which values are kept in a narrow terminal."""
_ROOM_TO_GROW = 4
"""Columns for counts and times that become longer until the next log."""
_SHOWN_BESIDE_THE_BAR = {
    "epoch": "epoch",
    "loss": "loss",
    "eval_loss": "eval_loss",
    "learning_rate": "lr",
}


class ProgressCallback(TrainerCallback):
    """As `transformers.ProgressCallback`, but with epoch, last losses, learning rate and speed
    beside the bar of tqdm.

    Only the first process of all shows anything. Speed is in tokens per second where input tokens
    are counted, else in samples per second; it leaves out evaluation and saving. Evaluations and
    predictions have a bar below it.

    Args:
        max_str_len: a logged string longer than this is not written out.
    """

    reads_checkpoints = False

    def __init__(self, max_str_len: int = 100) -> None:
        self.max_str_len = max_str_len
        self.training_bar: Any = None
        self.prediction_bar: Any = None
        self.current_step = 0
        self._beside: dict[str, str] = {}
        self._stretch = Stretch()

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar, at the step from which training resumes."""
        self._close_training_bar()
        self._close_prediction_bar()
        self._beside = {}
        if self._is_shown(args, state):
            self._open_training_bar(state)
        self._stretch.begin(state)

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Move the bar to the present step."""
        if not self._is_shown(args, state):
            return
        bar = self.training_bar
        if bar is None:  # added in the middle of training
            bar = self._open_training_bar(state)
        bar.update(state.global_step - self.current_step)
        self.current_step = state.global_step

    def on_prediction_step(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        """Move a second bar, if the number of batches is known."""
        if not self._is_shown(args, state):
            return
        if self.prediction_bar is None:
            batches = length(eval_dataloader)
            if batches is None:
                return
            self.prediction_bar = self._bar(total=batches, leave=self.training_bar is None)
        self.prediction_bar.update(1)

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the second bar."""
        self._close_prediction_bar()
        self._stretch.begin(state)

    on_predict: Any = on_evaluate

    def on_save(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the time for saving out of the speed."""
        self._stretch.begin(state)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **kwargs: Any,
    ) -> None:
        """Write the logs above the bar, and the most wanted ones beside it."""
        if self.training_bar is None or not logs:
            return
        with going_on(self, "Showing the logs"):
            self._beside |= beside_the_bar(logs)
            self._beside |= self._speed(args, state, kwargs.get("train_dataloader"))
            self.training_bar.set_postfix(self._fitting(self._beside), refresh=False)
            self.training_bar.write(str(_readable(logs, self.max_str_len)))

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar and leave it on the screen."""
        self._close_training_bar()

    def _open_training_bar(self, state: TrainerState) -> Any:
        self.current_step = state.global_step
        self.training_bar = self._bar(total=state.max_steps or None, initial=state.global_step)
        return self.training_bar

    def _bar(self, **options: Any) -> Any:
        """Open a bar; it has the methods `update`, `set_postfix`, `write` and `close` of one of
        tqdm.
        """
        from tqdm.auto import tqdm

        return tqdm(dynamic_ncols=True, **options)

    def _fitting(self, beside: dict[str, str]) -> dict[str, str]:
        """Drop values for which bar, steps and remaining time leave no room."""
        shown = getattr(self.training_bar, "format_dict", {})
        if not shown.get("ncols"):
            return beside
        # Without a width, tqdm gives the bar ten columns.
        own = self.training_bar.format_meter(**{**shown, "ncols": None, "postfix": None})
        return fitting(beside, shown["ncols"] - len(own) - len(", ") - _ROOM_TO_GROW)

    def _is_shown(self, args: Any, state: TrainerState) -> bool:
        return state.is_world_process_zero

    def _speed(self, args: Any, state: TrainerState, loader: Any) -> dict[str, str]:
        """Return the speed since the last log or pause, to be shown; nothing if no step was
        done.
        """
        stretch = self._stretch
        if not stretch.end(args, state, loader):
            return {}
        if stretch.tokens > 0:
            return {"tokens/s": f"{stretch.tokens / stretch.seconds:.4g}"}
        return {"samples/s": f"{stretch.samples / stretch.seconds:.4g}"} if stretch.samples else {}

    def _close_training_bar(self) -> None:
        bar = self.training_bar
        self.training_bar = None
        if bar is not None:
            bar.close()

    def _close_prediction_bar(self) -> None:
        bar = self.prediction_bar
        self.prediction_bar = None
        if bar is not None:
            bar.close()


class PrinterCallback(TrainerCallback):
    """As `transformers.PrinterCallback`: prints each log as one line, in the first process of
    each machine.
    """

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **kwargs: Any,
    ) -> None:
        """Print the logs, floats with four digits."""
        if state.is_local_process_zero and logs:
            with going_on(self, "Showing the logs"):
                print(_readable(logs))


def beside_the_bar(logs: dict[str, Any]) -> dict[str, str]:
    """Return the logged values shown beside a bar, shortened, by label."""
    values = {label: number_of(logs.get(key)) for key, label in _SHOWN_BESIDE_THE_BAR.items()}
    return {label: f"{value:.4g}" for label, value in values.items() if value is not None}


def fitting(beside: dict[str, str], room: int) -> dict[str, str]:
    """Return as many of the values as fit, the most important first.

    Args:
        beside: what might stand beside a bar, by its labels.
        room: columns of the terminal, in which `label=value` are separated by a comma and a space.
    """
    kept = []
    for label in sorted(beside, key=lambda name: (*_FIRST_BESIDE_THE_BAR, name).index(name)):
        needed = len(f"{label}={beside[label]}") + len(", ") * bool(kept)
        if needed <= room:
            kept.append(label)
            room -= needed
    return {label: value for label, value in beside.items() if label in kept}


def _readable(logs: dict[str, Any], max_str_len: int | None = None) -> dict[str, Any]:
    """Return a copy for the screen: floats shortened, long strings replaced, the operation count
    left out.
    """
    return {key: _short(value, max_str_len) for key, value in logs.items() if key != "total_flos"}


def _short(value: Any, max_str_len: int | None) -> Any:
    if isinstance(value, float):
        return f"{value:.4g}"
    if max_str_len is not None and isinstance(value, str) and len(value) > max_str_len:
        return f"[a string of {len(value)} characters; max_str_len={max_str_len} hides it]"
    return value
