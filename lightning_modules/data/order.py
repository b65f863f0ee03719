"""Random orders of the samples of an epoch, as arrays of indices with 4 bytes per sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

SampleOrder: TypeAlias = NDArray[np.int32] | NDArray[np.int64]
"""The ordered indices of the samples of an epoch, of shape (samples,)."""

_CHUNK = 2**14
"""Number of indices converted to Python at a time; all at once would take 40 bytes per sample."""


def random_order(count: int, generator: torch.Generator | None) -> SampleOrder:
    """Return `torch.randperm(count, generator=generator)` as an array.

    It has 32-bit integers if the values fit.

    Args:
        count: number of samples.
        generator: draws the order; None for torch's global generator.
    """
    # torch draws the same order with both dtypes, but 32 bits need half of the memory.
    dtype = torch.int32
    if count >= 2**31:
        dtype = torch.int64

    order = torch.randperm(count, generator=generator, dtype=dtype, device="cpu")
    return order.numpy()


def in_sequence(order: SampleOrder) -> Iterator[int]:
    """Yield the indices of an order as Python numbers."""
    for start in range(0, len(order), _CHUNK):
        end = start + _CHUNK
        chunk = order[start:end]
        indices: list[int] = chunk.tolist()
        yield from indices
