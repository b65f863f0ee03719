"""Split batches into inputs and labels, and count their samples.

The last batch of an evaluation may contain duplicate samples, which give all processes equally many
batches.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..common.nested import find_batch_size
from ..data.epoch_loader import EpochLoader
from ..models.wrappers import base_of_adapter

_DIVIDE_BY_WEIGHTS: tuple[object, ...] = (
    nn.CrossEntropyLoss.forward,
    nn.NLLLoss.forward,
    nn.functional.cross_entropy,
    nn.functional.nll_loss,
)
"""Losses that divide a mean by the sum of the weights of the labels' classes."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def split_labels(batch: object) -> tuple[tuple[Any, ...], Any]:
    """Split an unnamed batch into inputs and labels.

    The labels are the last part; the inputs are in the order of the parameters of `forward`.

    Args:
        batch: a tuple, a list, or one tensor or object alone.

    Returns:
        The inputs and the labels; the labels are None if there is only one part.
    """
    parts = parts_of(batch)
    if len(parts) > 1:
        return parts[:-1], parts[-1]
    return parts, None


def parts_of(batch: object) -> tuple[Any, ...]:
    """Return the parts of an unnamed batch; a tensor or another object is a single part."""
    if isinstance(batch, (tuple, list)):
        return tuple(batch)
    return (batch,)


def as_arguments(inputs: tuple[object, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs as positional and keyword arguments.

    A single mapping, as in `({"input_ids": ...}, y)`, is converted to keyword arguments.
    """
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return (), dict(inputs[0])
    return inputs, {}


def requires_all_parts(model: nn.Module, batch: object) -> bool:
    """Return whether `forward` requires every part of an unnamed batch.

    In this case none of the parts is a label.
    """
    # The `forward` of an adapter accepts any arguments, so inspect the base model.
    signature = inspect.signature(base_of_adapter(model).forward)
    required = 0
    for parameter in signature.parameters.values():
        has_default = parameter.default is not parameter.empty
        if parameter.kind in _POSITIONAL and not has_default:
            required += 1
    return required >= len(parts_of(batch))


def count_targets(loss_fn: object, labels: object, device: torch.device) -> torch.Tensor | None:
    """Count the items of a mean loss: class indices that are not ignored, values, or samples.

    If the loss is a mean weighted by class weights, class indices are counted by these weights.

    Args:
        loss_fn: a function, whose result is assumed to be a mean, or a torch module or partial
            function with a `reduction`.
        labels: the labels of the batch.
        device: the device of the result.

    Returns:
        A tensor on the device, computed without synchronisation; None if the loss is not a mean.
    """
    reduction = _setting_of(loss_fn, "reduction", "mean")
    if reduction not in ("mean", "batchmean"):
        return None

    # "mean" averages over classes that are not ignored, or over all values; "batchmean" over rows.
    if isinstance(labels, torch.Tensor) and reduction == "mean":
        is_class_number = not labels.is_floating_point() and labels.dtype != torch.bool
        if is_class_number:
            return _count_class_numbers(loss_fn, labels)
        return torch.full((), labels.numel(), device=device)

    samples = find_batch_size(labels)
    if samples is None:
        return None
    return torch.full((), samples, device=device)


def _count_class_numbers(loss_fn: object, labels: torch.Tensor) -> torch.Tensor:
    """Count the class indices that are not ignored, or sum the weights of their classes."""
    ignore_index = _setting_of(loss_fn, "ignore_index", -100)
    is_counted = labels.ne(ignore_index)
    weights = _setting_of(loss_fn, "weight", None)
    if weights is None or not _divides_by_weights(loss_fn):
        return is_counted.sum()

    # Only ratios matter, so normalize weights: a label of the class with the smallest weight is 1.
    smallest = weights.where(weights > 0, math.inf).amin()
    relative = weights / smallest

    # An ignored label may be an invalid index.
    classes = labels.where(is_counted, 0)
    return relative[classes].mul(is_counted).sum()


def _setting_of(loss_fn: object, name: str, default: Any) -> Any:
    """Return the attribute of a loss, or the keyword of a partial function."""
    if isinstance(loss_fn, functools.partial):
        return loss_fn.keywords.get(name, default)
    return getattr(loss_fn, name, default)


def _divides_by_weights(loss_fn: object) -> bool:
    """Return whether a loss of torch divides by the class weights of the labels."""
    if isinstance(loss_fn, functools.partial):
        return loss_fn.func in _DIVIDE_BY_WEIGHTS
    return isinstance(loss_fn, nn.Module) and type(loss_fn).forward in _DIVIDE_BY_WEIGHTS


def describe_batch(batch: object) -> str:
    """Return the columns of a batch, or the types and shapes of its parts, for messages."""
    if isinstance(batch, Mapping):
        columns = [str(name) for name in batch]
        return ", ".join(columns) or "nothing"

    descriptions: list[str] = []
    for part in parts_of(batch):
        description = type(part).__name__
        if isinstance(part, torch.Tensor):
            description += f" {tuple(part.shape)}"
        descriptions.append(description)
    return ", ".join(descriptions)


def count_unrepeated_samples(
    loader: object, batch: object, index: int, rank: int, world_size: int
) -> int | None:
    """Return how many samples of a batch are not duplicates.

    Returns None if all samples are unique, or if the number is unknown.

    Args:
        loader: the loader of the batch. The number is known for an `EpochLoader`, over a stream if
            at most one worker reads it.
        batch: the batch.
        index: the index of the batch in its epoch.
        rank: index of this process.
        world_size: number of processes.
    """
    if world_size == 1 or not isinstance(loader, EpochLoader) or not loader.end_of_loader:
        return None

    # The loader has prefetched further batches, so this is not the last one.
    if index + 1 < loader.batches_yielded:
        return None

    # A round consists of one batch per process; duplicate samples may fill up the last round.
    samples_left = loader.remainder
    rows_per_process = loader.samples_per_round // world_size
    rows = find_batch_size(batch)
    if rows is None:
        return None

    # The last round of a stream is divided evenly instead of being filled up to full batches.
    if loader.total is None and rows == math.ceil(samples_left / world_size):
        rows_per_process = rows
    if samples_left <= 0 or rows != rows_per_process:
        return None

    # Consecutive batches are assigned to consecutive ranks: rank 0 the first batch, rank 1 the
    # next.
    left_for_this_rank = max(samples_left - rank * rows_per_process, 0)
    return min(left_for_this_rank, rows_per_process)
