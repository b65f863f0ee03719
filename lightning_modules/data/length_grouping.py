"""Order in which samples of similar length are in a batch together, so that little is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from .lengths import length_array, sample_lengths
from .order import in_sequence, random_order


def get_length_grouped_indices(
    lengths: Sequence[int] | np.ndarray | torch.Tensor,
    batch_size: int,
    mega_batch_mult: int | None = None,
    generator: torch.Generator | None = None,
) -> list[int]:
    """As `transformers.trainer_pt_utils.get_length_grouped_indices`, but sorted by numpy, and []
    for no lengths.

    A random order is cut into chunks of `mega_batch_mult` batches, and each chunk is sorted,
    longest first. Then the longest sample of all changes places with the first one, so that memory
    runs out at once or never. As in the reference, the sample that it changes places with is then
    out of order in its chunk.

    Args:
        lengths: length of each sample.
        batch_size: samples per batch.
        mega_batch_mult: batches per chunk; by default 50, or fewer so that there are at least 4
            chunks.
        generator: draws the random order, by default torch's global one.

    Returns:
        Each index once.
    """
    return grouped_order(length_array(lengths), batch_size, mega_batch_mult, generator).tolist()


def grouped_order(
    sizes: np.ndarray, batch_size: int, multiple: int | None, generator: torch.Generator | None
) -> np.ndarray:
    """Return the order of `get_length_grouped_indices` in an array of 4 bytes a sample."""
    count = len(sizes)
    order = random_order(count, generator)
    if not count:
        return order
    chunk = (multiple or max(1, min(count // (batch_size * 4), 50))) * batch_size
    whole = count // chunk
    at_a_time = max(1, _SORTED_AT_A_TIME // chunk)
    for start in range(0, whole, at_a_time):
        _sort_rows(
            order[start * chunk : min(start + at_a_time, whole) * chunk].reshape(-1, chunk), sizes
        )
    _sort_rows(order[whole * chunk :].reshape(1, -1), sizes)
    longest = int(np.argmax(sizes[order[::chunk]])) * chunk
    order[0], order[longest] = order[longest], order[0]
    return order


_SORTED_AT_A_TIME = 2**18


def _sort_rows(rows: np.ndarray, sizes: np.ndarray) -> None:
    """Sort each row of indices by size, the largest first; equal sizes keep their order."""
    rows[:] = np.take_along_axis(rows, np.argsort(-sizes[rows], axis=1, kind="stable"), axis=1)


class LengthGroupedSampler(Sampler[int]):
    """As `transformers.trainer_pt_utils.LengthGroupedSampler`, but reads a `datasets.Dataset` by
    column.

    Args:
        batch_size: samples per batch.
        dataset: its samples are measured, once, when `lengths` is not given.
        lengths: length of each sample; the dataset is not read then.
        model_input_name: which column is measured, by default "input_ids".
        generator: draws the order of each epoch, by default torch's global one.

    Raises:
        ValueError: when there is neither a dataset nor lengths, or a sample has no such column.
    """

    def __init__(
        self,
        batch_size: int,
        dataset: Any = None,
        lengths: Sequence[int] | np.ndarray | torch.Tensor | None = None,
        model_input_name: str | None = None,
        generator: torch.Generator | None = None,
    ):
        if dataset is None and lengths is None:
            raise ValueError(
                "`dataset` and `lengths` are both None; pass the one or the other to group by "
                "length."
            )
        if lengths is None:
            lengths = sample_lengths(dataset, model_input_name or "input_ids")
        self.batch_size = batch_size
        self._lengths = length_array(lengths)
        self.generator = generator

    @property
    def lengths(self) -> list[int]:
        """Return the length of each sample."""
        return self._lengths.tolist()

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        return in_sequence(grouped_order(self._lengths, self.batch_size, None, self.generator))
