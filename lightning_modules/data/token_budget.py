"""Batches that hold as many samples as fit into a number of tokens, including padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import BatchSampler

from .length_grouping import grouped_order
from .lengths import length_array
from .order import random_order


class TokenBudgetSampler(BatchSampler):
    """Sample batches of at most `max_tokens` tokens, including padding.

    A batch counts as its number of samples times the longest of their lengths. The batches are
    formed once: from a random order that depends on `seed`, sorted by length in chunks of about 50
    batches. Each epoch takes the batches in its own order, so that all epochs and processes have
    equally many. The processes take the batches in turn.

    Args:
        lengths: the lengths of all samples, in tokens.
        max_tokens: tokens of a batch of one process, including padding.
        max_samples: samples of a batch; None for any number.
        seed: seed of the batches, and of their order in epoch 0; the order of epoch `e` is drawn
            with `seed + e`.
        rank: index of this process.
        world_size: number of processes.
        drop_last: leave out a last, incomplete round of batches instead of filling it up with the
            first ones.

    Raises:
        ValueError: a sample is longer than `max_tokens`; it is named.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        max_tokens: int,
        *,
        max_samples: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        sizes = np.maximum(length_array(lengths), 1)
        too_long = np.flatnonzero(sizes > max_tokens)
        if len(too_long):
            worst = too_long[0]
            raise ValueError(
                f"max_tokens_per_batch={max_tokens} is too small for {len(too_long)} of "
                f"{len(sizes)} samples: sample {worst} has {sizes[worst]} tokens, the longest has "
                f"{sizes.max()}. Raise it, or truncate these samples."
            )
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.drop_last = drop_last
        self.epoch = 0

        # Samples of similar length are neighbours, in chunks of batches of a typical size.
        typical_batch_size = 1
        if len(sizes):
            typical_batch_size = max(int(max_tokens // sizes.mean()), 1)
        generator = torch.Generator().manual_seed(seed)
        self._samples = grouped_order(sizes, typical_batch_size, None, generator)
        self._batch_ends = _batch_ends(sizes[self._samples], max_tokens, max_samples or max_tokens)

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch at the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Count the batches of this process in an epoch."""
        batches = len(self._batch_ends)
        if self.drop_last:
            return batches // self.world_size
        return -(-batches // self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = random_order(len(self._batch_ends), generator)

        # The last round of batches is filled up from the start of the order, or cut off.
        full_rounds = np.resize(order, len(self) * self.world_size)
        batches: list[int] = full_rounds[self.rank :: self.world_size].tolist()
        for batch in batches:
            start = 0
            if batch > 0:
                start = self._batch_ends[batch - 1]
            yield self._samples[start : self._batch_ends[batch]].tolist()


def _batch_ends(sizes: np.ndarray, max_tokens: int, max_samples: int) -> list[int]:
    """Cut samples in this order into batches of as many as fit; return the end of each batch.

    Args:
        sizes: length of each sample.
        max_tokens: tokens of a batch, including padding.
        max_samples: samples of a batch.
    """
    ends: list[int] = []
    start = 0
    while start < len(sizes):
        # At most this many samples fit, as each counts at least as much as the first one.
        most = min(max_tokens // int(sizes[start]), max_samples)
        candidates = sizes[start : start + most]

        # The tokens of a batch of the first n candidates, for each n.
        tokens = np.maximum.accumulate(candidates) * np.arange(1, len(candidates) + 1)
        start += int(np.searchsorted(tokens, max_tokens, side="right"))
        ends.append(start)
    return ends
