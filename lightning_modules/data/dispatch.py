"""Loader that reads all data on rank 0, and sends it to the other ranks."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset

from ..common.batch_rows import join_rows, slice_rows
from ..common.nested import count_rows
from .epoch_loader import EpochLoader
from .loader_state import skip_items

Round = tuple[list[Any], int]
"""The batches of all processes, and the number of their samples without duplicates."""

_NO_ROUND: Round = ([], 0)
"""Marks the end of the rounds."""


class DispatchLoader(EpochLoader):
    """Loader that reads all data on rank 0, and sends each process its batches.

    Works like `accelerate.data_loader.DataLoaderDispatcher`, but each process only receives its own
    batch, so batches of a round may have different shapes. If a stream ends within a round, its
    last batches are concatenated, filled up with the first samples of the stream, and split evenly;
    this requires matching shapes.

    Args:
        dataset: see `EpochLoader`; only read on rank 0.
        rank: index of this process.
        world_size: number of processes.
        copies: number of consecutive processes that get the same batches.
        kwargs: see `EpochLoader`. Batches are assigned in turn to each process, or to each group of
            `copies` processes.
    """

    reports_states = False

    def __init__(
        self, dataset: Any, *, rank: int, world_size: int, copies: int = 1, **kwargs: Any
    ) -> None:
        self._has_persistent_workers = kwargs.get("persistent_workers", False)
        num_workers = kwargs.get("num_workers", 0)
        # By default torch prefetches 2 batches for each worker.
        self._batches_drawn_at_start = num_workers * (kwargs.get("prefetch_factor") or 2)
        """Number of batches whose indices torch draws at the start of an iteration with workers."""
        if rank > 0:
            # Only rank 0 reads, so the others need no workers.
            kwargs["num_workers"] = 0
            kwargs["persistent_workers"] = False
            kwargs["prefetch_factor"] = None
            kwargs["multiprocessing_context"] = None
            kwargs["worker_init_fn"] = None
        super().__init__(dataset, **kwargs)
        self.rank = rank
        # Processes that get the same batches count as one.
        self.world_size = world_size // copies
        self.batches_of_round = self.world_size
        self.copies = copies
        self._samples_in_round = -1
        self._has_drawn = False

    def __len__(self) -> int:
        """Count the batches of this process in an epoch."""
        batches = super().__len__()
        if self.drops_last:
            return batches // self.world_size
        return -(-batches // self.world_size)

    @property
    def remainder(self) -> int:
        """Return `EpochLoader.remainder`, which rank 0 sends to the others."""
        if self.drops_last or self.total is not None:
            return super().remainder
        if not self.end_of_loader:
            return -1
        return self._samples_in_round

    def _batches(self) -> Iterator[Any]:
        if self.rank == 0:
            return self._own_batches(self._rounds(super()._batches()))
        self._draw_as_reader()
        return self._own_batches(iter(()))

    def _own_batches(self, rounds: Iterator[Round]) -> Iterator[object]:
        """Yield this process's batch of each round."""
        while True:
            received = _exchange(rounds, self.rank, self.copies)
            if received is None:
                return
            batch, self._samples_in_round = received
            yield batch

    def _rounds(self, batches: Iterator[object]) -> Iterator[Round]:
        """Yield the rounds that rank 0 reads."""
        first_round: list[object] = []
        while True:
            round_ = list(itertools.islice(batches, self.world_size))
            if not round_:
                return
            if not first_round:
                first_round = round_

            # A stream may end within a round, or within a batch.
            sizes = [_size(batch) for batch in round_]
            is_full = len(round_) == self.world_size and len(set(sizes)) == 1
            if is_full:
                yield round_, sum(sizes)
            elif not self.drops_last:
                yield _split_evenly(round_, first_round, self.world_size), sum(sizes)

    def _draw_as_reader(self) -> None:
        """Draw from the generators like a DataLoader at the start of an iteration.

        This keeps the generators of all ranks in sync. With persistent workers, a seed is only
        drawn in the first iteration. A sampler draws its order when the first batches are assigned
        to workers.
        """
        if not (self._has_persistent_workers and self._has_drawn):
            torch.empty((), dtype=torch.int64, device="cpu").random_(generator=self.generator)
        self._has_drawn = True

        if not isinstance(self.dataset, IterableDataset):
            skip_items(iter(self.batch_sampler), self._batches_drawn_at_start)


def _split_evenly(batches: list[Any], first_round: list[Any], parts: int) -> list[object]:
    """Join the last batches of a stream, fill them up from its start, and split them evenly."""
    batch = join_rows(batches)
    # The quotient, rounded up.
    size = -(-_size(batch) // parts)
    # Repeat in case the first round has fewer samples than are missing.
    while True:
        missing = size * parts - _size(batch)
        if missing <= 0:
            break
        start = slice_rows(join_rows(first_round), 0, min(parts, missing))
        batch = join_rows([batch, start])
    return [slice_rows(batch, index * size, (index + 1) * size) for index in range(parts)]


def _size(batch: object) -> int:
    return count_rows(batch) or 0


def _exchange(rounds: Iterator[Round], rank: int, copies: int) -> tuple[Any, int] | None:
    """Exchange the next round.

    Returns:
        The batch of this process, and the number of samples in the round; None at the end.

    Raises:
        RuntimeError: rank 0 could not read the data. On rank 0 the original error is raised.
    """
    # If reading or pickling fails, send the error, because the other ranks are waiting for a batch.
    messages: list[bytes | str | None] = [None] * dist.get_world_size()
    failure: Exception | None = None
    if rank == 0:
        try:
            batches, samples_in_round = next(rounds, _NO_ROUND)
            for index, batch in enumerate(batches):
                # Pickle it once for all processes that get this batch.
                content = pickle.dumps((batch, samples_in_round))
                messages[index * copies : (index + 1) * copies] = [content] * copies
        except Exception as error:
            failure = error
            messages = [f"{type(error).__name__}: {error}"] * len(messages)

    # All processes reach this point, with a batch, an error, or None at the end.
    received: list[Any] = [None]
    dist.scatter_object_list(received, messages, src=0)
    if failure is not None:
        raise failure
    message = received[0]
    if isinstance(message, str):
        raise RuntimeError(f"dispatch_batches=True: process 0 could not read the data: {message}")
    if message is None:
        return None
    return pickle.loads(message)
