"""Random orders of the samples of an epoch, as one array of their indices: 4 bytes a sample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from numpy.typing import NDArray

_CHUNK = 2**14
"""Indices that become Python numbers at a time; all at once they would take 40 bytes a sample."""


def random_order(count: int, generator: torch.Generator | None) -> NDArray[Any]:
    """Draw `torch.randperm(count, generator=generator)` as an array.

    It has 32-bit integers if they suffice.

    Args:
        count: number of samples.
        generator: draws the order; None for torch's global one.
    """
    dtype = torch.int32 if count < 2**31 else torch.int64
    return torch.randperm(count, generator=generator, dtype=dtype, device="cpu").numpy()


def in_sequence(order: NDArray[Any]) -> Iterator[int]:
    """Return an iterator over the indices of an order, as Python numbers."""
    starts = range(0, len(order), _CHUNK)
    chunks = (order[start : start + _CHUNK].tolist() for start in starts)
    # Without a Python frame for each index.
    return itertools.chain.from_iterable(chunks)
