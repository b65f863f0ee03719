"""Stop when the metric that chooses the best model no longer improves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .base import TrainerCallback
from .state import ExportableState, TrainerControl, TrainerState

if TYPE_CHECKING:
    from ..facade import TrainingArguments

logger = logging.getLogger(__name__)


class EarlyStoppingError(ValueError, AssertionError):
    """The arguments lack what early stopping needs.

    It is an `AssertionError` too, since scripts written for transformers expect that.
    """


class EarlyStoppingCallback(TrainerCallback, ExportableState):
    """Stop the training when a metric has not improved for some evaluations.

    Works like `transformers.EarlyStoppingCallback`; the count of evaluations is kept in
    checkpoints. The metric is that of `metric_for_best_model`, which has to be set, as has
    `eval_strategy`.

    Args:
        early_stopping_patience: consecutive evaluations without improvement after which training
            stops.
        early_stopping_threshold: an improvement must be larger than this, in units of the metric.
    """

    def __init__(
        self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0
    ) -> None:
        if early_stopping_patience < 0:
            raise ValueError(
                f"{early_stopping_patience=} must be a number of evaluations: pass 1 or more."
            )
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold
        self.early_stopping_patience_counter = 0

    def check_metric_value(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metric_value: float,
    ) -> None:
        """Compare with the best value so far and count the evaluations without improvement.

        NaN does not count as an improvement.
        """
        best_value = state.best_metric
        if best_value is None or self._improves(metric_value, best_value, args.greater_is_better):
            self.early_stopping_patience_counter = 0
        else:
            self.early_stopping_patience_counter += 1

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Check that a metric is set and will be computed.

        Raises:
            EarlyStoppingError: `metric_for_best_model` is not set, or `eval_strategy` is "no".
        """
        if args.metric_for_best_model is None:
            raise EarlyStoppingError(
                "EarlyStoppingCallback needs a metric, but metric_for_best_model is None. Set it, "
                "for example to 'eval_loss'."
            )
        if args.eval_strategy == "no":
            raise EarlyStoppingError(
                "EarlyStoppingCallback needs evaluations, but eval_strategy is 'no'. Set it to "
                "'steps' or 'epoch'."
            )

        # A plain Lightning Trainer cannot load the best model, so it gets no such advice.
        can_load_models = getattr(args, "loads_models", True)
        keeps_last_weights = can_load_models and not args.load_best_model_at_end
        if keeps_last_weights and state.is_world_process_zero:
            logger.warning(
                "EarlyStoppingCallback without load_best_model_at_end=True: the model keeps the "
                "last weights, not the best ones."
            )

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        """Count this evaluation, and stop training when patience has run out."""
        name = args.metric_for_best_model
        if name is None:  # an evaluation outside of training, before any check
            return
        if not name.startswith("eval_"):
            name = f"eval_{name}"

        metrics = metrics or {}
        value = metrics.get(name)
        if value is None:
            # With `eval_aggregate` this is the event of one set; that of all sets comes last.
            if not getattr(args, "eval_aggregate", None):
                logger.warning(
                    "Early stopping watches %s (metric_for_best_model), but this evaluation has "
                    "only: %s.",
                    name,
                    ", ".join(metrics) or "no metrics",
                )
            return

        self.check_metric_value(args, state, control, value)
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True

    def state(self) -> dict[str, Any]:
        """Return both arguments, and the count as an attribute."""
        return {
            "args": {
                "early_stopping_patience": self.early_stopping_patience,
                "early_stopping_threshold": self.early_stopping_threshold,
            },
            "attributes": {
                "early_stopping_patience_counter": self.early_stopping_patience_counter,
            },
        }

    def _improves(self, value: float, best: float, greater_is_better: bool | None) -> bool:
        is_better = value > best if greater_is_better else value < best
        return is_better and abs(value - best) > (self.early_stopping_threshold or 0.0)
