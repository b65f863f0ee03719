"""Show the progress of training as a bar or as plain lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ..lightning_modules.common.lengths import length_or_none
from ._log_values import failures_as_warnings, number_of
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

    Works like `transformers.ProgressCallback`, and also shows epoch, last losses and learning rate
    as the bar's postfix. Evaluations and predictions have a second bar. Only process 0 shows
    anything.

    Args:
        max_str_len: a logged string longer than this is not shown.
    """

    reads_checkpoints = False

    def __init__(self, max_str_len: int = 100) -> None:
        self.max_str_len = max_str_len
        self.training_bar: ProgressBar | None = None
        self.prediction_bar: ProgressBar | None = None
        self.current_step = 0
        self._shown_values: dict[str, str] = {}

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Open the bar, at the step from which training resumes."""
        self.close()
        self._shown_values = {}
        if state.is_world_process_zero:
            self._open_training_bar(state)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Advance the bar to the current step."""
        if not state.is_world_process_zero:
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
        if not state.is_world_process_zero:
            return
        if self.prediction_bar is None:
            batches = length_or_none(eval_dataloader)
            if batches is None:
                return
            is_alone = self.training_bar is None
            self.prediction_bar = self._make_bar(total=batches, leave=is_alone)
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

    # Typed as Any: on_predict of the base class has a required parameter, `metrics`.
    on_predict: Any = on_evaluate

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> None:
        """Write the logs above the bar, and the most important values beside it."""
        if self.training_bar is None or not logs:
            return
        with failures_as_warnings(self, "Showing the logs"):
            # Values of earlier logs stay, such as the last evaluation loss.
            self._shown_values |= _values_beside_bar(logs)
            self.training_bar.set_postfix(self._shown_values, refresh=False)
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

    def _make_bar(self, **options: Any) -> ProgressBar:
        """Return a new bar.

        Args:
            options: as tqdm takes them: `total`, `initial`, and `leave`, which leaves the bar on
                the screen when it is closed.
        """
        from tqdm.auto import tqdm

        return tqdm(dynamic_ncols=True, **options)

    def _open_training_bar(self, state: TrainerState) -> ProgressBar:
        self.current_step = state.global_step
        self.training_bar = self._make_bar(total=state.max_steps or None, initial=state.global_step)
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
