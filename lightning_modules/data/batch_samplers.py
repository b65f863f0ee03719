"""The batch sampler that shards batches over processes, as the reference does, and the options
of a loader.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader


@contextlib.contextmanager
def rounds_filled(samplers: Iterable[Any], even_batches: bool = True) -> Iterator[None]:
    """Set `even_batches` of batch samplers in the block: whether their last round is filled up.

    Args:
        samplers: those without such an attribute are left alone.
        even_batches: the value.
    """
    before = [
        (sampler, sampler.even_batches) for sampler in samplers if hasattr(sampler, "even_batches")
    ]
    for sampler, _ in before:
        sampler.even_batches = even_batches
    try:
        yield
    finally:
        for sampler, value in before:
            sampler.even_batches = value


class ShardedBatchSampler(BatchSampler):
    """As `accelerate.data_loader.BatchSamplerShard`: the batches of this process, of a round of
    them at a time.

    With `even_batches` the last round is filled up from the first one, so that every process gets
    the same number of equally long batches. Unlike there, a short batch in the middle of an epoch,
    which samplers over several datasets give, is sharded as it is: only the last round is filled
    up.

    Args:
        sampler: gives the indices, or without `batch_size` the batches, of one epoch, the same on
            every process.
        batch_size: samples per process and step; with `split_batches`, of all processes together.
            None where `sampler` gives batches.
        drop_last: leave out what does not fill a whole round; of given batches as they say.
        rank: index of this process. None for the batches of all processes in turn, as one process
            reads them for all: the samples of the last round are then shared out evenly, and filled
            up to equal parts.
        world_size: number of processes.
        even_batches: fill up the last round instead of giving some processes less.
        split_batches: a round is one batch, of which every process gets a part.

    Attributes:
        given: the batch sampler whose batches are shared out.
        share: samples of one process in a round; None if batches of other batch samplers do not
            tell their size.
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
        given: Any = sampler
        if batch_size is not None:
            given = BatchSampler(sampler, batch_size, drop_last)
        self.given = given
        self.rank = rank
        self.world_size = world_size
        self.even_batches = even_batches
        self.split_batches = split_batches
        self.batch_size: Any = getattr(given, "batch_size", None)
        self.drop_last = bool(getattr(given, "drop_last", False))
        if split_batches and world_size > 1 and self.batch_size is None:
            raise ValueError(
                f"split_batches=True needs a batch_size, which {type(given).__name__} does not "
                "have."
            )
        self.share = None
        if self.batch_size is not None:
            self.share = share_of(self.batch_size, world_size, split_batches)

    @property
    def sampler(self) -> Any:  # BatchSampler has an attribute
        """Return the sampler of the given batch sampler."""
        return getattr(self.given, "sampler", None)

    @sampler.setter
    def sampler(self, value: Any) -> None:
        self.given.sampler = value

    def set_epoch(self, epoch: int) -> None:
        """Call `set_epoch` of the given batch sampler if it has one; the loader calls that of
        its `sampler`.
        """
        if hasattr(self.given, "set_epoch"):
            self.given.set_epoch(epoch)

    def __len__(self) -> int:
        """Count the batches of this process in an epoch."""
        batches = len(self.given)
        if self.world_size == 1:
            return batches
        if self.split_batches:
            return self._split_batches_of_rank(batches)

        rounds, rest = divmod(batches, self.world_size)
        if rest == 0 or self.drop_last:
            last = 0
        elif self.rank is None or self.even_batches or self.rank < rest:
            last = 1
        else:
            last = 0
        return (rounds + last) * self._batches_in_round

    @property
    def _batches_in_round(self) -> int:
        return self.world_size if self.rank is None else 1

    def _split_batches_of_rank(self, batches: int) -> int:
        """Return the parts of split batches; of the last, shorter one some processes may get
        nothing.
        """
        if self.rank is None or self.even_batches or self.sampler is None:
            return batches * self._batches_in_round
        last = len(self.sampler) - (batches - 1) * self.batch_size
        return batches - (last <= self.rank * (self.share or 1))

    def __iter__(self) -> Iterator[list[int]]:
        if self.world_size == 1:
            return iter(self.given)
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        for round_ in self._rounds():
            if self.rank is None:
                yield from round_
            elif len(round_) > self.rank and round_[self.rank]:
                yield round_[self.rank]

    def _rounds(self) -> Iterator[list[list[int]]]:
        """Yield the batches of all processes for each round."""
        batches = iter(self.given)
        each = 1 if self.split_batches else self.world_size
        upcoming = [list(batch) for batch in itertools.islice(batches, each)]
        first = upcoming
        while upcoming:
            current = upcoming
            upcoming = [list(batch) for batch in itertools.islice(batches, each)]
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
        if not self.even_batches and self.rank is not None:
            return self._cut(batches[0]) if self.split_batches else batches
        if self.share is None:
            missing = self.world_size - len(batches)
            return [*batches, *itertools.islice(itertools.cycle(first), missing)]

        samples = list(itertools.chain.from_iterable(batches))
        start = list(itertools.chain.from_iterable(first))
        if self.rank is None:
            return even_shares(samples, start[: self.world_size], self.world_size)
        missing = self.share * self.world_size - len(samples)
        return self._cut([*samples, *itertools.islice(itertools.cycle(start), missing)])

    def _cut(self, batch: list[int]) -> list[list[int]]:
        """Return the samples of one batch, a share for each process."""
        share = self.share or 1
        return [batch[index * share : (index + 1) * share] for index in range(self.world_size)]


class BatchesAfter(BatchSampler):
    """Batch sampler without the first batches of another one, none of whose samples is loaded.

    Args:
        batches: the sampler. Where it has a method `batches_from`, that gives the batches from a
            number on.
        skipped: how many are left out.
    """

    def __init__(self, batches: Any, skipped: int) -> None:
        self.batches = batches
        self.skipped = skipped

    def __len__(self) -> int:
        return max(len(self.batches) - self.skipped, 0)

    def __iter__(self) -> Iterator[list[int]]:
        if hasattr(self.batches, "batches_from"):
            return self.batches.batches_from(self.skipped)
        return itertools.islice(self.batches, self.skipped, None)


def share_of(batch_size: int, world_size: int, split_batches: bool) -> int:
    """Return samples that one process gets of a round.

    Raises:
        ValueError: a batch is to be split, and cannot be split evenly.
    """
    if not split_batches:
        return batch_size
    if batch_size % world_size:
        raise ValueError(
            f"split_batches=True: batches of {batch_size} do not split evenly over {world_size} "
            "processes."
        )
    return batch_size // world_size


def even_shares(items: list[Any], start: list[Any], shares: int) -> list[list[Any]]:
    """Cut a list into equally long parts, filled up with `start` where that is not possible."""
    share = -(-len(items) // shares)
    items = [*items, *itertools.islice(itertools.cycle(start), share * shares - len(items))]
    return [items[index * share : (index + 1) * share] for index in range(shares)]


def options_of(loader: DataLoader) -> dict[str, Any]:
    """Return the arguments a loader was made with, except dataset and batching."""
    names = (
        "num_workers",
        "collate_fn",
        "pin_memory",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
    )
    names += ("generator", "prefetch_factor", "persistent_workers", "in_order")
    return {name: getattr(loader, name) for name in names if hasattr(loader, name)}


def has_batches(loader: DataLoader) -> bool:
    """Return whether a loader makes batches, which can be sharded; with `batch_size=None` it
    does not.
    """
    return loader.batch_size is not None or loader.batch_sampler is not None


def iterates_as_torch(loader: DataLoader) -> bool:
    """Return whether a loader can be rebuilt without loss: it overrides no iteration and has no
    state.
    """
    return type(loader).__iter__ is DataLoader.__iter__ and not hasattr(loader, "state_dict")
