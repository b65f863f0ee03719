"""The callback that sets the flags of the control by the intervals of the arguments."""

from __future__ import annotations

from typing import Any

from ..lightning_modules.common.followed import followed
from .base import Reply, TrainerCallback
from .state import TrainerControl, TrainerState


class DefaultFlowCallback(TrainerCallback):
    """As `transformers.DefaultFlowCallback`: decides when to log, evaluate, save and stop.

    It reads the strategies from the arguments and the intervals from the state. It only sets flags,
    and clears none.
    """

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> Reply:
        """Set the flags that are due by steps; stop, and with `save_strategy="steps"` save, at
        the last step.
        """
        step = state.global_step
        is_last = step >= state.max_steps
        saves_by_steps = args.save_strategy == "steps"
        if (step == 1 and args.logging_first_step) or (
            args.logging_strategy == "steps" and _is_due(step, state.logging_steps)
        ):
            control.should_log = True
        ends = is_last and followed().evaluates_last_step
        if (
            args.eval_strategy == "steps"
            and args.eval_delay <= step
            and (ends or _is_due(step, state.eval_steps))
        ):
            control.should_evaluate = True
        if saves_by_steps and (is_last or _is_due(step, state.save_steps)):
            control.should_save = True
        if is_last:
            control.should_training_stop = True
        return control

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> Reply:
        """Set the flags that are due by epochs."""
        if args.logging_strategy == "epoch":
            control.should_log = True
        if args.eval_strategy == "epoch" and args.eval_delay <= state.epoch:
            control.should_evaluate = True
        if args.save_strategy == "epoch":
            control.should_save = True
        return control


def _is_due(step: int, interval: float) -> bool:
    """Return whether `step` is a multiple of `interval`; an interval of 0 is never due."""
    return interval > 0 and step % interval == 0
