"""The callback that sets the switches of the control by the intervals of the arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lightning_modules.common.version_behavior import version_behavior
from .base import EventResult, TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from ..facade import TrainingArguments


class DefaultFlowCallback(TrainerCallback):
    """Decide when to log, evaluate, save and stop, by the strategies of the arguments.

    Works like `transformers.DefaultFlowCallback`; the Trainer adds it.

    It reads the strategies from the arguments and the intervals from the state. It only sets
    switches, and resets none.
    """

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> EventResult:
        """Set the switches that are due by steps.

        At the last step, stop the training, and save with `save_strategy="steps"`.
        """
        step = state.global_step
        is_last_step = step >= state.max_steps

        if step == 1 and args.logging_first_step:
            control.should_log = True
        if args.logging_strategy == "steps" and _is_due(step, state.logging_steps):
            control.should_log = True

        # Some versions of transformers also evaluate at the last step.
        if args.eval_strategy == "steps" and step >= args.eval_delay:
            is_last_evaluation = is_last_step and version_behavior().evaluates_last_step
            if is_last_evaluation or _is_due(step, state.eval_steps):
                control.should_evaluate = True

        is_save_due = is_last_step or _is_due(step, state.save_steps)
        if args.save_strategy == "steps" and is_save_due:
            control.should_save = True

        if is_last_step:
            control.should_training_stop = True
        return control

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> EventResult:
        """Set the switches that are due by epochs."""
        if args.logging_strategy == "epoch":
            control.should_log = True
        if args.eval_strategy == "epoch" and state.epoch >= args.eval_delay:
            control.should_evaluate = True
        if args.save_strategy == "epoch":
            control.should_save = True
        return control


def _is_due(step: int, interval: float) -> bool:
    """Return whether `step` is a multiple of `interval`; an interval of 0 is never due."""
    return interval > 0 and step % interval == 0
