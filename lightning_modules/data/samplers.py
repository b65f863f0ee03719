"""Samplers that give every process the samples, and the order, that the reference gives it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, Sampler, get_worker_info

from ..common.collectives import from_first_process


class SeedableRandomSampler(RandomSampler):
    """As `accelerate.data_loader.SeedableRandomSampler`: the order depends on the seed and the epoch alone.

    Args:
        data_source: the dataset, anything with a length.
        seed: seed of epoch 0; epoch `e` is drawn with `seed + e`.
        replacement: draw with replacement.
        num_samples: number of draws, by default the length of the dataset.
    """

    def __init__(self, data_source: Sized, *, seed: int, replacement: bool = False, num_samples: int | None = None):
        super().__init__(data_source, replacement, num_samples, generator=torch.Generator())
        self.seed = seed
        self.epoch = 0

    @classmethod
    def like(cls, sampler: RandomSampler, seed: int) -> SeedableRandomSampler:
        """Return the seedable counterpart of a plain `RandomSampler`."""
        return cls(
            sampler.data_source,
            seed=seed,
            replacement=sampler.replacement,
            num_samples=sampler._num_samples,
        )

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch at the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        assert self.generator is not None
        self.generator.manual_seed(self.seed + self.epoch)
        return super().__iter__()


class SkippingBatchSampler(BatchSampler):
    """A batch sampler that can pass over its first batches, or rounds, once, at the next iteration."""

    skip = 0
    blanks = 0
    """Empty batches in front of the first one, once: so that it comes from the worker whose turn it is."""
    _iteration: _Peekable | None = None

    def peek(self) -> None:
        """Draw the first batch of the present iteration, which still hands it out: its order is drawn with it."""
        if self._iteration is not None:
            self._iteration.peek()

    def _take_skip(self) -> int:
        """Take it in the first step of an iteration: a DataLoader with workers makes two iterators, and uses one."""
        skip, self.skip = self.skip, 0
        return skip

    def _peekable(self, batches: Iterator[list[int]]) -> Iterator[list[int]]:
        self._iteration = _Peekable(batches)
        return self._iteration


class _Peekable(Iterator[list[int]]):
    def __init__(self, items: Iterator[list[int]]) -> None:
        self._items = items

    def peek(self) -> None:
        self._items = itertools.chain(list(itertools.islice(self._items, 1)), self._items)

    def __next__(self) -> list[int]:
        return next(self._items)


class ShardedBatchSampler(SkippingBatchSampler):
    """As `accelerate.data_loader.BatchSamplerShard`: a round of samples at a time is dealt out to the processes.

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
        super().__init__(sampler, batch_size, drop_last)
        self.rank = rank
        self.world_size = world_size
        self.even_batches = even_batches
        self.share = share_of(batch_size, world_size, split_batches)

    def __len__(self) -> int:
        rounds, rest = divmod(len(cast(Sized, self.sampler)), self.share * self.world_size)
        if rest == 0 or self.drop_last:
            return rounds
        return rounds + 1 if self.even_batches or self.rank * self.share < rest else rounds

    def __iter__(self) -> Iterator[list[int]]:
        batches = super().__iter__() if self.world_size == 1 else self._share()
        return self._peekable(self._after_skip(batches))

    def _after_skip(self, batches: Iterator[list[int]]) -> Iterator[list[int]]:
        blanks, self.blanks = self.blanks, 0
        yield from ([] for _ in range(blanks))
        yield from itertools.islice(batches, self._take_skip(), None)

    def _share(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        size = self.share * self.world_size
        start: list[int] = []
        while dealt := list(itertools.islice(indices, size)):
            start = start or dealt
            if len(dealt) < size and self.drop_last:
                return
            if self.even_batches:
                dealt += itertools.islice(itertools.cycle(start), size - len(dealt))
            if mine := dealt[self.rank * self.share : (self.rank + 1) * self.share]:
                yield mine


def share_of(batch_size: int, world_size: int, split_batches: bool) -> int:
    """Return samples that one process gets of a round.

    Raises:
        ValueError: a batch is to be split, and cannot be split evenly.
    """
    if not split_batches:
        return batch_size
    if batch_size % world_size:
        raise ValueError(
            f"split_batches=True deals each batch out to all processes, but a batch of {batch_size} cannot be split "
            f"evenly over {world_size} of them. Make the batch size a multiple of {world_size}, or leave split_batches "
            "out."
        )
    return batch_size // world_size


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
            dealt = list(itertools.islice(indices, size))
            start = start or dealt[: self.world_size]
            if not dealt or (len(dealt) < size and self.drop_last):
                return
            if number >= skip:
                yield from even_shares(dealt, start, self.world_size)


def even_shares(items: list[Any], start: list[Any], shares: int) -> list[list[Any]]:
    """Cut a list into equally long parts, filled up with `start` where that is not possible."""
    share = -(-len(items) // shares)
    items = [*items, *itertools.islice(itertools.cycle(start), share * shares - len(items))]
    return [items[index * share : (index + 1) * share] for index in range(shares)]


class IterableShard(IterableDataset):
    """This process's share of a stream: every process reads all of it and keeps its part of each round.

    The stream must be the same on every process: either it has `set_epoch`, or an attribute `generator` (a
    `torch.Generator`), which is seeded with the epoch; the documents of the reference ask for the same. The last,
    shorter round is split evenly, filled up with the first samples of the stream, as the reference does it where its
    first process reads for all; with `fill_round` it is filled up to a whole one, as where each reads for itself.

    Args:
        dataset: the stream.
        batch_size: samples per process and step; with `split_batches`, of all processes together.
        rank: index of this process.
        world_size: number of processes.
        drop_last: leave out the last, shorter round.
        split_batches: a round is one batch, of which every process gets a part.
        fill_round: make the last round as long as all others.

    Attributes:
        last_round: samples in the round before its filling, also where a worker process reads; -1 before the first,
            and with several workers, each of which has a last round of its own.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        rank: int,
        world_size: int,
        drop_last: bool = False,
        split_batches: bool = False,
        fill_round: bool = False,
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.drop_last = drop_last
        self.share = share_of(batch_size, world_size, split_batches)
        self.fill_round = fill_round
        self.epoch = 0
        self._last_round = torch.tensor(-1).share_memory_()  # a worker writes it, its parent reads it

    @property
    def last_round(self) -> int:
        """See the class."""
        return int(self._last_round)

    def set_epoch(self, epoch: int) -> None:
        """Tell the stream which epoch comes next."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        rounds, rest = divmod(len(self.dataset), self.share * self.world_size)
        if self.drop_last or rest == 0:
            return rounds * self.share
        return rounds * self.share + (self.share if self.fill_round else -(-rest // self.world_size))

    def __iter__(self) -> Iterator[Any]:
        self._seed_generator()
        size = self.share * self.world_size
        start: list[Any] = []
        workers = get_worker_info()
        alone = workers is None or workers.num_workers == 1
        stream = iter(self.dataset)
        while chunk := list(itertools.islice(stream, size)):
            start = start or chunk
            self._last_round.fill_(len(chunk) if alone else -1)
            if len(chunk) < size and self.drop_last:
                return
            if self.fill_round:
                chunk += itertools.islice(itertools.cycle(start), size - len(chunk))
            yield from even_shares(chunk, start[: self.world_size], self.world_size)[self.rank]

    def _seed_generator(self) -> None:
        generator = getattr(self.dataset, "generator", None)
        if not hasattr(self.dataset, "set_epoch") and isinstance(generator, torch.Generator):
            generator.manual_seed(self.epoch)


class SharedOrderSampler(Sampler[int]):
    """The order that process 0 draws from a sampler, on every process, whatever their generators are.

    Each process moves its own generator on as if it were alone. All processes have to iterate together.

    Args:
        sampler: has an attribute `generator`, one on the CPU; None stands for torch's global one.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._began: torch.Tensor | None = None

    @property
    def seed(self) -> torch.Tensor | None:
        """Where the sampler's own generator stood when the iteration began; None if it draws from the global one.

        Set before an iteration, it gives the order of that one again.
        """
        own = self.sampler.generator
        if own is None:
            return None
        return own.get_state() if self._began is None else self._began

    @seed.setter
    def seed(self, state: torch.Tensor) -> None:
        self.sampler.generator.set_state(state)

    @property
    def next_seed(self) -> torch.Tensor | None:
        """The `seed` of an iteration that would begin now."""
        own = self.sampler.generator
        return None if own is None else own.get_state()

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        own = self.sampler.generator
        state = torch.get_rng_state() if own is None else own.get_state()
        agreed = from_first_process(state)
        self._began = None if own is None else state
        order = list(self.sampler)
        if not torch.equal(state, agreed):
            self.sampler.generator = torch.Generator()
            self.sampler.generator.set_state(agreed)
            order = list(self.sampler)
            self.sampler.generator = own
        return iter(order)
