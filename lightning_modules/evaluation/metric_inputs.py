"""Convert the outputs and labels of a batch to the arguments of a metric's `update`.

- The first tensor of the predictions is the logits.
- Classes are in the last dimension or, as for images, in the second one. All other dimensions are
  flattened, and positions with the label -100 are ignored.
- Predictions of the same shape as the labels are values, class indices, or one logit for each
  label. Multilabel and regression metrics keep the shape and get every position, because a float
  label may be -100.
- Metrics of `torchmetrics.classification` get probabilities, because torchmetrics would mistake
  the logits of a batch for probabilities if all of them are between 0 and 1. Other metrics get the
  logits.
- Half precision is converted to single precision.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

IGNORED_LABEL = -100
PREPARE_HINT = (
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
        empty string for any other metric.

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
        raise ValueError(f"{type(metric).__name__} compares whole samples. {PREPARE_HINT}")
    if not family and not packages.isdisjoint(_NEED_OWN_FUNCTION):
        raise ValueError(f"{type(metric).__name__} does not take logits and labels. {PREPARE_HINT}")
    return family


def metric_inputs(family: str, predictions: object, labels: object) -> tuple[Tensor, Tensor]:
    """Return predictions and labels in the form that metrics of a family expect.

    Both are empty if every label is -100.

    Args:
        family: the family of the metric, see `input_family`.
        predictions: the outputs of the model except the loss: logits, alone or first of several.
        labels: class numbers of shape (samples, ...), or values, or 0 and 1 for each of several
            labels.

    Raises:
        ValueError: the shapes do not match.
    """
    predictions = _first_tensor(predictions)
    labels = _only_labels(labels)
    if predictions.ndim == labels.ndim + 1 and predictions.shape[-1] == 1:
        predictions = predictions.squeeze(-1)
    if family and labels.is_floating_point():
        labels = labels.long()

    class_dimension = _class_dimension(predictions, labels)
    if class_dimension is None:
        return _inputs_of_one_shape(family, predictions, labels)

    # Make a row of logits for each label that is not ignored.
    rows = predictions.movedim(class_dimension, -1).flatten(0, -2)
    rows, labels = _without_ignored(rows, labels.flatten())
    return _class_probabilities(family, rows), labels


def _inputs_of_one_shape(family: str, predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs for predictions without a dimension of classes."""
    if family in ("Binary", "Multilabel") and predictions.is_floating_point():
        predictions = predictions.sigmoid()

    # A multilabel metric needs the dimension of the labels, and a regression that of the outputs.
    is_regression = not family and predictions.is_floating_point()
    if family == "Multilabel" or is_regression or labels.is_floating_point():
        return predictions, labels
    return _without_ignored(predictions.flatten(), labels.flatten())


def align_with_next_labels(predictions: object, labels: object) -> tuple[Tensor, Tensor]:
    """Return the predictions at each position, and the labels at the next one.

    Use it for models whose labels are their inputs. A model with virtual tokens before its inputs,
    such as one of PEFT's prompt tuning, predicts the first label too, at the last of them.
    """
    logits = _first_tensor(predictions)
    only_labels = _only_labels(labels)
    virtual_tokens = logits.shape[1] - only_labels.shape[1]
    if virtual_tokens > 0:
        return logits[:, virtual_tokens - 1 : -1], only_labels
    return logits[:, :-1], only_labels[:, 1:]


def _without_ignored(predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Remove rows with the label -100. This synchronises with the device."""
    if labels.is_floating_point():
        return predictions, labels
    rows = (labels != IGNORED_LABEL).nonzero().squeeze(1)
    if len(rows) == len(labels):
        return predictions, labels
    return predictions[rows], labels[rows]


def _class_probabilities(family: str, logits: Tensor) -> Tensor:
    """Convert logits, with the classes last, to probabilities for metrics of a family.

    Binary metrics get only the probability of the second class. Metrics without a family get the
    logits, and class numbers are not converted.
    """
    if not family or not logits.is_floating_point():
        return logits
    if family != "Binary":
        return logits.softmax(-1)
    if logits.shape[-1] != 2:
        raise ValueError(
            f"A binary metric was given logits of {logits.shape[-1]} classes, not 2. {PREPARE_HINT}"
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
        f"{tuple(labels.shape)}. {PREPARE_HINT}"
    )


def _first_tensor(predictions: object) -> Tensor:
    """Return the first tensor in nested predictions."""
    while isinstance(predictions, (tuple, list, Mapping)) and len(predictions):
        if isinstance(predictions, Mapping):
            predictions = list(predictions.values())
        predictions = predictions[0]
    if not isinstance(predictions, Tensor):
        raise ValueError(
            f"The first prediction is a {type(predictions).__name__}, not a tensor. {PREPARE_HINT}"
        )
    return _in_single_precision(predictions)


def _only_labels(labels: object) -> Tensor:
    """Return the labels, which may be in a tuple of one. Raise for several."""
    if isinstance(labels, (tuple, list)) and len(labels) == 1:
        labels = labels[0]
    if not isinstance(labels, Tensor):
        description = f"a {type(labels).__name__}"
        if isinstance(labels, (tuple, list, Mapping)):
            description += f" of {len(labels)}"
        raise ValueError(f"The labels are {description}, not one tensor. {PREPARE_HINT}")
    return _in_single_precision(labels)


def _in_single_precision(tensor: Tensor) -> Tensor:
    """Convert a tensor in half precision to single precision."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    return tensor
