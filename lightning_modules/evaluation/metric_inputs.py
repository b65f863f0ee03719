"""Turn the predictions and labels of a batch into the two arguments of a torchmetrics `update`.

Every metric of torchmetrics wants its own shapes. The rule here, metric by metric:

- the first tensor of the predictions counts: the logits;
- classes are in the last dimension, or in the second one as images have them; all other dimensions are joined, and
  what has the label -100 is left out. Metrics that ask for a sample at a time (`ExactMatch`, and those with
  `multidim_average="samplewise"`) get the shape as it is, and leave out what their `ignore_index` says;
- metrics that look at probabilities get the softmax, or for binary and multilabel ones the sigmoid: torchmetrics
  itself takes logits for probabilities where all those of a batch happen to lie between 0 and 1. Metrics that only
  look for the largest of several classes get the logits;
- where predictions have the labels' shape they are taken as values, class numbers, or one logit for each label;
- predictions and labels in half precision become single precision, in which metrics compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..internals.lightning_import import BaseAggregator, torchmetrics

IGNORED = -100
OWN_FUNCTION = (
    "Say how predictions and labels become the arguments of `update`: BatchMetrics(metrics, prepare=function), with "
    "function(predictions, labels) -> a tuple of arguments, or a dict of them."
)
_WITHOUT_RULE = ("text", "detection", "retrieval", "multimodal", "clustering", "segmentation")


class InputKind(NamedTuple):
    """Form of the inputs of a metric; metrics of one kind get the same tensors.

    `family` is `Binary`, `Multiclass` or `Multilabel` for the metrics of `torchmetrics.classification`, else empty.
    """

    family: str = ""
    probabilities: bool = False
    by_sample: bool = False
    sequence: bool = False


def input_kind(metric: Any) -> InputKind:
    """Return the form of inputs that this metric takes.

    Raises:
        ValueError: no rule fits it.
    """
    metric = _innermost(metric)
    family = _family(metric)
    if type(metric).__name__ == "Perplexity" and _module_of(metric) == "text":
        return InputKind(sequence=True)
    if not family and (_module_of(metric) in _WITHOUT_RULE or isinstance(metric, BaseAggregator)):
        raise ValueError(f"{type(metric).__name__} takes no logits and labels. {OWN_FUNCTION}")
    by_sample = getattr(metric, "multidim_average", "global") == "samplewise" or "ExactMatch" in type(metric).__name__
    return InputKind(family, family != "Multiclass" or not _looks_for_largest(metric), by_sample)


class CountedRows:
    """Finds the labels of a batch that are not -100, once for all kinds of metrics, as the host waits for that."""

    def __init__(self) -> None:
        self._rows: Tensor | None = None

    def of(self, predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Leave out what has the label -100; the same labels come at each call.

        Args:
            predictions: of shape (labels,) or (labels, classes).
            labels: of shape (labels,).
        """
        if labels.is_floating_point():
            return predictions, labels
        if self._rows is None:
            self._rows = (labels != IGNORED).nonzero().squeeze(1)
        if len(self._rows) == len(labels):
            return predictions, labels
        return predictions[self._rows], labels[self._rows]


def metric_inputs(
    kind: InputKind, predictions: Any, labels: Any, rows: CountedRows | None = None
) -> tuple[Tensor, Tensor]:
    """Return predictions and labels as the metrics of this kind want them; no rows if no label counts.

    Args:
        kind: see `input_kind`.
        predictions: what the model returned beside the loss: logits, alone or first of several.
        labels: class numbers of shape (samples, ...), or values, or 0 and 1 for each of several labels.
        rows: shared by all kinds of metrics that are given this batch.

    Raises:
        ValueError: the shapes do not go together.
    """
    if rows is None:
        rows = CountedRows()
    predictions, labels = _logits(predictions), _only_labels(labels)
    if predictions.ndim == labels.ndim + 1 and predictions.shape[-1] == 1:
        predictions = predictions.squeeze(-1)
    classes = _class_dimension(predictions, labels)
    if kind.family and labels.is_floating_point():
        labels = labels.long()
    if classes is None:
        return _of_equal_shape(kind, predictions, labels, rows)
    if kind.by_sample:
        return _as_probabilities(kind, predictions.movedim(classes, 1), 1), labels
    counted, labels = rows.of(predictions.movedim(classes, -1).flatten(0, -2), labels.flatten())
    if kind.sequence:
        return counted[None], labels[None]
    return _as_probabilities(kind, counted, -1), labels


def shifted(predictions: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Return predictions at each position, and the label at the next one: for models whose labels are their inputs."""
    predictions, labels = _logits(predictions), _only_labels(labels)
    return predictions[:, :-1], labels[:, 1:]


def _of_equal_shape(kind: InputKind, predictions: Tensor, labels: Tensor, rows: CountedRows) -> tuple[Tensor, Tensor]:
    logits = predictions.is_floating_point()
    if logits and kind.family in ("Binary", "Multilabel"):
        predictions = predictions.sigmoid()
    if kind.by_sample or kind.family == "Multilabel" or labels.is_floating_point() or (logits and not kind.family):
        return predictions, labels
    return rows.of(predictions.flatten(), labels.flatten())


def _as_probabilities(kind: InputKind, logits: Tensor, classes: int) -> Tensor:
    if not kind.family or not kind.probabilities or not logits.is_floating_point():
        return logits
    if kind.family == "Binary" and logits.shape[classes] != 2:
        raise ValueError(f"A binary metric was given logits of {logits.shape[classes]} classes, not 2. {OWN_FUNCTION}")
    probabilities = logits.softmax(classes)
    return probabilities.select(classes, 1) if kind.family == "Binary" else probabilities


def _class_dimension(predictions: Tensor, labels: Tensor) -> int | None:
    """Return which dimension the predictions have and the labels have not; None if they have the same ones."""
    shape, wanted = predictions.shape, labels.shape
    if shape == wanted:
        return None
    if shape[:-1] == wanted:
        return len(shape) - 1
    if len(shape) == len(wanted) + 1 and (shape[:1], shape[2:]) == (wanted[:1], wanted[1:]):
        return 1
    raise ValueError(f"Predictions of shape {tuple(shape)} do not fit labels of shape {tuple(wanted)}. {OWN_FUNCTION}")


def _logits(predictions: Any) -> Tensor:
    while isinstance(predictions, (tuple, list, Mapping)) and len(predictions):
        predictions = next(iter(predictions.values() if isinstance(predictions, Mapping) else predictions))
    if not isinstance(predictions, Tensor):
        raise ValueError(f"The first prediction is a {type(predictions).__name__}, not a tensor. {OWN_FUNCTION}")
    return _in_single_precision(predictions)


def _only_labels(labels: Any) -> Tensor:
    if isinstance(labels, (tuple, list)) and len(labels) == 1:
        labels = labels[0]
    if not isinstance(labels, Tensor):
        many = f" of {len(labels)}" if isinstance(labels, (tuple, list, Mapping)) else ""
        raise ValueError(f"The labels are a {type(labels).__name__}{many}, not one tensor. {OWN_FUNCTION}")
    return _in_single_precision(labels)


def _in_single_precision(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _innermost(metric: Any) -> Any:
    """Return the metric in a wrapper or a sum of metrics: it is the one that is given predictions."""
    for name in ("metric", "metric_a", "metric_b"):
        inner = getattr(metric, name, None)
        if isinstance(inner, torchmetrics.Metric):
            return _innermost(inner)
    return metric


def _family(metric: Any) -> str:
    names = [cls.__name__ for cls in type(metric).__mro__ if cls.__module__.startswith("torchmetrics.classification")]
    families = ("Binary", "Multiclass", "Multilabel")
    return next((family for name in names for family in families if name.startswith(family)), "")


def _looks_for_largest(metric: Any) -> bool:
    """Tell whether only the class with the largest logit is of interest, or the few with the largest ones."""
    names = {base.__name__ for base in type(metric).__mro__}
    return bool(names & {"MulticlassStatScores", "MulticlassConfusionMatrix", "MulticlassExactMatch"})


def _module_of(metric: Any) -> str:
    """`text` for `torchmetrics.text.bleu`; empty for metrics from elsewhere."""
    for base in type(metric).__mro__:
        package, _, rest = base.__module__.partition(".")
        if package == "torchmetrics" and rest.partition(".")[0] != "metric":
            return rest.partition(".")[0]
    return ""
