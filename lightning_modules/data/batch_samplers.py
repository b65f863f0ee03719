"""Batch samplers that shard batches over processes, as the reference does, and the options of a loader."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any, cast

import numpy as np
from torch.utils.data import BatchSampler, DataLoader, Sampler

from .order import CHUNK, order_of


@contextlib.contextmanager
def rounds_filled(samplers: Iterable[Any], even_batches: bool = True) -> Iterator[None]:
    """Set `even_batches` of batch samplers in the block: whether their last round is filled up.

    Args:
        samplers: those without such an attribute are left alone.
        even_batches: the value.
    """
    before = [(sampler, sampler.even_batches) for sampler in samplers if hasattr(sampler, "even_batches")]
    for sampler, _ in before:
        sampler.even_batches = even_batches
    try:
        yield
    finally:
        for sampler, value in before:
            sampler.even_batches = value


class SkippingBatchSampler(BatchSampler):
    """Batch sampler that can skip its first batches, or rounds, once, at the next iteration."""

    skip = 0
    blanks = 0
    """Number of empty batches before the first one, once, so that the right worker produces the first one."""

    _batches: Iterator[list[int]] | None = None

    def peek(self) -> None:
        """Draw the first batch of an iteration that has not begun, and with it its order; it is still yielded."""
        if self._batches is not None:  # with dispatch_batches only process 0 iterates
            self._ahead += itertools.islice(self._batches, 1)

    def _take_skip(self) -> int:
        """Return `skip` and reset it, once iteration has begun: a DataLoader with workers makes two iterators."""
        skip, self.skip = self.skip, 0
        return skip

    def _peekable(self, batches: Iterator[list[int]]) -> Iterator[list[int]]:
        self._ahead: list[list[int]] = []
        self._batches = batches
        return itertools.chain(self._ahead, batches)


class GivenBatchSampler(SkippingBatchSampler):
    """As `accelerate.data_loader.BatchSamplerShard`: batches of another sampler, a round of them at a time.

    Unlike there, a short batch in the middle of an epoch, which samplers over several datasets give, is sharded as it
    is: only the last round is filled up.

    Args:
        given: gives the batches of one epoch, the same on every process.
        rank: index of this process; None for the batches of all processes in turn.
        world_size: number of processes.
        even_batches: fill up the last round from the first one, instead of giving some processes less.
        split_batches: a round is one batch, of which every process gets a part.
    """

    def __init__(
        self, given: Any, *, rank: int | None, world_size: int, even_batches: bool = True, split_batches: bool = False
    ) -> None:
        self.given = given
        self.rank = rank
        self.world_size = world_size
        self.even_batches = even_batches
        self.split_batches = split_batches
        self.batch_size: Any = getattr(given, "batch_size", None)
        self.drop_last = bool(getattr(given, "drop_last", False))
        if split_batches and world_size > 1 and self.batch_size is None:
            raise ValueError(f"split_batches=True needs a batch_size, which {type(given).__name__} does not have.")
        self.share = None if self.batch_size is None else share_of(self.batch_size, world_size, split_batches)

    @property
    def sampler(self) -> Any:  # BatchSampler has an attribute
        """Return the sampler of the given batch sampler."""
        return getattr(self.given, "sampler", None)

    @sampler.setter
    def sampler(self, value: Any) -> None:
        self.given.sampler = value

    def set_epoch(self, epoch: int) -> None:
        """Call `set_epoch` of the given batch sampler if it has one; the loader calls that of its `sampler`."""
        if hasattr(self.given, "set_epoch"):
            self.given.set_epoch(epoch)

    def __len__(self) -> int:
        batches = len(self.given)
        if self.world_size == 1:
            return batches
        each = 1 if self.split_batches else self.world_size
        rounds, rest = divmod(batches, each)
        if self.rank is None:
            return (rounds + bool(rest and not self.drop_last)) * self.world_size
        filled = rest and not self.drop_last and (self.even_batches or self.rank < rest)
        return rounds + bool(filled)

    def __iter__(self) -> Iterator[list[int]]:
        return self._peekable(itertools.chain.from_iterable(self._after_skip()))

    def _after_skip(self) -> Iterator[Iterable[list[int]]]:
        """Yield the blanks and the batches, each as one iterator, once the first batch is asked for."""
        blanks, self.blanks = self.blanks, 0
        yield ([] for _ in range(blanks))
        yield itertools.islice(self.given, self._take_skip(), None) if self.world_size == 1 else self._of_rank()

    def _of_rank(self) -> Iterator[list[int]]:
        for round_ in itertools.islice(self._rounds(), self._take_skip(), None):
            if self.rank is None:
                yield from round_
            elif len(round_) > self.rank and round_[self.rank]:
                yield round_[self.rank]

    def _rounds(self) -> Iterator[list[list[int]]]:
        batches = iter(self.given)
        each = 1 if self.split_batches else self.world_size
        upcoming = first = [list(batch) for batch in itertools.islice(batches, each)]
        while upcoming:
            current, upcoming = upcoming, [list(batch) for batch in itertools.islice(batches, each)]
            if upcoming or self._is_full(current):
                yield self._cut(current[0]) if self.split_batches else current
            elif not self.drop_last:
                yield self._last(current, first)

    def _is_full(self, batches: list[list[int]]) -> bool:
        if self.split_batches:
            return len(batches[0]) == self.batch_size
        return len(batches) == self.world_size and self.batch_size in (None, len(batches[-1]))

    def _last(self, batches: list[list[int]], first: list[list[int]]) -> list[list[int]]:
        """Return the last round, which is a short one."""
        if not self.even_batches:
            return self._cut(batches[0]) if self.split_batches else batches
        filled = itertools.chain(batches, itertools.cycle(first))
        if self.share is None:
            return list(itertools.islice(filled, self.world_size))
        return self._cut(list(itertools.islice(itertools.chain.from_iterable(filled), self.share * self.world_size)))

    def _cut(self, batch: list[int]) -> list[list[int]]:
        """Return the samples of one batch, a share for each process."""
        share = self.share or 1
        return [batch[index * share : (index + 1) * share] for index in range(self.world_size)]


class ShardedBatchSampler(GivenBatchSampler):
    """As `accelerate.data_loader.BatchSamplerShard`: a round of samples at a time is sharded over the processes.

    With `even_batches` the last round is filled up with samples from the start of the epoch, so that every process
    gets the same number of equally long batches. With one process it is an ordinary batch sampler.
    `skip` batches are passed over once, at the next iteration, without a single sample being loaded.

    Args:
        sampler: gives the indices of one epoch, the same on every process.
        batch_size: samples per process and step; with `split_batches`, of all processes together.
        drop_last: leave out what does not fill a whole round.
        rank: index of this process.
        world_size: number of processes.
        even_batches: fill up the last round instead of giving some processes less.
        split_batches: a round is one batch, of which every process gets a part.
    """

    def __init__(
        self,
        sampler: Sampler[int],
        batch_size: int,
        drop_last: bool,
        *,
        rank: int = 0,
        world_size: int = 1,
        even_batches: bool = True,
        split_batches: bool = False,
    ) -> None:
        ways: dict[str, Any] = {"even_batches": even_batches, "split_batches": split_batches}
        super().__init__(BatchSampler(sampler, batch_size, drop_last), rank=rank, world_size=world_size, **ways)

    def __len__(self) -> int:
        share, rank = self.share, self.rank
        assert share is not None, "a batch sampler of torch has a batch size"
        assert rank is not None, "one process has its share"
        rounds, rest = divmod(len(cast(Sized, self.sampler)), share * self.world_size)
        if rest == 0 or self.drop_last:
            return rounds
        return rounds + 1 if self.even_batches or rank * share < rest else rounds

    def _after_skip(self) -> Iterator[Iterable[list[int]]]:
        """Yield the batches of this process, those of a chunk at a time; no other's are read from the order."""
        order = order_of(self.sampler)
        if order is None:
            yield from super()._after_skip()
            return
        blanks = self.blanks
        self.blanks = 0
        yield ([] for _ in range(blanks))

        # Whole rounds, and the samples that are left after them.
        share = self.share or 1
        size = share * self.world_size
        rounds = len(order) // size
        of_rank = order[: rounds * size].reshape(rounds, self.world_size, share)[:, self.rank or 0]
        last = order[rounds * size :]

        skip = self._take_skip()
        rounds_at_once = max(CHUNK // size, 1)
        for start in range(skip, rounds, rounds_at_once):
            yield map(np.ndarray.tolist, of_rank[start : start + rounds_at_once])
        if len(last) > 0 and not self.drop_last and skip <= rounds:
            yield self._last_batch(last, order[:size])

    def _last_batch(self, last: np.ndarray, first: np.ndarray) -> Iterator[list[int]]:
        """Yield the part of this process of a last, shorter round, filled up from the first one; nothing if empty."""
        share, rank = self.share or 1, self.rank or 0
        samples = itertools.chain(last.tolist(), itertools.cycle(first.tolist()))
        end = share * self.world_size if self.even_batches and self.world_size > 1 else len(last)
        if batch := list(itertools.islice(samples, rank * share, min((rank + 1) * share, end))):
            yield batch


class RoundBatchSampler(SkippingBatchSampler):
    """As the indices behind `accelerate.data_loader.DataLoaderDispatcher`: the batches of all processes, in turn.

    Where the last round is a shorter one, all processes get equally many of its samples, and what is missing for that
    is filled up with the first samples of the epoch. `skip` rounds are passed over once.

    Args:
        sampler: gives the indices of one epoch.
        batch_size: see `ShardedBatchSampler`, as is the rest.
        drop_last: see there.
        world_size: see there.
        split_batches: see there.
    """

    def __init__(
        self, sampler: Sampler[int], batch_size: int, drop_last: bool, *, world_size: int, split_batches: bool = False
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.world_size = world_size
        self.share = share_of(batch_size, world_size, split_batches)

    def __len__(self) -> int:
        rounds, rest = divmod(len(cast(Sized, self.sampler)), self.share * self.world_size)
        return (rounds + bool(rest and not self.drop_last)) * self.world_size

    def __iter__(self) -> Iterator[list[int]]:
        return self._peekable(self._rounds())

    def _rounds(self) -> Iterator[list[int]]:
        skip = self._take_skip()
        indices = iter(self.sampler)
        size = self.share * self.world_size
        start: list[int] = []
        for number in itertools.count():
            round_ = list(itertools.islice(indices, size))
            start = start or round_[: self.world_size]
            if not round_ or (len(round_) < size and self.drop_last):
                return
            if number >= skip:
                yield from even_shares(round_, start, self.world_size)


def share_of(batch_size: int, world_size: int, split_batches: bool) -> int:
    """Return samples that one process gets of a round.

    Raises:
        ValueError: a batch is to be split, and cannot be split evenly.
    """
    if not split_batches:
        return batch_size
    if batch_size % world_size:
        raise ValueError(
            f"split_batches=True: batches of {batch_size} do not split evenly over {world_size} processes."
        )
    return batch_size // world_size


def even_shares(items: list[Any], start: list[Any], shares: int) -> list[list[Any]]:
    """Cut a list into equally long parts, filled up with `start` where that is not possible."""
    share = -(-len(items) // shares)
    items = [*items, *itertools.islice(itertools.cycle(start), share * shares - len(items))]
    return [items[index * share : (index + 1) * share] for index in range(shares)]


def options_of(loader: DataLoader) -> dict[str, Any]:
    """Return the arguments a loader was made with, except dataset and batching."""
    names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
    names += ("generator", "prefetch_factor", "persistent_workers", "in_order")
    return {name: getattr(loader, name) for name in names if hasattr(loader, name)}


def has_batches(loader: DataLoader) -> bool:
    """Return whether a loader makes batches, which can be sharded; with `batch_size=None` it does not."""
    return loader.batch_size is not None or loader.batch_sampler is not None


def iterates_as_torch(loader: DataLoader) -> bool:
    """Return whether a loader can be rebuilt without loss: it overrides no iteration and has no state."""
    return type(loader).__iter__ is DataLoader.__iter__ and not hasattr(loader, "state_dict")
