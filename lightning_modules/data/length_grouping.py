"""An order that batches samples of similar length, so that there is little padding."""

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
    """Draw an order in which samples of similar length are in the same batches.

    Works like `transformers.trainer_pt_utils.get_length_grouped_indices`, but sorted by numpy.

    A random order is cut into chunks of `mega_batch_mult` batches, and each chunk is sorted,
    longest first. Then the longest sample of all and the first one are swapped, so that memory
    runs out at once or never. As in the reference, the sample that was first is then out of order
    in its chunk.

    Args:
        lengths: length of each sample.
        batch_size: samples per batch.
        mega_batch_mult: batches per chunk; by default 50, or fewer so that there are at least 4
            chunks.
        generator: draws the random order, by default torch's global one.

    Returns:
        Each index once; [] for no lengths, where the reference raises.
    """
    return grouped_order(length_array(lengths), batch_size, mega_batch_mult, generator).tolist()


def grouped_order(
    sizes: np.ndarray, batch_size: int, multiple: int | None, generator: torch.Generator | None
) -> np.ndarray:
    """Return the order of `get_length_grouped_indices` in an array of 4 bytes a sample.

    Args:
        sizes: length of each sample.
        batch_size: samples per batch.
        multiple: batches per chunk; None for the default.
        generator: draws the random order, None for torch's global one.
    """
    count = len(sizes)
    order = random_order(count, generator)
    if count == 0:
        return order
    if multiple is None or multiple == 0:
        multiple = max(1, min(count // (batch_size * 4), 50))
    chunk_size = multiple * batch_size

    # Longest first in each chunk; equal ones keep their order.
    for start in range(0, count, chunk_size):
        chunk = order[start : start + chunk_size]
        longest_first = np.argsort(-sizes[chunk], kind="stable")
        chunk[:] = chunk[longest_first]

    # The longest sample of each chunk is its first one.
    longest_of_chunks = sizes[order[::chunk_size]]
    longest = int(np.argmax(longest_of_chunks)) * chunk_size
    order[0], order[longest] = order[longest], order[0]
    return order


class LengthGroupedSampler(Sampler[int]):
    """Sample in an order in which samples of similar length are in the same batches.

    Works like `transformers.trainer_pt_utils.LengthGroupedSampler`.

    It reads a `datasets.Dataset` by column.

    Args:
        batch_size: samples per batch.
        dataset: its samples are measured, once, when `lengths` is not passed.
        lengths: length of each sample; the dataset is not read then.
        model_input_name: which column is measured, by default "input_ids".
        generator: draws the order of each epoch, by default torch's global one.

    Raises:
        ValueError: neither a dataset nor lengths are passed, or a sample has no such column.
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
        """Return the batch size: a resumed epoch keeps its order in batches of another size."""
        return {"batch_size": self.batch_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the batch size."""
        self.batch_size = state["batch_size"]
