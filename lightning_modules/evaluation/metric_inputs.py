"""Turn the predictions and labels of a batch into the two arguments of a torchmetrics `update`.

- The first tensor of the predictions is taken for the logits.
- Classes are in the last dimension, or in the second one as for images. All other dimensions are
  flattened, and positions with the label -100 are left out.
- Where predictions have the labels' shape they are values, class numbers, or one logit for each
  label.
- Metrics of `torchmetrics.classification` get probabilities: torchmetrics would take logits for
  probabilities where all those of a batch happen to lie between 0 and 1. Other metrics get the
  logits.
- Half precision becomes single precision, in which metrics compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

IGNORED = -100
OWN_FUNCTION = (
    "Pass a function that makes the arguments of `update`: BatchMetrics(metrics, "
    "prepare=function), with function(predictions, labels) -> a tuple or a dict of arguments."
)
_NEED_OWN_FUNCTION = {
    "aggregation",
    "clustering",
    "detection",
    "multimodal",
    "retrieval",
    "segmentation",
    "text",
}
"""Packages of torchmetrics whose metrics take no logits."""
_FAMILIES = ("Binary", "Multiclass", "Multilabel")


class InputKind(NamedTuple):
    """Form of the inputs of a metric; metrics of one kind get the same tensors.

    Attributes:
        family: `Binary`, `Multiclass` or `Multilabel` for the metrics of
            `torchmetrics.classification`, else empty.
        by_sample: the metric compares whole samples: dimensions are not flattened, and its
            `ignore_index` decides what counts.
    """

    family: str = ""
    by_sample: bool = False


def input_kind(metric: torch.nn.Module) -> InputKind:
    """Return the form of inputs that a metric needs; for a wrapper or a sum, that of its parts.

    Raises:
        ValueError: the metric does not accept logits and labels.
    """
    packages: set[str] = set()
    family = ""
    by_sample = False
    # The parts of wrappers and sums are submodules, and the module of a class tells its package.
    # Bases count too, because a script may derive its own metric.
    for part in metric.modules():
        by_sample = by_sample or getattr(part, "multidim_average", "") == "samplewise"
        for cls in type(part).__mro__:
            library, *path = cls.__module__.split(".")
            if library != "torchmetrics":
                continue
            packages.add(path[0])
            if path[0] != "classification":
                continue
            by_sample = by_sample or "ExactMatch" in cls.__name__
            for name in _FAMILIES:
                if cls.__name__.startswith(name):
                    family = name

    if not family and not packages.isdisjoint(_NEED_OWN_FUNCTION):
        raise ValueError(f"{type(metric).__name__} does not take logits and labels. {OWN_FUNCTION}")
    return InputKind(family, by_sample)


def metric_inputs(kind: InputKind, predictions: object, labels: object) -> tuple[Tensor, Tensor]:
    """Return predictions and labels in the form that metrics of this kind expect.

    They have no rows if no label counts.

    Args:
        kind: see `input_kind`.
        predictions: what the model returned beside the loss: logits, alone or first of several.
        labels: class numbers of shape (samples, ...), or values, or 0 and 1 for each of several
            labels.

    Raises:
        ValueError: the shapes do not match.
    """
    predictions = _logits(predictions)
    labels = _only_labels(labels)
    if predictions.ndim == labels.ndim + 1 and predictions.shape[-1] == 1:
        predictions = predictions.squeeze(-1)
    if kind.family and labels.is_floating_point():
        labels = labels.long()

    # Without a dimension of classes, predictions are values, class numbers or one logit for each
    # label.
    classes = _class_dimension(predictions, labels)
    if classes is None:
        keeps_shape = kind.by_sample or kind.family == "Multilabel" or labels.is_floating_point()
        if predictions.is_floating_point():
            keeps_shape = keeps_shape or not kind.family
            if kind.family in ("Binary", "Multilabel"):
                predictions = predictions.sigmoid()
        if keeps_shape:
            return predictions, labels
        return _counted(predictions.flatten(), labels.flatten())

    # Logits of classes: for whole samples, or one row for each label that counts.
    if kind.by_sample:
        return _probabilities(kind, predictions.movedim(classes, 1), 1), labels
    rows = predictions.movedim(classes, -1).flatten(0, -2)
    rows, labels = _counted(rows, labels.flatten())
    return _probabilities(kind, rows, 1), labels


def shifted(predictions: object, labels: object) -> tuple[Tensor, Tensor]:
    """Return predictions at each position, and the label at the next one.

    This is for models whose labels are their inputs.
    """
    return _logits(predictions)[:, :-1], _only_labels(labels)[:, 1:]


def _counted(predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Leave out rows with the label -100; the host waits for the device."""
    if labels.is_floating_point():
        return predictions, labels
    rows = (labels != IGNORED).nonzero().squeeze(1)
    if len(rows) == len(labels):
        return predictions, labels
    return predictions[rows], labels[rows]


def _probabilities(kind: InputKind, logits: Tensor, classes: int) -> Tensor:
    """Return the probabilities of the classes in a dimension.

    Binary metrics get only the probability of the second class.
    """
    if not kind.family or not logits.is_floating_point():
        return logits
    if kind.family != "Binary":
        return logits.softmax(classes)
    if logits.shape[classes] != 2:
        raise ValueError(
            f"A binary metric was given logits of {logits.shape[classes]} classes, not 2. "
            f"{OWN_FUNCTION}"
        )
    return logits.softmax(classes).select(classes, 1)


def _class_dimension(predictions: Tensor, labels: Tensor) -> int | None:
    """Return which dimension only the predictions have; None if both have the same ones."""
    if predictions.shape == labels.shape:
        return None
    if predictions.shape[:-1] == labels.shape:
        return labels.ndim
    if predictions.ndim > 1 and predictions.shape[:1] + predictions.shape[2:] == labels.shape:
        return 1
    raise ValueError(
        f"Predictions of shape {tuple(predictions.shape)} do not fit labels of shape "
        f"{tuple(labels.shape)}. {OWN_FUNCTION}"
    )


def _logits(predictions: object) -> Tensor:
    while isinstance(predictions, (tuple, list, Mapping)) and len(predictions):
        if isinstance(predictions, Mapping):
            predictions = list(predictions.values())
        predictions = predictions[0]
    if not isinstance(predictions, Tensor):
        raise ValueError(
            f"The first prediction is a {type(predictions).__name__}, not a tensor. {OWN_FUNCTION}"
        )
    return _in_single_precision(predictions)


def _only_labels(labels: object) -> Tensor:
    if isinstance(labels, (tuple, list)) and len(labels) == 1:
        labels = labels[0]
    if not isinstance(labels, Tensor):
        description = f"a {type(labels).__name__}"
        if isinstance(labels, (tuple, list, Mapping)):
            description += f" of {len(labels)}"
        raise ValueError(f"The labels are {description}, not one tensor. {OWN_FUNCTION}")
    return _in_single_precision(labels)


def _in_single_precision(tensor: Tensor) -> Tensor:
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    return tensor
