"""Batch sampler that shards batches over processes, and helpers for rebuilding loaders."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterable, Iterator
from typing import Any, TypeVar

from torch.utils.data import BatchSampler

from ..common.lengths import length_or_none

Item = TypeVar("Item")

_LOADER_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)
"""Arguments of a `DataLoader` except dataset and batching; older torch versions lack some."""


@contextlib.contextmanager
def last_round_filled(sampler: Any) -> Generator[None]:
    """Fill up the last round of a batch sampler in the block, if it has `even_batches`."""
    if not hasattr(sampler, "even_batches"):
        yield
        return
    even_batches_before = sampler.even_batches
    sampler.even_batches = True
    try:
        yield
    finally:
        sampler.even_batches = even_batches_before


class ShardedBatchSampler(BatchSampler):
    """Batch sampler that yields this process's share of the batches of another one.

    Works like `accelerate.data_loader.BatchSamplerShard`.

    A round consists of one batch per process. With `even_batches` the last round is filled up with
    samples of the first one, so that all processes get the same number of batches of the same size.
    Unlike in accelerate, only the last round is filled up: a short batch in the middle of an epoch,
    as yielded by samplers over several datasets, is sharded unchanged.

    Args:
        sampler: yields the indices of an epoch, or without `batch_size` its batches, in the same
            order on every process.
        batch_size: number of samples per batch and process; with `split_batches`, over all
            processes. None if `sampler` yields batches.
        drop_last: whether to drop an incomplete last round. If `sampler` yields batches, its
            attribute `drop_last` is used instead.
        rank: index of this process. None yields the batches of all processes in turn, for a process
            that reads for all; the samples of the last round are then divided into equal parts.
        world_size: number of processes.
        even_batches: whether to fill up the last round, so that no process gets fewer batches.
        split_batches: whether a round is a single batch, of which each process gets a part.

    Attributes:
        batch_sampler: yields the batches of all processes.
        samples_per_rank: number of samples per process and round; None if the batch sampler has no
            `batch_size`.
    """

    def __init__(
        self,
        sampler: Any,
        batch_size: int | None = None,
        drop_last: bool = False,
        *,
        rank: int | None = 0,
        world_size: int = 1,
        even_batches: bool = True,
        split_batches: bool = False,
    ) -> None:
        batch_sampler: Any = sampler
        if batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_sampler = batch_sampler
        self.rank = rank
        self.world_size = world_size
        self.even_batches = even_batches
        self.split_batches = split_batches
        # Custom batch samplers may not have these attributes.
        self.batch_size: Any = getattr(batch_sampler, "batch_size", None)
        self.drop_last = bool(getattr(batch_sampler, "drop_last", False))

        if split_batches and world_size > 1 and self.batch_size is None:
            raise ValueError(
                "split_batches=True needs a batch sampler with the attribute `batch_size`, which "
                f"{type(batch_sampler).__name__} does not have."
            )
        self.samples_per_rank = None
        if self.batch_size is not None:
            self.samples_per_rank = batch_size_of_rank(self.batch_size, world_size, split_batches)

    @property
    def sampler(self) -> Any:  # BatchSampler has an attribute
        """Return the sampler of the batch sampler."""
        return getattr(self.batch_sampler, "sampler", None)

    @sampler.setter
    def sampler(self, value: object) -> None:
        self.batch_sampler.sampler = value

    def set_epoch(self, epoch: int) -> None:
        """Call `set_epoch` of the batch sampler, if it has one.

        The loader calls that of its `sampler`.
        """
        if hasattr(self.batch_sampler, "set_epoch"):
            self.batch_sampler.set_epoch(epoch)

    def __len__(self) -> int:
        """Count the batches of this process in an epoch."""
        batches = len(self.batch_sampler)
        if self.world_size == 1:
            return batches
        if self.split_batches:
            return self._split_batches_of_rank(batches)

        # An incomplete last round has a batch for each process if it is filled up.
        rounds, extra_batches = divmod(batches, self.world_size)
        has_last_round = extra_batches > 0 and not self.drop_last
        if has_last_round and self.rank is not None and not self.even_batches:
            has_last_round = self.rank < extra_batches
        return (rounds + has_last_round) * self._batches_in_round

    @property
    def _batches_in_round(self) -> int:
        if self.rank is None:
            return self.world_size
        return 1

    def _split_batches_of_rank(self, batches: int) -> int:
        """Return the number of parts of split batches that this process gets in an epoch."""
        if self.rank is None or self.even_batches or self.sampler is None:
            return batches * self._batches_in_round

        # Some processes may get no samples of a shorter last batch.
        samples_in_last_batch = len(self.sampler) - (batches - 1) * self.batch_size
        start_of_part = self.rank * (self.samples_per_rank or 1)
        if samples_in_last_batch <= start_of_part:
            return batches - 1
        return batches

    def __iter__(self) -> Iterator[list[int]]:
        if self.world_size == 1:
            return iter(self.batch_sampler)
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        """Yield the batches of this process, or those of all processes in turn."""
        for round_ in self._rounds():
            if self.rank is None:
                yield from round_
            elif self.rank < len(round_) and round_[self.rank]:
                yield round_[self.rank]

    def _rounds(self) -> Iterator[list[list[int]]]:
        """Yield the batches of all processes for each round."""
        batches = iter(self.batch_sampler)
        upcoming = self._read_round(batches)
        first = upcoming
        while upcoming:
            # Read one round ahead, to detect the last one.
            current = upcoming
            upcoming = self._read_round(batches)
            if not upcoming and not self._is_full(current):
                if not self.drop_last:
                    yield self._last_round(current, first)
            elif self.split_batches:
                yield self._split(current[0])
            else:
                yield current

    def _read_round(self, batches: Iterator[Iterable[int]]) -> list[list[int]]:
        """Read the batches of a round; fewer at the end."""
        count = self.world_size
        if self.split_batches:
            count = 1
        return [list(batch) for batch in itertools.islice(batches, count)]

    def _is_full(self, batches: list[list[int]]) -> bool:
        """Return whether a round is complete, as far as the batch size is known."""
        if self.split_batches:
            return len(batches[0]) == self.batch_size
        if len(batches) < self.world_size:
            return False
        return self.batch_size is None or len(batches[-1]) == self.batch_size

    def _last_round(self, batches: list[list[int]], first: list[list[int]]) -> list[list[int]]:
        """Return the incomplete last round, filled up from the first round if needed."""
        if not self.even_batches and self.rank is not None:
            if self.split_batches:
                return self._split(batches[0])
            return batches

        # If the batch size is unknown, fill it up with full batches.
        if self.samples_per_rank is None:
            missing = self.world_size - len(batches)
            return [*batches, *itertools.islice(itertools.cycle(first), missing)]

        samples = list(itertools.chain.from_iterable(batches))
        start = list(itertools.chain.from_iterable(first))
        # A process that reads for all divides the samples like the dispatcher of accelerate.
        if self.rank is None:
            return even_shares(samples, start[: self.world_size], self.world_size)
        missing = self.samples_per_rank * self.world_size - len(samples)
        return self._split([*samples, *itertools.islice(itertools.cycle(start), missing)])

    def _split(self, batch: list[int]) -> list[list[int]]:
        """Split the samples of a batch into one part per process."""
        size = self.samples_per_rank or 1
        return [batch[index * size : (index + 1) * size] for index in range(self.world_size)]


class SkipBatchSampler(BatchSampler):
    """Batch sampler that skips the first batches of another one without loading their samples.

    Args:
        batches: the other batch sampler.
        skipped: number of batches to skip.
    """

    def __init__(self, batches: Any, skipped: int) -> None:
        self.batches = batches
        self.skipped = skipped

    def __len__(self) -> int:
        return max(len(self.batches) - self.skipped, 0)

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(self.batches, self.skipped, None)


def samples_in_epoch(dataset: Any, batch_sampler: Any) -> int:
    """Return the number of samples that all processes read in an epoch.

    Args:
        dataset: the dataset; a custom batch sampler is assumed to yield all of its samples.
        batch_sampler: its batch sampler, sharded or not, whose sampler may select some of them, or
            repeat them.
    """
    batches = getattr(batch_sampler, "batch_sampler", batch_sampler)
    number = None
    if type(batches) is BatchSampler:
        number = length_or_none(batches.sampler)
    if number is None:
        return len(dataset)
    return number


def batch_size_of_rank(batch_size: int, world_size: int, split_batches: bool) -> int:
    """Return the number of samples that a process gets per round.

    Raises:
        ValueError: `split_batches` is set, but the batch size is not divisible.
    """
    if not split_batches:
        return batch_size
    if batch_size % world_size:
        raise ValueError(
            f"split_batches=True: batches of {batch_size} cannot be split evenly over {world_size} "
            f"processes. Choose a multiple of {world_size}."
        )
    return batch_size // world_size


def even_shares(items: list[Item], start: list[Item], shares: int) -> list[list[Item]]:
    """Split a list into parts of equal length, filling it up with `start` if needed."""
    # The quotient, rounded up.
    size = -(-len(items) // shares)
    missing = size * shares - len(items)
    filled = [*items, *itertools.islice(itertools.cycle(start), missing)]
    return [filled[index * size : (index + 1) * size] for index in range(shares)]


def options_of(loader: object) -> dict[str, Any]:
    """Return the arguments of a loader, except dataset and batching."""
    return {name: getattr(loader, name) for name in _LOADER_OPTIONS if hasattr(loader, name)}
