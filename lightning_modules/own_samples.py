"""Leaves out of the last batch of an evaluation what only fills up the round of several processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .collect import find_batch_size
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


def cut_batch(batch: Mapping[str, Any], samples: int) -> dict[str, Any]:
    """The first samples of a batch: of all that has one entry for each."""
    size = find_batch_size(batch)
    return {name: value[:samples] if _has_entries(value, size) else value for name, value in batch.items()}


def _has_entries(value: Any, size: int | None) -> bool:
    if isinstance(value, torch.Tensor):
        return value.ndim > 0 and value.shape[0] == size
    return isinstance(value, (list, tuple)) and len(value) == size
