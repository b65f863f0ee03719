"""LightningModules for the usual tasks: their loss where the model has none of its own, and
their usual metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from ..evaluation.metrics import TokenPerplexity
from ..internals.lightning_import import classification, torchmetrics
from ..models.inspection import accepted_arguments
from ..models.outputs import CACHES, has_loss, predictions_in
from .batch_inputs import count_targets
from .loss_module import LossModule
from .model_module import ModelSource

_IGNORED = -100


class TaskModule(LossModule):
    """A `LossModule` for one task: the model need not take the labels, nor return a loss.

    Args:
        model: see `LossModule`; one that returns logits only, under that name, first of a tuple or
            as a tensor, gets the loss of the task.
        num_labels: classes, for the usual metrics; by default `model.config.num_labels`.
        metrics: see `LossModule`; None takes the usual ones of the task, False none.
        train_metrics: see `LossModule`.
        kwargs: further arguments of `LossModule`.
    """

    def __init__(
        self,
        model: ModelSource = None,
        *,
        num_labels: int | None = None,
        metrics: Any = None,
        train_metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        self.num_labels_given = num_labels
        self._usual = (metrics is None, train_metrics)
        later = metrics is None  # the usual ones, when the model is there
        super().__init__(
            model,
            metrics=metrics or None,
            train_metrics=None if later else train_metrics or None,
            **kwargs,
        )
        self.keep_hyperparameters(num_labels=num_labels)

    @property
    def num_labels(self) -> int | None:
        """Return the number of classes; None if it is unknown."""
        if self.num_labels_given is not None:
            return self.num_labels_given
        return getattr(getattr(self.model, "config", None), "num_labels", None)

    def begin_epoch(self, stage: str) -> None:
        """Make the usual metrics, which ask the model for its classes."""
        self._make_usual_metrics()
        super().begin_epoch(stage)

    def _make_usual_metrics(self) -> None:
        wanted, train_metrics = self._usual
        if wanted:
            self._usual = (False, None)
            usual = self.usual_metrics()
            self._set_metrics(
                usual or None, train_metrics if usual or train_metrics is not True else None
            )

    def usual_metrics(self) -> dict[str, Any]:
        """Return the metrics of the task, used where none are given."""
        return {}

    def loss_of_logits(
        self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute the loss: by default the cross entropy of classes, in the last dimension, without
        labels of -100.

        Args:
            logits: (..., classes).
            labels: (...), class numbers.
            items: what the sum is divided by; None for the mean.
        """
        flat = logits.flatten(0, -2)
        classes = labels.flatten()
        if items is None:
            return functional.cross_entropy(flat, classes, ignore_index=_IGNORED)
        return (
            functional.cross_entropy(flat, classes, ignore_index=_IGNORED, reduction="sum") / items
        )

    def model_inputs(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch; without labels that the model's `forward` does not take."""
        inputs = super().model_inputs(batch)
        accepted = accepted_arguments(self.model.forward, **inputs)
        return {
            name: value
            for name, value in inputs.items()
            if name in accepted or name not in self.label_names
        }

    def positional_inputs(
        self, batch: Any, *, labels: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a batch without names: all but the labels in order, and those by name where
        `forward` takes them.

        Args:
            batch: see `LossModule`, as the other.
            labels: see there.
        """
        arguments, named = super().positional_inputs(batch, labels=False)
        if labels and len(self.label_names) == 1:
            given = {self.label_names[0]: self._labels(batch)}
            named |= accepted_arguments(self.model.forward, **given)
        return arguments, named

    def read_loss(self, outputs: Any, batch: Any, items: torch.Tensor | None) -> torch.Tensor:
        """Return the loss of the model if it returned one, else that of the task."""
        labels = self._labels(batch)
        if has_loss(outputs) or not isinstance(labels, torch.Tensor):
            return super().read_loss(outputs, batch, items)
        items = self._divisor(self._count_targets(labels)) if self._is_part_of_step() else None
        return self.loss_of_logits(_first_tensor(predictions_in(outputs, CACHES)), labels, items)

    def _items_of_loss(
        self, batch: Any, items: torch.Tensor | None, outputs: Any
    ) -> torch.Tensor | None:
        smoothed = self._named_labels(batch) if self.label_smoothing else None
        if smoothed is not None:
            return self._count_labels(smoothed)
        labels = self._labels(batch)
        if self.loss_fn is not None or has_loss(outputs) or not isinstance(labels, torch.Tensor):
            return super()._items_of_loss(batch, items, outputs)
        return self._count_targets(labels)

    def _count_targets(self, labels: torch.Tensor) -> Any:
        """Count what the loss of the task is the mean of."""
        return count_targets(None, labels, labels.device)


class CausalLMModule(TaskModule):
    """As `LossModule`, for models that predict the next token: labels are the inputs themselves,
    not shifted.

    Logs `val_perplexity`, exact over all tokens, where no other metrics are given.

    Its arguments are those of `TaskModule` and `LossModule`.
    """

    def usual_metrics(self) -> dict[str, Any]:
        """Return the perplexity."""
        return {"perplexity": TokenPerplexity()}

    def loss_of_logits(
        self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the cross entropy of each token, given those before it."""
        return super().loss_of_logits(logits[:, :-1], labels[:, 1:], items)

    def _count_targets(self, labels: torch.Tensor) -> Any:
        return super()._count_targets(labels[:, 1:])

    def _predicts_next_token(self) -> bool:
        return True

    def _compares_with_input(self) -> bool:
        return True


class SequenceClassificationModule(TaskModule):
    """As `LossModule`, for models that classify whole sequences, or give each a number, or several
    labels.

    Logs `val_accuracy` where there are no other metrics and the number of classes is known;
    `val_mse` for numbers. As in models of `transformers`, labels that are whole numbers are
    classes, others are numbers if there is one of them, and several labels of 0 and 1 each
    otherwise; `model.config.problem_type` overrides this.

    Its arguments are those of `TaskModule` and `LossModule`.
    """

    @property
    def problem_type(self) -> str | None:
        """Return the kind of labels in the model's config, in the words of `transformers`."""
        problem_type = getattr(getattr(self.model, "config", None), "problem_type", None)
        if problem_type is None and self.num_labels == 1:
            return "regression"
        return problem_type

    def usual_metrics(self) -> dict[str, Any]:
        """Return the accuracy, or the mean squared error."""
        classes = self.num_labels
        if self.problem_type == "regression":
            return {"mse": torchmetrics.MeanSquaredError(num_outputs=classes or 1)}
        if classes is None or classes < 2:
            return {}
        if self.problem_type == "multi_label_classification":
            return {"accuracy": classification.MultilabelAccuracy(classes)}
        return {"accuracy": classification.MulticlassAccuracy(classes, average="micro")}

    def loss_of_logits(
        self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the cross entropy, squared error, or binary cross entropy, as the labels are."""
        numbers = labels.is_floating_point()
        if self.problem_type == "regression" or (
            numbers and self.problem_type is None and logits.shape[-1] == 1
        ):
            return functional.mse_loss(logits.reshape(labels.shape), labels.to(logits.dtype))
        if self.problem_type == "multi_label_classification" or numbers:
            return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        return super().loss_of_logits(logits, labels, items)

    def _count_targets(self, labels: torch.Tensor) -> Any:
        classes = self.problem_type in (None, "single_label_classification")
        return super()._count_targets(labels if classes else labels.float())


class TokenClassificationModule(TaskModule):
    """As `LossModule`, for models that classify each token; labels of -100 do not count.

    Logs `val_accuracy` and `val_f1` (mean over the classes) where there are no other metrics and
    the number of classes is known.

    Its arguments are those of `TaskModule` and `LossModule`.
    """

    def usual_metrics(self) -> dict[str, Any]:
        """Return accuracy and F1."""
        classes = self.num_labels
        if classes is None or classes < 2:
            return {}
        accuracy = classification.MulticlassAccuracy(classes, average="micro")
        return {
            "accuracy": accuracy,
            "f1": classification.MulticlassF1Score(classes, average="macro"),
        }


def _first_tensor(predictions: Any) -> torch.Tensor:
    while isinstance(predictions, (tuple, list, Mapping)) and len(predictions):
        predictions = next(
            iter(predictions.values() if isinstance(predictions, Mapping) else predictions)
        )
    if not isinstance(predictions, torch.Tensor):
        raise ValueError(
            f"The model returned a {type(predictions).__name__}, neither a loss nor `logits`."
        )
    return predictions
