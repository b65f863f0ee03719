"""When a `LightningBridge` logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..flow import DefaultFlowCallback
from ..state import TrainerControl, TrainerState
from .arguments import BridgeArguments

if TYPE_CHECKING:
    from ...facade import TrainingArguments


class BridgeFlow(DefaultFlowCallback):
    """Apply the interval of logs; Lightning evaluates and saves by its own settings.

    If a module steps several optimizers, `global_step` grows by more than one at a time, so an
    interval is due as soon as a multiple of it was reached or passed.

    Attributes:
        is_last_step: whether Lightning ends the training after this step; set by the bridge.
    """

    def __init__(self) -> None:
        self.is_last_step = False
        self._previous_step = 0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Count from here."""
        self._previous_step = state.global_step

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Set the switches that are due by steps."""
        step = state.global_step
        previous_step = self._previous_step
        self._previous_step = step

        if args.logging_first_step and previous_step == 0:
            control.should_log = True
        is_log_due = _is_due(previous_step, step, state.logging_steps)
        if args.logging_strategy == "steps" and is_log_due:
            control.should_log = True

        if self.is_last_step:
            control.should_training_stop = True

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Set the switches that are due by epochs."""
        if args.logging_strategy == "epoch":
            control.should_log = True

    def will_log(self, args: BridgeArguments, state: TrainerState, step: int) -> bool:
        """Return whether the current step will be logged.

        Args:
            args: the arguments of the bridge.
            state: the state of the training.
            step: the value of `state.global_step` when the current step is done.
        """
        if args.logging_first_step and self._previous_step == 0:
            return True
        is_log_due = _is_due(self._previous_step, step, state.logging_steps)
        return args.logging_strategy == "steps" and is_log_due


def _is_due(previous_step: int, step: int, interval: float) -> bool:
    """Return whether a multiple of the interval lies after `previous_step` and up to `step`."""
    return interval > 0 and step // interval > previous_step // interval
