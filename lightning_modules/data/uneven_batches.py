"""Leaves out of the last batch of an evaluation what only fills up the round of several processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..common.nested import find_batch_size, mapping_like
from .epoch_loader import EpochLoader

__all__ = ["cut_batch", "samples_that_count"]


def samples_that_count(loader: Any, batch: Any, rank: int, world_size: int) -> int | None:
    """How many samples of this batch are no repetitions; None for all of them, or where that is not known.

    Args:
        loader: gave the batch; known is it of an `EpochLoader` over a dataset with a length.
        batch: the batch.
        rank: index of this process.
        world_size: number of processes.
    """
    if world_size == 1 or not isinstance(loader, EpochLoader) or loader.total is None or not loader.end_of_loader:
        return None
    left, share = loader.remainder, loader.samples_per_round // world_size
    if left <= 0 or find_batch_size(batch) != share:
        return None
    return min(max(left - rank * share, 0), share)


def cut_batch(batch: Any, samples: int) -> Any:
    """The first samples of a batch, in a mapping, in order or alone: of all that has one entry for each."""
    size = find_batch_size(batch)
    if isinstance(batch, Mapping):
        return {name: _cut(value, samples, size) for name, value in batch.items()}
    if not isinstance(batch, (list, tuple)):
        return _cut(batch, samples, size)
    parts = [_cut(part, samples, size) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def _cut(value: Any, samples: int, size: int | None) -> Any:
    if isinstance(value, Mapping):
        return mapping_like(value, {name: _cut(part, samples, size) for name, part in value.items()})
    if isinstance(value, torch.Tensor):
        return value[:samples] if value.ndim > 0 and value.shape[0] == size else value
    return value[:samples] if isinstance(value, (list, tuple)) and len(value) == size else value
