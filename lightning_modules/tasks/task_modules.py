"""LightningModules for common tasks, with their loss and default metrics.

If a model returns no loss, the module computes the standard loss of the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch.nn import functional

from ..evaluation.token_metrics import TokenPerplexity
from ..internals.lightning_import import classification, torchmetrics
from ..models.outputs import CACHES, has_loss, predictions_in
from ..models.signatures import accepted_arguments
from .batch_inputs import count_targets
from .loss_module import LossModule
from .model_module import ModelSource

_IGNORED = -100


class TaskModule(LossModule):
    """A `LossModule` for a task, whose model need not accept labels or return a loss.

    Args:
        model: as in `LossModule`. If it returns only logits (under that name, as the first element
            of a tuple, or as a tensor), the loss of the task is computed from them.
        num_labels: number of classes for the default metrics; by default `model.config.num_labels`.
        metrics: as in `LossModule`; None for the default metrics of the task, False for no metrics.
        train_metrics: as in `LossModule`.
        kwargs: other arguments of `LossModule`.
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
        self._num_labels = num_labels

        # The default metrics, including those of the training, are created when the model exists.
        self._makes_usual_metrics = metrics is None
        # Stored in a tuple, because a torchmetrics object would be registered as a submodule.
        self._train_metrics_setting = (train_metrics,)
        if self._makes_usual_metrics:
            train_metrics = None
        super().__init__(
            model, metrics=metrics or None, train_metrics=train_metrics or None, **kwargs
        )
        self.keep_hyperparameters(num_labels=num_labels)

    @property
    def num_labels(self) -> int | None:
        """Return the number of classes; None if it is unknown."""
        if self._num_labels is not None:
            return self._num_labels
        config = getattr(self.model, "config", None)
        return getattr(config, "num_labels", None)

    def _reset_metrics(self, stage: str) -> None:
        # The default metrics depend on the number of classes of the model, so they are created
        # here.
        if self._makes_usual_metrics:
            self._makes_usual_metrics = False
            (train_metrics,) = self._train_metrics_setting
            self._set_metrics(self.usual_metrics() or None, train_metrics)
        super()._reset_metrics(stage)

    def usual_metrics(self) -> dict[str, Any]:
        """Return the default metrics of the task, used if `metrics` is None."""
        return {}

    def loss_of_logits(
        self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute the loss; by default the cross entropy, ignoring labels of -100.

        Args:
            logits: logits of shape (..., classes).
            labels: class indices of shape (...).
            items: divisor of the sum; None for the mean.
        """
        flat_logits = logits.flatten(0, -2)
        classes = labels.flatten()
        if items is None:
            return functional.cross_entropy(flat_logits, classes, ignore_index=_IGNORED)
        total = functional.cross_entropy(
            flat_logits, classes, ignore_index=_IGNORED, reduction="sum"
        )
        return total / items

    def model_inputs(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch without labels that the model's `forward` does not accept."""
        inputs = dict(super().model_inputs(batch))
        accepted = accepted_arguments(self.model.forward, **inputs)
        for name in self.label_names:
            if name not in accepted:
                inputs.pop(name, None)
        return inputs

    def positional_inputs(
        self, batch: Any, *, labels: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the model for an unnamed batch.

        Inputs are passed in order, and labels by name if `forward` accepts them.

        Args:
            batch: as in `LossModule`.
            labels: as in `LossModule`.
        """
        args, kwargs = super().positional_inputs(batch, labels=False)
        if labels and len(self.label_names) == 1:
            labels_by_name = {self.label_names[0]: self._labels(batch)}
            kwargs |= accepted_arguments(self.model.forward, **labels_by_name)
        return args, kwargs

    def read_loss(self, outputs: Any, batch: Any, items: torch.Tensor | None) -> torch.Tensor:
        """Return the loss of the model if it has returned one, otherwise that of the task."""
        labels = self._labels(batch)
        if has_loss(outputs) or not isinstance(labels, torch.Tensor):
            return super().read_loss(outputs, batch, items)

        divisor = None
        if self._is_part_of_step():
            divisor = self._divisor(self._count_targets(labels))
        logits = _first_tensor(predictions_in(outputs, CACHES))
        return self.loss_of_logits(logits, labels, divisor)

    def _items_of_loss(
        self, batch: Any, items: torch.Tensor | None, outputs: Any
    ) -> torch.Tensor | None:
        """Return the number of items over which the loss of a batch is a mean."""
        smoothed_labels = None
        if self.label_smoothing:
            smoothed_labels = self._labels_by_name(batch)
        if smoothed_labels is not None:
            return self._count_labels(smoothed_labels)

        # The task's loss is only used if the model has returned no loss.
        labels = self._labels(batch)
        if self.loss_fn is not None or has_loss(outputs) or not isinstance(labels, torch.Tensor):
            return super()._items_of_loss(batch, items, outputs)
        return self._count_targets(labels)

    def _count_targets(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the number of labels over which the loss of the task is a mean."""
        count = count_targets(None, labels, labels.device)
        # The count is only None for losses that are not means.
        return cast("torch.Tensor", count)


class CausalLMModule(TaskModule):
    """Train causal language models.

    Labels are unshifted token ids: the module compares each prediction with the next label. In an
    unnamed batch they default to the input ids. A mapping must contain `labels`, in which padding
    is ignored.

    Logs `val_perplexity`, exact over all tokens, unless `metrics` are passed.

    Its arguments are those of `TaskModule` and `LossModule`.
    """

    def usual_metrics(self) -> dict[str, Any]:
        """Return the perplexity."""
        return {"perplexity": TokenPerplexity()}

    def loss_of_logits(
        self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the mean cross entropy of each token, given those before it.

        Args:
            logits: shape (samples, tokens, vocabulary).
            labels: unshifted token ids of shape (samples, tokens); -100 is ignored.
            items: labels to divide the sum by; None for those that count here.
        """
        return super().loss_of_logits(logits[:, :-1], labels[:, 1:], items)

    def _count_targets(self, labels: torch.Tensor) -> torch.Tensor:
        """Count the labels that are not ignored, without the first token of each sample."""
        return super()._count_targets(labels[:, 1:])

    def _predicts_next_token(self) -> bool:
        """Return True, because each position predicts the next token."""
        return True

    def _uses_inputs_as_labels(self) -> bool:
        """Return True: a batch without labels is its own target."""
        return True


class SequenceClassificationModule(TaskModule):
    """Train models that predict a class, a number or multiple labels for a sequence.

    Unless `metrics` are passed, logs `val_accuracy` if the number of classes is known, and
    `val_mse` for numbers. As in models of `transformers`, labels of an integer type are classes.
    Floating-point labels are a number to predict if the model has one output, otherwise several
    labels that are 0 or 1 each. `model.config.problem_type` overrides this.

    Its arguments are those of `TaskModule` and `LossModule`.
    """

    @property
    def problem_type(self) -> str | None:
        """Return the `problem_type` of the model's config, as defined by `transformers`."""
        config = getattr(self.model, "config", None)
        problem_type = getattr(config, "problem_type", None)
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
        """Return the loss for the type of the labels.

        This is the cross entropy of classes, the squared error of numbers, or the binary cross
        entropy of multiple labels.

        Args:
            logits: shape (samples, classes).
            labels: shape (samples,), or (samples, classes) for several labels.
            items: labels to divide the sum by; None for those that count here.
        """
        is_floating = labels.is_floating_point()
        is_number = is_floating and self.problem_type is None and logits.shape[-1] == 1
        if self.problem_type == "regression" or is_number:
            return functional.mse_loss(logits.reshape(labels.shape), labels.to(logits.dtype))
        if self.problem_type == "multi_label_classification" or is_floating:
            return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        return super().loss_of_logits(logits, labels, items)

    def _count_targets(self, labels: torch.Tensor) -> torch.Tensor:
        """Count the class labels that are not -100, or all elements of other labels."""
        # Labels of a regression or multi-label problem may be integers too. All of their elements
        # count, including -100, like those of floating-point labels.
        if self.problem_type not in (None, "single_label_classification"):
            labels = labels.float()
        return super()._count_targets(labels)


class TokenClassificationModule(TaskModule):
    """Train models that classify each token; labels of -100 are ignored.

    Logs `val_accuracy` and `val_f1` (mean over the classes) if the number of classes is known,
    unless `metrics` are passed.

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


def _first_tensor(predictions: object) -> torch.Tensor:
    """Return the logits: the first value of a mapping or a sequence, which may be nested."""
    while isinstance(predictions, (tuple, list, Mapping)) and len(predictions):
        if isinstance(predictions, Mapping):
            predictions = list(predictions.values())
        predictions = predictions[0]
    if not isinstance(predictions, torch.Tensor):
        raise ValueError(
            f"The model returned a {type(predictions).__name__}: it has to return a loss, or "
            "`logits` as a tensor."
        )
    return predictions
