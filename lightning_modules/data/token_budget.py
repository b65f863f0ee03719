"""Batches of as many samples as fit into a number of tokens, padding counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import BatchSampler

from .length_grouping import grouped_order
from .lengths import length_array


class TokenBudgetSampler(BatchSampler):
    """Batch sampler of at most `max_tokens` tokens a batch: the number of samples times the longest
    length.

    The samples are put into batches once: in a random order that `seed` gives, sorted by length in
    chunks of about 50 batches. Each epoch takes the batches in an order of its own, so that all
    epochs and processes have equally many. The processes take the batches in turn.

    Args:
        lengths: of all samples, in tokens.
        max_tokens: of a batch of one process, padding counted.
        max_samples: of a batch; None for any number.
        seed: of the batches, and of the order of epoch 0; that of epoch `e` is drawn with
            `seed + e`.
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
                f"max_tokens_per_batch={max_tokens}, but sample {worst} has {sizes[worst]} tokens, "
                f"and so do not fit {len(too_long)} of {len(sizes)} samples; the longest has "
                f"{sizes.max()}. Raise it, or truncate them."
            )
        self.seed, self.rank, self.world_size, self.drop_last = seed, rank, world_size, drop_last
        self.epoch = 0
        usual = max(int(max_tokens // sizes.mean()), 1) if len(sizes) else 1
        self._samples = grouped_order(sizes, usual, None, torch.Generator().manual_seed(seed))
        self._ends = _filled(sizes[self._samples], max_tokens, max_samples or max_tokens)

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch at the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Count the batches of this process in an epoch."""
        batches = len(self._ends)
        return batches // self.world_size if self.drop_last else -(-batches // self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self._ends), generator=generator, device="cpu").numpy()
        for batch in np.resize(order, len(self) * self.world_size)[self.rank :: self.world_size]:
            start = self._ends[batch - 1] if batch else 0
            yield self._samples[start : self._ends[batch]].tolist()


def _filled(sizes: np.ndarray, max_tokens: int, max_samples: int) -> list[int]:
    """Return where each batch ends if samples of these lengths are taken in order, as many as
    fit.
    """
    ends, start = [], 0
    while start < len(sizes):
        window = sizes[start : start + min(max_tokens // int(sizes[start]), max_samples)]
        tokens = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        start += int(np.searchsorted(tokens, max_tokens, side="right"))
        ends.append(start)
    return ends
