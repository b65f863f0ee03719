"""DataLoaders that know their epoch, their process's share, and when they are about to end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from .collect import find_batch_size
from .samplers import IterableShard, SeedableRandomSampler, ShardedBatchSampler


class EpochLoader(DataLoader):
    """As a `DataLoader` prepared by `accelerate`: seeded per epoch, sharded by process, one batch ahead.

    It fetches a batch before it hands out the one before. So `end_of_loader` is known while the last batch is being
    worked on, and random numbers drawn by a dataset fall where they fall in the reference.

    Args:
        dataset: map-style dataset, or an iterable one that already yields this process's share.
        total: number of samples over all processes, None for a stream.
        samples_per_round: samples that all processes take together in a step.
        drops_last: an incomplete last round is left out.
        kwargs: as for `torch.utils.data.DataLoader`.
    """

    def __init__(
        self, dataset: Any, *, total: int | None, samples_per_round: int, drops_last: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(dataset, **kwargs)
        self.epoch = 0
        self.skip_batches = 0
        self.end_of_loader = False
        self.total = total
        self.samples_per_round = samples_per_round
        self.drops_last = drops_last
        self._last_batch_size = -1

    @property
    def remainder(self) -> int:
        """Samples in the last, shorter round over all processes; 0 if it is a full one, -1 if unknown.

        For a stream it is known when the last batch has been handed out.
        """
        if self.drops_last:
            return -1
        if self.total is not None:
            return self.total % self.samples_per_round
        return getattr(self.dataset, "last_round", self._last_batch_size) if self.end_of_loader else -1

    def set_epoch(self, epoch: int) -> None:
        """Make the sampler, or the dataset, give the order of this epoch."""
        self.epoch = epoch
        for part in (getattr(self.batch_sampler, "sampler", None), self.dataset):
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)

    def skip(self, batches: int) -> None:
        """Pass over so many batches at the start of the next iteration; map-style datasets load none of them."""
        if isinstance(self.batch_sampler, ShardedBatchSampler):
            self.batch_sampler.skip = batches
        else:
            self.skip_batches = batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator is all that a loop needs
        self.set_epoch(self.epoch)
        self.end_of_loader = False
        skip, self.skip_batches = self.skip_batches, 0
        batches = itertools.islice(super().__iter__(), skip, None)
        nothing = object()
        current = next(batches, nothing)
        if current is nothing:
            return
        for upcoming in batches:
            yield current
            current = upcoming
        self.end_of_loader = True
        self._last_batch_size = find_batch_size(current) or -1
        yield current
        self.epoch += 1


def build_loader(
    dataset: Any,
    *,
    batch_size: int,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    sampler: Sampler[int] | BatchSampler | None = None,
    seed: int | None = None,
    seedable: bool = True,
    drop_last: bool = False,
    rank: int = 0,
    world_size: int = 1,
    even_batches: bool = True,
    **kwargs: Any,
) -> EpochLoader:
    """As `Accelerator.prepare(DataLoader(...))`, in one step.

    Args:
        dataset: map-style or iterable dataset.
        batch_size: samples per process and step.
        collate_fn: list of samples -> batch.
        sampler: order of the samples; in sequence by default. A plain `RandomSampler` is made to depend on `seed` and
            the epoch alone.
        seed: seed of the data order, by default the seed that torch was given last.
        seedable: False leaves a `RandomSampler` as it is; its order then depends on torch's global generator.
        drop_last: leave out the last, incomplete round.
        rank: index of this process.
        world_size: number of processes.
        even_batches: give every process equally many samples, repeating some from the start.
        kwargs: further arguments of `torch.utils.data.DataLoader` (workers, pinning, ...).
    """
    common = {"collate_fn": collate_fn, "samples_per_round": batch_size * world_size, **kwargs}
    if isinstance(dataset, IterableDataset):
        if world_size > 1:
            dataset = IterableShard(dataset, batch_size, rank=rank, world_size=world_size, drop_last=drop_last)
        common |= {"drop_last": drop_last, "drops_last": drop_last}
        return EpochLoader(dataset, batch_size=batch_size, total=None, **common)
    batch_sampler = ShardedBatchSampler(
        _seeded(SequentialSampler(dataset) if sampler is None else sampler, seed, seedable, world_size),
        batch_size,
        drop_last,
        rank=rank,
        world_size=world_size,
        even_batches=even_batches,
    )
    return EpochLoader(dataset, batch_sampler=batch_sampler, total=len(dataset), drops_last=drop_last, **common)


def _seeded(sampler: Any, seed: int | None, seedable: bool, world_size: int) -> Any:
    if not isinstance(sampler, RandomSampler) or isinstance(sampler, SeedableRandomSampler):
        return sampler
    if seedable:
        return SeedableRandomSampler.like(sampler, torch.initial_seed() if seed is None else seed)
    if world_size > 1 and sampler.generator is None:
        # Processes share the state of the global generator here, and have to agree on the order later on too.
        sampler.generator = torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
    return sampler
