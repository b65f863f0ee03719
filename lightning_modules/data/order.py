"""Order of the samples of an epoch, as one array of their indices: 4 bytes a sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler, Sampler

CHUNK = 2**14
"""Indices that are made Python numbers at a time; all at once they would take 40 bytes a sample."""


class OrderedSampler(Sampler[int]):
    """Sampler whose order of an epoch is an array."""

    def epoch_order(self) -> np.ndarray:
        """Draw the order of the next epoch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        return _in_sequence(self.epoch_order())


def order_of(sampler: Any) -> np.ndarray | None:
    """Draw the order of a sampler's next epoch; None if it has to be read sample by sample."""
    if isinstance(sampler, OrderedSampler) and type(sampler).__iter__ is OrderedSampler.__iter__:
        return sampler.epoch_order()
    if type(sampler) is not RandomSampler or not is_permutation(sampler):
        return None

    count = sampler.num_samples
    generator = sampler.generator
    if generator is None:
        seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
        return random_order(count, torch.Generator().manual_seed(seed))
    order = random_order(count, generator)
    # torch draws a second order, of which it takes nothing.
    random_order(count, generator)
    return order


def is_permutation(sampler: RandomSampler) -> bool:
    """Return whether a sampler gives each sample once."""
    return not sampler.replacement and sampler.num_samples == len(sampler.data_source)


def random_order(count: int, generator: torch.Generator | None) -> np.ndarray:
    """Draw `torch.randperm(count, generator=generator)` as an array of 32-bit integers where these suffice.

    Args:
        count: number of samples.
        generator: draws the order; None for torch's global one.
    """
    dtype = torch.int32 if count < 2**31 else torch.int64
    return torch.randperm(count, generator=generator, dtype=dtype, device="cpu").numpy()


def _in_sequence(order: np.ndarray) -> Iterator[int]:
    """Yield the indices as Python numbers."""
    for start in range(0, len(order), CHUNK):
        yield from order[start : start + CHUNK].tolist()
