"""Stop when the metric that chooses the best model no longer improves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .base import TrainerCallback
from .state import ExportableState, TrainerControl, TrainerState

if TYPE_CHECKING:
    from .arguments import CallbackArguments

logger = logging.getLogger(__name__)


class EarlyStoppingError(ValueError, AssertionError):
    """The arguments give early stopping nothing to go by.

    It is an `AssertionError` as well, since that is what scripts written for transformers expect.
    """


class EarlyStoppingCallback(TrainerCallback, ExportableState):
    """As `transformers.EarlyStoppingCallback`; how far patience has run out is kept in checkpoints.

    Args:
        early_stopping_patience: evaluations in a row without improvement after which training
            stops.
        early_stopping_threshold: an improvement must be larger than this, in units of the metric.
    """

    def __init__(
        self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0
    ) -> None:
        if early_stopping_patience < 0:
            raise ValueError(
                f"{early_stopping_patience=} is a number of evaluations: give 1 or more."
            )
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold
        self.early_stopping_patience_counter = 0

    def check_metric_value(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        metric_value: float,
    ) -> None:
        """Compare with the best value so far and count the evaluations without improvement.

        NaN does not count as an improvement.
        """
        if state.best_metric is None or self._improves(
            metric_value, state.best_metric, args.greater_is_better
        ):
            self.early_stopping_patience_counter = 0
        else:
            self.early_stopping_patience_counter += 1

    def on_train_begin(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Check that there is a metric and that it will be computed.

        Raises:
            EarlyStoppingError: `metric_for_best_model` is not set, or `eval_strategy` is "no".
        """
        if args.metric_for_best_model is None:
            raise EarlyStoppingError(
                "EarlyStoppingCallback needs metric_for_best_model, which is None: set it."
            )
        if args.eval_strategy == "no":
            raise EarlyStoppingError(
                "EarlyStoppingCallback needs evaluations: eval_strategy='no' has none."
            )
        loads_models = getattr(args, "loads_models", True)  # not under a plain Lightning Trainer
        if loads_models and not args.load_best_model_at_end and state.is_world_process_zero:
            logger.warning(
                "EarlyStoppingCallback without load_best_model_at_end=True: the model keeps the "
                "last weights."
            )

    def on_evaluate(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        """Count this evaluation, and stop training when patience has run out."""
        name = args.metric_for_best_model
        if name is None:  # an evaluation outside of training, which has checked nothing
            return
        name = name if name.startswith("eval_") else f"eval_{name}"
        value = (metrics or {}).get(name)
        if value is None and getattr(args, "eval_aggregate", None):
            return  # the event of one set: that of the aggregate comes last
        if value is None:
            there = ", ".join(metrics or {}) or "nothing"
            logger.warning(
                "Early stopping watches %s (metric_for_best_model); this evaluation has %s.",
                name,
                there,
            )
            return
        self.check_metric_value(args, state, control, value)
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True

    def state(self) -> dict[str, Any]:
        """Return both arguments, and the count as an attribute."""
        arguments = ("early_stopping_patience", "early_stopping_threshold")
        counter = "early_stopping_patience_counter"
        return {
            "args": {name: getattr(self, name) for name in arguments},
            "attributes": {counter: getattr(self, counter)},
        }

    def _improves(self, value: float, best: float, greater_is_better: bool | None) -> bool:
        better = value > best if greater_is_better else value < best
        return better and abs(value - best) > (self.early_stopping_threshold or 0.0)
