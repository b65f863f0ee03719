"""Order samples so that those of similar length are batched together, to reduce padding."""

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
    """Draw an order in which samples of similar length are batched together.

    Works like `transformers.trainer_pt_utils.get_length_grouped_indices`, but sorts with NumPy.

    A random order is split into chunks of `mega_batch_mult` batches, and each chunk is sorted by
    descending length. Then the longest sample of all is swapped with the first one, so that an
    out-of-memory error occurs in the first step or not at all. As in the reference, the swapped
    sample is then out of order in its chunk.

    Args:
        lengths: length of each sample.
        batch_size: samples per batch.
        mega_batch_mult: number of batches per chunk; by default 50, or fewer to get at least 4
            chunks.
        generator: draws the random order; by default torch's global generator.

    Returns:
        The indices in order; [] without samples, for which the reference raises an error.
    """
    return grouped_order(length_array(lengths), batch_size, mega_batch_mult, generator).tolist()


def grouped_order(
    sizes: np.ndarray, batch_size: int, multiple: int | None, generator: torch.Generator | None
) -> np.ndarray:
    """Return the order of `get_length_grouped_indices` as an array with 4 bytes per sample.

    Args:
        sizes: length of each sample.
        batch_size: samples per batch.
        multiple: batches per chunk; None for the default.
        generator: draws the random order; None for torch's global generator.
    """
    count = len(sizes)
    order = random_order(count, generator)
    if count == 0:
        return order
    if multiple is None or multiple == 0:
        multiple = max(1, min(count // (batch_size * 4), 50))
    chunk_size = multiple * batch_size

    # Sort each chunk by descending length, with a stable sort.
    for start in range(0, count, chunk_size):
        chunk = order[start : start + chunk_size]
        longest_first = np.argsort(-sizes[chunk], kind="stable")
        chunk[:] = chunk[longest_first]

    # The first sample of each chunk is its longest one.
    longest_of_chunks = sizes[order[::chunk_size]]
    longest = int(np.argmax(longest_of_chunks)) * chunk_size
    order[0], order[longest] = order[longest], order[0]
    return order


class LengthGroupedSampler(Sampler[int]):
    """Sampler whose order batches samples of similar length together.

    Works like `transformers.trainer_pt_utils.LengthGroupedSampler`.

    The lengths of a `datasets.Dataset` are read by column.

    Args:
        batch_size: samples per batch.
        dataset: the dataset whose samples are measured once if `lengths` is not passed.
        lengths: the length of each sample; if passed, the dataset is not read.
        model_input_name: the column to measure; by default "input_ids".
        generator: draws the order of each epoch; by default torch's global generator.

    Raises:
        ValueError: neither a dataset nor lengths were passed, or a sample does not have the column.
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
                "dataset=None and lengths=None: pass one of them, so that samples can be grouped "
                "by length."
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
        order = grouped_order(self._lengths, self.batch_size, None, self.generator)
        return in_sequence(order)

    def state_dict(self) -> dict[str, int]:
        """Return the batch size, so that a resumed epoch keeps its order if it changes."""
        return {"batch_size": self.batch_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the batch size."""
        self.batch_size = state["batch_size"]
