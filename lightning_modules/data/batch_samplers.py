"""Batch samplers that somebody else wrote, dealt out to the processes; and what a loader was made with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from .samplers import SkippingBatchSampler, share_of


class GivenBatchSampler(SkippingBatchSampler):
    """As `accelerate.data_loader.BatchSamplerShard`: batches of another sampler, a round of them at a time.

    Unlike there, a short batch in the middle of an epoch, which samplers over several datasets give, is dealt out as it
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
            raise ValueError(
                f"split_batches=True deals each batch out to all processes, but {type(given).__name__} does not say "
                "how many samples there are in one. Give it a batch_size, or leave split_batches out."
            )
        self.share = None if self.batch_size is None else share_of(self.batch_size, world_size, split_batches)

    @property
    def sampler(self) -> Any:  # BatchSampler has an attribute
        """That of the given one."""
        return getattr(self.given, "sampler", None)

    @sampler.setter
    def sampler(self, value: Any) -> None:
        self.given.sampler = value

    def set_epoch(self, epoch: int) -> None:
        """Tell the given sampler, where it wants to know; its own `sampler` is told by the loader."""
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
        return self._peekable(self._after_skip())

    def _after_skip(self) -> Iterator[list[int]]:
        blanks, self.blanks = self.blanks, 0
        yield from ([] for _ in range(blanks))
        if self.world_size == 1:
            yield from itertools.islice(self.given, self._take_skip(), None)
            return
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


def options_of(loader: DataLoader) -> dict[str, Any]:
    """Return what a loader was made with, but for its dataset and its batches."""
    names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
    names += ("generator", "prefetch_factor", "persistent_workers", "in_order")
    return {name: getattr(loader, name) for name in names if hasattr(loader, name)}


def has_batches(loader: DataLoader) -> bool:
    """Tell whether a loader makes batches, which can be dealt out; one of `batch_size=None` hands out what it reads."""
    return loader.batch_size is not None or loader.batch_sampler is not None


def iterates_as_torch(loader: DataLoader) -> bool:
    """Tell whether nothing is lost of a loader that is made anew: no iteration, and no state, of its own."""
    return type(loader).__iter__ is DataLoader.__iter__ and not hasattr(loader, "state_dict")
