"""Form batches with as many samples as fit into a number of tokens, including padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import BatchSampler

from .length_grouping import grouped_order
from .lengths import length_array
from .order import random_order


class TokenBudgetSampler(BatchSampler):
    """Batch sampler with at most `max_tokens` tokens per batch, including padding.

    The size of a batch is its number of samples times the maximum length. The batches are formed
    once, from a random order that depends on `seed` and is sorted by length in chunks of about 50
    batches. Each epoch only shuffles the batches, so all epochs and processes have the same number
    of batches. Batches are assigned to the processes in turn.

    Args:
        lengths: the length of each sample in tokens.
        max_tokens: maximum number of tokens per batch and process, including padding.
        max_samples: maximum number of samples per batch; None for no limit.
        seed: the seed of the batches, and of their order in epoch 0; the order of epoch `e` uses
            `seed + e`.
        rank: index of this process.
        world_size: number of processes.
        drop_last: whether to drop an incomplete last round of batches instead of filling it up with
            the first ones.

    Raises:
        ValueError: a sample is longer than `max_tokens`.
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
        self.rank = rank
        self.world_size = world_size
        self.drop_last = drop_last
        self.epoch = 0
        self._sizes = sizes
        self._max_tokens = max_tokens
        self._max_samples = max_samples or max_tokens
        self._assign_samples(seed)

    def _assign_samples(self, seed: int) -> None:
        """Assign the samples to batches."""
        self.seed = seed
        sizes = self._sizes

        # Group samples of similar length, in chunks of batches of a typical size.
        typical_batch_size = 1
        if len(sizes):
            typical_batch_size = max(int(self._max_tokens // sizes.mean()), 1)
        generator = torch.Generator().manual_seed(seed)
        self._samples = grouped_order(sizes, typical_batch_size, None, generator)
        ordered_sizes = sizes[self._samples]
        self._batch_ends = _batch_ends(ordered_sizes, self._max_tokens, self._max_samples)

    def state_dict(self) -> dict[str, int]:
        """Return the seed, so that a resumed epoch keeps its batches if the seed changes."""
        return {"seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the seed, and the batches that follow from it."""
        if state["seed"] != self.seed:
            self._assign_samples(state["seed"])

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

        # Fill up the last round from the start of the order, or drop it.
        full_rounds = np.resize(order, len(self) * self.world_size)
        batches: list[int] = full_rounds[self.rank :: self.world_size].tolist()
        for batch in batches:
            start = 0
            if batch > 0:
                start = self._batch_ends[batch - 1]
            yield self._samples[start : self._batch_ends[batch]].tolist()


def _batch_ends(sizes: np.ndarray, max_tokens: int, max_samples: int) -> list[int]:
    """Split ordered samples into batches of as many as fit; return the end of each batch.

    Args:
        sizes: length of each sample.
        max_tokens: maximum number of tokens per batch, including padding.
        max_samples: maximum number of samples per batch.
    """
    ends: list[int] = []
    start = 0
    while start < len(sizes):
        # Upper bound on the number of samples, because each one takes at least the length of the
        # first.
        most = min(max_tokens // int(sizes[start]), max_samples)
        candidates = sizes[start : start + most]

        # Number of tokens in a batch of the first n candidates, for each n.
        tokens = np.maximum.accumulate(candidates) * np.arange(1, len(candidates) + 1)
        start += int(np.searchsorted(tokens, max_tokens, side="right"))
        ends.append(start)
    return ends
