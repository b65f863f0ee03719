"""The rule that turns the outputs and labels of a batch into the arguments of a metric's `update`.

- The first tensor of the predictions is the logits.
- Classes are in the last dimension, or, as for images, in the second one. All other dimensions are
  flattened, and positions with the label -100 are left out.
- Predictions of the same shape as the labels are values, class numbers, or one logit for each
  label.
- Metrics of `torchmetrics.classification` get probabilities. With logits, torchmetrics would take
  those of a batch for probabilities if all of them lie between 0 and 1. Other metrics get the
  logits.
- Half precision is converted to single precision.
"""

from __future__ import annotations

from collections.abc import Mapping

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
"""Packages of torchmetrics whose metrics do not accept logits and labels."""
_FAMILIES = ("Binary", "Multiclass", "Multilabel")


def input_family(metric: torch.nn.Module) -> str:
    """Return the family of a metric, which decides the form of its inputs.

    Args:
        metric: a metric, or a wrapper or a sum of metrics.

    Returns:
        `Binary`, `Multiclass` or `Multilabel` for a metric of `torchmetrics.classification`; an
        empty text for any other metric.

    Raises:
        ValueError: the metric does not accept logits and labels, or compares whole samples.
    """
    packages: set[str] = set()
    family = ""
    compares_samples = False
    # The parts of wrappers and sums are submodules. The module of a class contains the name of its
    # package; base classes are looked at, because a script may derive its own metric.
    for part in metric.modules():
        if getattr(part, "multidim_average", "") == "samplewise":
            compares_samples = True
        for cls in type(part).__mro__:
            library, *path = cls.__module__.split(".")
            if library != "torchmetrics":
                continue
            packages.add(path[0])
            if path[0] != "classification":
                continue
            if "ExactMatch" in cls.__name__:
                compares_samples = True
            for name in _FAMILIES:
                if cls.__name__.startswith(name):
                    family = name

    if compares_samples:
        raise ValueError(f"{type(metric).__name__} compares whole samples. {OWN_FUNCTION}")
    if not family and not packages.isdisjoint(_NEED_OWN_FUNCTION):
        raise ValueError(f"{type(metric).__name__} does not take logits and labels. {OWN_FUNCTION}")
    return family


def metric_inputs(family: str, predictions: object, labels: object) -> tuple[Tensor, Tensor]:
    """Return predictions and labels in the form that metrics of a family expect.

    They have no rows if no label counts.

    Args:
        family: the family of the metric, see `input_family`.
        predictions: the outputs of the model except the loss: logits, alone or first of several.
        labels: class numbers of shape (samples, ...), or values, or 0 and 1 for each of several
            labels.

    Raises:
        ValueError: the shapes do not match.
    """
    predictions = _logits(predictions)
    labels = _only_labels(labels)
    if predictions.ndim == labels.ndim + 1 and predictions.shape[-1] == 1:
        predictions = predictions.squeeze(-1)
    if family and labels.is_floating_point():
        labels = labels.long()

    # If there is no dimension of classes, predictions are values, class numbers, or one logit for
    # each label.
    classes = _class_dimension(predictions, labels)
    if classes is None:
        keeps_shape = family == "Multilabel" or labels.is_floating_point()
        if predictions.is_floating_point():
            keeps_shape = keeps_shape or not family
            if family in ("Binary", "Multilabel"):
                predictions = predictions.sigmoid()
        if keeps_shape:
            return predictions, labels
        return _counted(predictions.flatten(), labels.flatten())

    # Make a row of logits for each label that counts.
    rows = predictions.movedim(classes, -1).flatten(0, -2)
    rows, labels = _counted(rows, labels.flatten())
    return _probabilities(family, rows), labels


def align_with_next_labels(predictions: object, labels: object) -> tuple[Tensor, Tensor]:
    """Return the predictions at each position, and the labels at the next one.

    Use it for models whose labels are their inputs.
    """
    return _logits(predictions)[:, :-1], _only_labels(labels)[:, 1:]


def _counted(predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Leave out rows with the label -100. This waits for the device."""
    if labels.is_floating_point():
        return predictions, labels
    rows = (labels != IGNORED).nonzero().squeeze(1)
    if len(rows) == len(labels):
        return predictions, labels
    return predictions[rows], labels[rows]


def _probabilities(family: str, logits: Tensor) -> Tensor:
    """Return the probabilities of the classes, which are the last dimension.

    Binary metrics get only the probability of the second class.
    """
    if not family or not logits.is_floating_point():
        return logits
    if family != "Binary":
        return logits.softmax(-1)
    if logits.shape[-1] != 2:
        raise ValueError(
            f"A binary metric was given logits of {logits.shape[-1]} classes, not 2. {OWN_FUNCTION}"
        )
    return logits.softmax(-1)[:, 1]


def _class_dimension(predictions: Tensor, labels: Tensor) -> int | None:
    """Return the dimension that only the predictions have; None if both have the same shape."""
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
    """Return the first tensor in nested predictions."""
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
    """Return the labels, which may be in a tuple of one; refuse several."""
    if isinstance(labels, (tuple, list)) and len(labels) == 1:
        labels = labels[0]
    if not isinstance(labels, Tensor):
        description = f"a {type(labels).__name__}"
        if isinstance(labels, (tuple, list, Mapping)):
            description += f" of {len(labels)}"
        raise ValueError(f"The labels are {description}, not one tensor. {OWN_FUNCTION}")
    return _in_single_precision(labels)


def _in_single_precision(tensor: Tensor) -> Tensor:
    """Convert a tensor in half precision to single precision."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    return tensor
