"""When a `LightningBridge` logs, evaluates and saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..flow import DefaultFlowCallback
from ..state import TrainerControl, TrainerState
from .arguments import BridgeArguments

if TYPE_CHECKING:
    from ...facade import TrainingArguments


class BridgeFlow(DefaultFlowCallback):
    """Apply the intervals of the bridge, in addition to evaluations and checkpoints of Lightning.

    Evaluations and checkpoints are requested only by strategies that were given to the bridge.
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
        """Remember the step at which the training starts."""
        self._previous_step = state.global_step

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Set the switches that are due by steps."""
        settings = _bridge_settings(args)
        step = state.global_step
        if self.will_log(args, state, step):
            control.should_log = True

        previous_step = self._previous_step
        self._previous_step = step

        # The strategies of `args` may be those of Lightning, which evaluates and saves itself, so
        # only the settings of the bridge are read.
        is_after_delay = step >= args.eval_delay
        is_evaluation_due = is_after_delay and _is_due(previous_step, step, state.eval_steps)
        if settings.get("eval_strategy") == "steps" and is_evaluation_due:
            control.should_evaluate = True

        is_save_due = self.is_last_step or _is_due(previous_step, step, state.save_steps)
        if settings.get("save_strategy") == "steps" and is_save_due:
            control.should_save = True

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
        settings = _bridge_settings(args)
        if args.logging_strategy == "epoch":
            control.should_log = True
        if settings.get("eval_strategy") == "epoch" and state.epoch >= args.eval_delay:
            control.should_evaluate = True
        if settings.get("save_strategy") == "epoch":
            control.should_save = True

    def will_log(
        self, args: TrainingArguments | BridgeArguments, state: TrainerState, step: int
    ) -> bool:
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


def _bridge_settings(args: TrainingArguments) -> dict[str, object]:
    """Return the settings that were given to the bridge; its events have its own arguments."""
    return cast("BridgeArguments", args).settings


def _is_due(previous_step: int, step: int, interval: float) -> bool:
    """Return whether a multiple of the interval lies after `previous_step` and up to `step`."""
    return interval > 0 and step // interval > previous_step // interval
