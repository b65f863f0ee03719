"""Samplers that give every process the samples, and the order, that the reference gives it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, Sampler


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
        """The seedable counterpart of a plain `RandomSampler`."""
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


class ShardedBatchSampler(BatchSampler):
    """As `accelerate.data_loader.BatchSamplerShard`: whole batches dealt out to the processes in turn.

    With `even_batches` the last round is filled up with samples from the start of the epoch, so that every process
    gets the same number of equally long batches. With one process it is an ordinary batch sampler.
    `skip` batches are passed over once, at the next iteration, without a single sample being loaded.

    Args:
        sampler: gives the indices of one epoch, the same on every process.
        batch_size: samples per process and step.
        drop_last: leave out what does not fill a whole round.
        rank: index of this process.
        world_size: number of processes.
        even_batches: fill up the last round instead of giving some processes less.
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
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.rank = rank
        self.world_size = world_size
        self.even_batches = even_batches
        self.skip = 0

    def __len__(self) -> int:
        batches = super().__len__()
        rounds, rest = divmod(batches, self.world_size)
        if rest == 0 or self.drop_last:
            return rounds
        return rounds + 1 if self.even_batches or self.rank < rest else rounds

    def __iter__(self) -> Iterator[list[int]]:
        skip, self.skip = self.skip, 0
        batches = super().__iter__() if self.world_size == 1 else self._share()
        return itertools.islice(batches, skip, None)

    def _share(self) -> Iterator[list[int]]:
        start: list[int] = []
        dealt: list[list[int]] = []
        for batch in super().__iter__():
            if len(start) < self.world_size * self.batch_size:
                start += batch
            dealt.append(batch)
            if len(dealt) == self.world_size and len(batch) == self.batch_size:
                yield dealt[self.rank]
                dealt = []
        if dealt and not self.drop_last:
            yield from self._last_round(dealt, start)

    def _last_round(self, dealt: list[list[int]], start: list[int]) -> Iterator[list[int]]:
        if not self.even_batches:
            yield from dealt[self.rank : self.rank + 1]
            return
        indices = list(itertools.chain.from_iterable(dealt))
        missing = self.world_size * self.batch_size - len(indices)
        indices += itertools.islice(itertools.cycle(start), missing)
        yield indices[self.rank * self.batch_size : (self.rank + 1) * self.batch_size]


class IterableShard(IterableDataset):
    """This process's share of a stream: every process reads all of it and keeps its part of each round.

    The stream must be the same on every process: either it has `set_epoch`, or an attribute `generator` (a
    `torch.Generator`), which is seeded with the epoch; the documents of the reference ask for the same. The last,
    shorter round is split evenly, filled up with the first samples of the stream, as the reference does it.

    Args:
        dataset: the stream.
        batch_size: samples per process and step.
        rank: index of this process.
        world_size: number of processes.
        drop_last: leave out the last, shorter round.

    Attributes:
        last_round: samples in the round before its filling, -1 before the first; not known with worker processes.
    """

    def __init__(self, dataset: Any, batch_size: int, *, rank: int, world_size: int, drop_last: bool = False) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.drop_last = drop_last
        self.epoch = 0
        self.last_round = -1

    def set_epoch(self, epoch: int) -> None:
        """Tell the stream which epoch comes next."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        self._seed_generator()
        round_size = self.batch_size * self.world_size
        start: list[Any] = []
        stream = iter(self.dataset)
        while chunk := list(itertools.islice(stream, round_size)):
            start = start or chunk[: self.world_size]
            self.last_round = len(chunk)
            if len(chunk) == round_size:
                yield from chunk[self.rank * self.batch_size : (self.rank + 1) * self.batch_size]
            elif not self.drop_last:
                yield from self._last_round(chunk, start)

    def _last_round(self, chunk: list[Any], start: list[Any]) -> list[Any]:
        share = -(-len(chunk) // self.world_size)
        filler = itertools.islice(itertools.cycle(start), share * self.world_size - len(chunk))
        return [*chunk, *filler][self.rank * share : (self.rank + 1) * share]

    def _seed_generator(self) -> None:
        generator = getattr(self.dataset, "generator", None)
        if not hasattr(self.dataset, "set_epoch") and isinstance(generator, torch.Generator):
            generator.manual_seed(self.epoch)
