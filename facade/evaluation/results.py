"""Result types of the Trainer's methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class EvalPrediction:
    """Argument of `compute_metrics`: predictions and labels, and inputs and losses if requested.

    Works like `transformers.EvalPrediction`; it unpacks like a tuple: `predictions, labels =
    result`.

    Args:
        predictions: outputs of the model over all samples: an array, or a tuple of arrays.
        label_ids: the labels of all samples: an array, or a tuple of arrays.
        inputs: the model inputs, with `include_for_metrics=["inputs"]`.
        losses: the loss of each sample, with `include_for_metrics=["loss"]`.
    """

    def __init__(
        self, predictions: Any, label_ids: Any, inputs: Any = None, losses: Any = None
    ) -> None:
        self.predictions = predictions
        self.label_ids = label_ids
        self.inputs = inputs
        self.losses = losses

    @property
    def elements(self) -> tuple[Any, ...]:
        """Return predictions and labels, followed by inputs and losses if included."""
        optional = (part for part in (self.inputs, self.losses) if part is not None)
        return (self.predictions, self.label_ids, *optional)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)

    def __getitem__(self, index: int) -> Any:
        return self.elements[index]


class EvalLoopOutput(NamedTuple):
    """Result of `Trainer.evaluation_loop`.

    Works like `transformers.trainer_utils.EvalLoopOutput`.
    """

    predictions: Any
    label_ids: Any | None
    metrics: dict[str, float] | None
    num_samples: int | None


class PredictionOutput(NamedTuple):
    """Result of `Trainer.predict`.

    Works like `transformers.trainer_utils.PredictionOutput`.
    """

    predictions: Any
    label_ids: Any | None
    metrics: dict[str, float] | None


class TrainOutput(NamedTuple):
    """Result of `Trainer.train`.

    Works like `transformers.trainer_utils.TrainOutput`.
    """

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class TrainingLength(NamedTuple):
    """Result of `Trainer.set_initial_training_values`: length of a training in epochs, steps and
    samples.
    """

    num_train_epochs: int
    num_update_steps_per_epoch: int
    num_examples: int
    num_train_samples: float
    total_train_batch_size: int
    steps_in_epoch: int
    max_steps: int
