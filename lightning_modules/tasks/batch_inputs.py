"""Inputs, labels and samples of a batch.

The last batch of an evaluation may hold repeated samples, which only complete the round of several
processes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..common.nested import find_batch_size, mapping_like, sequence_like
from ..data.epoch_loader import EpochLoader
from ..models.inspection import base_of_adapter


def split_labels(batch: Any) -> tuple[tuple[Any, ...], Any]:
    """Split a batch without names into its inputs, in the order of `forward`, and its labels, which
    are its last part.

    Args:
        batch: a tuple, a list, or one tensor or object alone.

    Returns:
        The inputs, and the labels; None for them where there is one part only.
    """
    parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    return (parts[:-1], parts[-1]) if len(parts) > 1 else (parts, None)


def as_arguments(inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make positional and keyword arguments of inputs: a mapping alone, as in
    `({"input_ids": ...}, y)`, has names.
    """
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return (), dict(inputs[0])
    return inputs, {}


def needs_all(model: nn.Module, batch: Any) -> bool:
    """Return whether `forward` requires every part of a batch without names, so that none of
    them is a label.
    """
    parameters = inspect.signature(base_of_adapter(model).forward).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in parameters if one.kind in positional and one.default is one.empty]
    return len(needed) >= (len(batch) if isinstance(batch, (tuple, list)) else 1)


def count_targets(loss_fn: Any, labels: Any, device: torch.device) -> torch.Tensor | None:
    """Count the items of a mean loss: class numbers that are not ignored, values, or samples.

    Args:
        loss_fn: a function, whose result counts as a mean, or a module of torch with a `reduction`.
        labels: of the batch.
        device: of the result.

    Returns:
        A number on the device, without synchronisation; None if the loss is not a mean.
    """
    reduction = getattr(loss_fn, "reduction", "mean")
    if reduction not in ("mean", "batchmean"):
        return None
    if isinstance(labels, torch.Tensor) and reduction == "mean":
        if not labels.is_floating_point() and labels.dtype != torch.bool:
            return labels.ne(getattr(loss_fn, "ignore_index", -100)).sum()
        return torch.full((), labels.numel(), device=device)
    samples = find_batch_size(labels)
    return None if samples is None else torch.full((), samples, device=device)


def describe_batch(batch: Any) -> str:
    """Name what is in a batch, for messages: columns, or types and shapes."""
    if isinstance(batch, Mapping):
        return ", ".join(map(str, batch)) or "nothing"
    parts = batch if isinstance(batch, (tuple, list)) else [batch]
    return ", ".join(
        (
            f"{type(part).__name__} {tuple(part.shape)}"
            if isinstance(part, torch.Tensor)
            else type(part).__name__
        )
        for part in parts
    )


def samples_that_count(
    loader: Any, batch: Any, index: int, rank: int, world_size: int
) -> int | None:
    """Return the number of samples of this batch that are not repeated; None for all, or if it is
    unknown.

    Args:
        loader: of the batch; known for an `EpochLoader`, over a stream if at most one worker reads
            it.
        batch: the batch.
        index: of the batch in its epoch.
        rank: index of this process.
        world_size: number of processes.
    """
    if world_size == 1 or not isinstance(loader, EpochLoader) or not loader.end_of_loader:
        return None
    if index + 1 < loader.handed_out:  # the last batch has been read ahead
        return None
    left = loader.remainder
    share = loader.samples_per_round // world_size
    rows = find_batch_size(batch)
    if rows is None:
        return None
    if loader.total is None and rows == math.ceil(left / world_size):
        # the last round of a stream is shared out evenly, and not filled up to whole batches
        share = rows
    if left <= 0 or rows != share:
        return None
    return min(max(left - rank * share, 0), share)


def cut_batch(batch: Any, samples: int) -> Any:
    """Return the first samples of a batch, a mapping, a sequence or a tensor, of every part with
    an entry for each.
    """
    size = find_batch_size(batch)
    if isinstance(batch, Mapping):
        return {name: _cut(value, samples, size) for name, value in batch.items()}
    if not isinstance(batch, (list, tuple)):
        return _cut(batch, samples, size)
    return sequence_like(batch, [_cut(part, samples, size) for part in batch])


def _cut(value: Any, samples: int, size: int | None) -> Any:
    if isinstance(value, Mapping):
        return mapping_like(
            value, {name: _cut(part, samples, size) for name, part in value.items()}
        )
    if isinstance(value, torch.Tensor):
        return value[:samples] if value.ndim > 0 and value.shape[0] == size else value
    return value[:samples] if isinstance(value, (list, tuple)) and len(value) == size else value
