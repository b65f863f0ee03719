"""Show the progress of training as a bar or as plain lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ._log_values import failures_as_warnings, number_of
from ._speed_meter import SpeedMeter, length_or_none
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from ..facade import TrainingArguments

_LABELS = {
    "epoch": "epoch",
    "loss": "loss",
    "eval_loss": "eval_loss",
    "learning_rate": "lr",
}
"""The logged values that are shown beside a bar, with their labels there."""

_LABELS_BY_IMPORTANCE = ("loss", "eval_loss", "epoch", "samples/s", "tokens/s", "lr")
"""In a narrow terminal the first of these are shown."""

_SPARE_COLUMNS = 4
"""Columns for counts and times that become longer until the next log."""


class ProgressBar(Protocol):
    """The methods of a bar of tqdm that are used here."""

    def update(self, n: int, /) -> object:
        """Advance by `n`."""
        ...

    def set_postfix(self, values: dict[str, str], /, refresh: bool = True) -> object:
        """Show these values, by label, beside the bar."""
        ...

    def write(self, text: str, /) -> object:
        """Write a line above the bar."""
        ...

    def close(self) -> object:
        """Close the bar."""
        ...


class ProgressCallback(TrainerCallback):
    """Show the progress of training and evaluations as bars of tqdm, with current values.

    Works like `transformers.ProgressCallback`, with more values beside the bar.

    These are epoch, last losses, learning rate and speed. Speed is in tokens per second if input
    tokens are counted, otherwise in samples per second; it excludes evaluation and saving.
    Evaluations and predictions have a second bar. Only process 0 shows anything.

    Args:
        max_str_len: a logged string longer than this is not shown.
    """

    reads_checkpoints = False

    _obeys_disable_tqdm = False
    """Whether `disable_tqdm` hides this display. The Trainer adds a bar of tqdm only without it, so
    a bar that a script adds is shown.
    """

    def __init__(self, max_str_len: int = 100) -> None:
        self.max_str_len = max_str_len
        self.training_bar: ProgressBar | None = None
        self.prediction_bar: ProgressBar | None = None
        self.current_step = 0
        self._shown_values: dict[str, str] = {}
        self._speed_meter = SpeedMeter()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Open the bar, at the step from which training resumes."""
        self._close_training_bar()
        self._close_prediction_bar()
        self._shown_values = {}
        if self._is_shown(args, state):
            self._open_training_bar(state)
        self._speed_meter.start(state)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Advance the bar to the current step."""
        if not self._is_shown(args, state):
            return
        bar = self.training_bar
        if bar is None:  # the callback was added during the training
            bar = self._open_training_bar(state)
        bar.update(state.global_step - self.current_step)
        self.current_step = state.global_step

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: object = None,
        **kwargs: object,
    ) -> None:
        """Advance the second bar, if the number of batches is known."""
        if not self._is_shown(args, state):
            return
        if self.prediction_bar is None:
            batches = length_or_none(eval_dataloader)
            if batches is None:
                return
            is_alone = self.training_bar is None
            self.prediction_bar = self._make_bar("evaluating", total=batches, leave=is_alone)
        self.prediction_bar.update(1)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Close the second bar."""
        self._close_prediction_bar()
        self._speed_meter.start(state)

    # Typed as Any: on_predict of the base class has a required parameter, `metrics`.
    on_predict: Any = on_evaluate

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Exclude the time of the save from the speed."""
        self._speed_meter.start(state)

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
        """Write the logs above the bar, and the most important values beside it."""
        if self.training_bar is None or not logs:
            return
        with failures_as_warnings(self, "Showing the logs"):
            # Values of earlier logs stay, such as the last evaluation loss.
            self._shown_values |= _values_beside_bar(logs)
            self._shown_values |= self._speed(args, state, train_dataloader)
            self.training_bar.set_postfix(self._values_that_fit(), refresh=False)
            self.training_bar.write(str(_readable(logs, self.max_str_len)))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Close the bar and leave it on the screen."""
        self._close_training_bar()

    def close(self) -> None:
        """Close all bars in their present state, after a training ended with an error."""
        self._close_prediction_bar()
        self._close_training_bar()

    def _is_shown(self, args: TrainingArguments, state: TrainerState) -> bool:
        if self._obeys_disable_tqdm and getattr(args, "disable_tqdm", False):
            return False
        return state.is_world_process_zero

    def _make_bar(
        self, name: str, *, total: int | None, initial: int = 0, leave: bool = True
    ) -> ProgressBar:
        """Return a new bar.

        Args:
            name: "training" or "evaluating", for displays that show it.
            total: the number of steps; None if unknown.
            initial: the step from which the bar starts.
            leave: leave the bar on the screen when it is closed.
        """
        from tqdm.auto import tqdm

        return tqdm(dynamic_ncols=True, total=total, initial=initial, leave=leave)

    def _open_training_bar(self, state: TrainerState) -> ProgressBar:
        self.current_step = state.global_step
        self.training_bar = self._make_bar(
            "training", total=state.max_steps or None, initial=state.global_step
        )
        return self.training_bar

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

    def _values_that_fit(self) -> dict[str, str]:
        """Return the values for which the bar, the steps and the remaining time leave room."""
        bar: Any = self.training_bar
        bar_format = getattr(bar, "format_dict", {})
        width = bar_format.get("ncols")
        if not width:
            return self._shown_values
        # Formatted without a width, as otherwise the bar itself fills the room that is left.
        bar_text = bar.format_meter(**{**bar_format, "ncols": None, "postfix": None})
        room = width - len(bar_text) - len(", ") - _SPARE_COLUMNS
        return values_that_fit(self._shown_values, room)

    def _speed(
        self, args: TrainingArguments, state: TrainerState, train_dataloader: object
    ) -> dict[str, str]:
        """Return the speed since the last log or pause by label; empty if no step was done."""
        meter = self._speed_meter
        if not meter.measure(args, state, train_dataloader):
            return {}
        if meter.tokens > 0:
            return {"tokens/s": f"{meter.tokens / meter.seconds:.4g}"}
        if meter.samples > 0:
            return {"samples/s": f"{meter.samples / meter.seconds:.4g}"}
        return {}


class PrinterCallback(TrainerCallback):
    """Print each log, in process 0 of each machine.

    Works like `transformers.PrinterCallback`; used with `disable_tqdm=True`.
    """

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> None:
        """Print the logs, floats with four digits."""
        if state.is_local_process_zero and logs:
            with failures_as_warnings(self, "Showing the logs"):
                print(_readable(logs))


def _values_beside_bar(logs: dict[str, Any]) -> dict[str, str]:
    """Return the logged values that are shown beside a bar, shortened, by label."""
    values: dict[str, str] = {}
    for name, label in _LABELS.items():
        value = number_of(logs.get(name))
        if value is not None:
            values[label] = f"{value:.4g}"
    return values


def values_that_fit(values: dict[str, str], room: int) -> dict[str, str]:
    """Return as many of the values as fit, choosing the most important first.

    Args:
        values: by label.
        room: columns of the terminal for all `label=value`, separated by a comma and a space.
    """
    fitting_labels: list[str] = []
    for label in sorted(values, key=_importance):
        text = f"{label}={values[label]}"
        if fitting_labels:
            text = f", {text}"
        if len(text) <= room:
            fitting_labels.append(label)
            room -= len(text)
    return {label: value for label, value in values.items() if label in fitting_labels}


def _importance(label: str) -> int:
    """Return the rank of a label, 0 for the most important one."""
    if label in _LABELS_BY_IMPORTANCE:
        return _LABELS_BY_IMPORTANCE.index(label)
    return len(_LABELS_BY_IMPORTANCE)


def _readable(logs: dict[str, Any], max_str_len: int | None = None) -> dict[str, object]:
    """Return the logs for the screen: floats rounded, long strings replaced, without total_flos."""
    return {
        name: _short(value, max_str_len) for name, value in logs.items() if name != "total_flos"
    }


def _short(value: object, max_str_len: int | None) -> object:
    if isinstance(value, float):
        return f"{value:.4g}"
    if max_str_len is not None and isinstance(value, str) and len(value) > max_str_len:
        return f"[a string of {len(value)} characters; max_str_len={max_str_len} hides it]"
    return value
