"""When to log, evaluate and save in a training that Lightning leads."""

from __future__ import annotations

from typing import Any

from ..flow import DefaultFlowCallback
from ..state import TrainerControl, TrainerState
from .arguments import BridgeArguments


class BridgeFlow(DefaultFlowCallback):
    """As `DefaultFlowCallback`, but Lightning evaluates, saves and ends by itself: what was asked for comes on top.

    A step may count for several where several optimizers step in it, so an interval is over when it is passed.

    Attributes:
        is_last: whether Lightning ends after this step; the bridge sets it.
    """

    def __init__(self) -> None:
        self.is_last = False
        self._before = 0

    def on_train_begin(
        self, args: BridgeArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Count from here."""
        self._before = state.global_step

    def on_step_end(
        self, args: BridgeArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Raise the switches that are due by steps."""
        before, self._before = self._before, state.global_step
        given, step = args.given, state.global_step
        if args.logging_strategy == "steps" and _passed(before, step, state.logging_steps):
            control.should_log = True
        if args.logging_first_step and before == 0:
            control.should_log = True
        late_enough = step >= args.eval_delay
        if given.get("eval_strategy") == "steps" and late_enough and _passed(before, step, state.eval_steps):
            control.should_evaluate = True
        if given.get("save_strategy") == "steps" and (self.is_last or _passed(before, step, state.save_steps)):
            control.should_save = True
        if self.is_last:
            control.should_training_stop = True

    def on_epoch_end(
        self, args: BridgeArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Raise the switches that are due by epochs."""
        if args.logging_strategy == "epoch":
            control.should_log = True
        if args.given.get("eval_strategy") == "epoch" and args.eval_delay <= state.epoch:
            control.should_evaluate = True
        if args.given.get("save_strategy") == "epoch":
            control.should_save = True

    def will_log(self, args: BridgeArguments, state: TrainerState, step: int) -> bool:
        """Whether the step that is under way is one of those that are logged."""
        first = args.logging_first_step and self._before == 0
        return first or (args.logging_strategy == "steps" and _passed(self._before, step, state.logging_steps))


def _passed(before: int, step: int, interval: float) -> bool:
    """Whether a multiple of the interval lies after `before` and up to `step`."""
    return interval > 0 and step // interval > before // interval
