"""Build the loader of a dataset: in order, shuffled, sharded over processes, or after its first batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from ..common.libraries import is_instance
from .batch_samplers import BatchesAfter, ShardedBatchSampler, options_of, share_of
from .dispatch import DispatchLoader
from .epoch_loader import EpochLoader
from .iteration import iterate
from .length_grouping import LengthGroupedSampler
from .rebalancing import BatchRebalanceSampler
from .samplers import IterableShard, SeedableRandomSampler, SharedOrderSampler
from .token_budget import TokenBudgetSampler


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
    copies: int = 1,
    even_batches: bool = True,
    split_batches: bool = False,
    dispatch_batches: bool | None = None,
    **kwargs: Any,
) -> EpochLoader:
    """As `Accelerator.prepare(DataLoader(...))`, in one step.

    Args:
        dataset: map-style or iterable dataset.
        batch_size: samples per process and step; with `split_batches`, of all processes together.
        collate_fn: list of samples -> batch.
        sampler: order of the samples; in sequence by default. A plain `RandomSampler` is made to depend on `seed` and
            the epoch alone; a `BatchRebalanceSampler` or `TokenBudgetSampler` gives the batches of this process.
        seed: seed of the data order, by default the seed that torch was given last.
        seedable: False leaves a `RandomSampler` as it is; its order then depends on torch's global generator.
        drop_last: leave out the last, incomplete round.
        rank: index of this process.
        world_size: number of processes.
        copies: how many of them, of numbers that follow one another, get the same batches.
        even_batches: give every process equally many samples, repeating some from the start.
        split_batches: split the samples of one batch over all processes.
        dispatch_batches: let process 0 read the data and send it to the others. None lets each process read its own
            and shards streams as if process 0 had read them, which it does if several workers read one; False fills up
            the last round of a stream to a whole one, and gives each process its own files of a
            `datasets.IterableDataset` that has enough of them.
        kwargs: further arguments of `torch.utils.data.DataLoader` (workers, pinning, ...).

    Raises:
        ValueError: `split_batches`, and the batch size is no multiple of the number of processes.
    """
    sharding = _Sharding(batch_size, drop_last, rank, world_size, copies, even_batches, split_batches, dispatch_batches)
    common = {"collate_fn": collate_fn, "drops_last": drop_last, **kwargs}
    if isinstance(dataset, IterableDataset):
        if dispatch_batches is None and kwargs.get("num_workers", 0) > 1:
            # Batches of the workers alternate, and each ends at its own time: only one process can order them.
            sharding = replace(sharding, dispatch_batches=True)
        stream = sharding.stream(dataset)
        files = sharding.world_size if sharding.shares_files(dataset) else 1
        return sharding.loader(
            stream, batch_size=sharding.share, total=None, drop_last=drop_last, files=files, **common
        )
    if isinstance(sampler, (BatchRebalanceSampler, TokenBudgetSampler)):  # gives the batches of this process only
        return sharding.loader(dataset, batch_sampler=sampler, total=len(dataset), **common)
    ordered = SequentialSampler(dataset) if sampler is None else sampler
    batches = sharding.batches(_seeded(ordered, seed, seedable, 1 if sharding.dispatched else world_size))
    return sharding.loader(dataset, batch_sampler=batches, total=len(dataset), **common)


def rebuild_loader(
    loader: DataLoader,
    *,
    seed: int | None = None,
    seedable: bool = True,
    rank: int = 0,
    world_size: int = 1,
    copies: int = 1,
    even_batches: bool = True,
    split_batches: bool = False,
    dispatch_batches: bool | None = None,
) -> EpochLoader:
    """As `Accelerator.prepare(loader)`: shard a loader of torch as `build_loader` does.

    Args:
        loader: makes batches, of a batch size or by a batch sampler; it is not changed, but for a `RandomSampler` in a
            custom batch sampler.
        seed: see `build_loader`, as is the rest.
        seedable: see there.
        rank: see there.
        world_size: see there.
        copies: see there.
        even_batches: see there.
        split_batches: see there.
        dispatch_batches: see there.

    Raises:
        ValueError: `split_batches`, and the batches cannot be split evenly.
    """
    dataset, options = loader.dataset, options_of(loader)
    ways: dict[str, Any] = {"even_batches": even_batches, "split_batches": split_batches}
    stream = isinstance(dataset, IterableDataset)
    if stream or type(loader.batch_sampler) is BatchSampler:
        of: Any = loader if stream else loader.batch_sampler
        ways |= {"seed": seed, "seedable": seedable, "rank": rank, "dispatch_batches": dispatch_batches}
        ways |= {"world_size": world_size, "copies": copies}
        ways |= {"batch_size": of.batch_size, "drop_last": of.drop_last, "sampler": None if stream else of.sampler}
        return build_loader(dataset, **ways, **options)
    dispatched = bool(dispatch_batches) and world_size > 1
    shares = world_size // copies
    batches = ShardedBatchSampler(
        loader.batch_sampler, rank=None if dispatched else rank // copies, world_size=shares, **ways
    )
    if isinstance(batches.sampler, RandomSampler) and seedable:
        batches.sampler = _seeded(batches.sampler, seed, seedable, world_size)
    share = batches.share
    # Without a batch size the padding of the last batch is unknown, so that nothing can be cut off.
    options |= {"batch_sampler": batches, "drops_last": batches.drop_last or share is None}
    options |= {
        "total": None if share is None else len(cast(Sized, dataset)),
        "samples_per_round": (share or 1) * shares,
    }
    if dispatched:
        return DispatchLoader(dataset, rank=rank, world_size=world_size, copies=copies, **options)
    return EpochLoader(dataset, **options)


@dataclass(frozen=True)
class _Sharding:
    """Assignment of samples to processes; see `build_loader`."""

    batch_size: int
    drop_last: bool
    process: int
    processes: int
    copies: int
    even_batches: bool
    split_batches: bool
    dispatch_batches: bool | None

    @property
    def rank(self) -> int:
        """Return the index of this process's share."""
        return self.process // self.copies

    @property
    def world_size(self) -> int:
        """Return the number of shares."""
        return self.processes // self.copies

    @property
    def share(self) -> int:
        """Return the number of samples of one process in one step."""
        return share_of(self.batch_size, self.world_size, self.split_batches)

    @property
    def dispatched(self) -> bool:
        """Return whether process 0 reads for the others."""
        return bool(self.dispatch_batches) and self.processes > 1

    def loader(self, dataset: Any, **kwargs: Any) -> EpochLoader:
        """Return the loader of a dataset that is already sharded, or read by process 0 only."""
        kwargs["samples_per_round"] = self.share * self.world_size
        if self.dispatched:
            ways = {"rank": self.process, "world_size": self.processes, "copies": self.copies}
            return DispatchLoader(dataset, **ways, **kwargs)
        return EpochLoader(dataset, **kwargs)

    def shares_files(self, dataset: Any) -> bool:
        """Return whether each process reads files of its own of a stream."""
        alone = self.dispatch_batches is False and not self.split_batches
        return alone and self.world_size > 1 and _files(dataset) >= self.world_size

    def stream(self, dataset: Any) -> Any:
        """Return this process's part of a stream."""
        if self.world_size == 1 or self.dispatched:
            return dataset
        alone = self.dispatch_batches is False
        if self.shares_files(dataset):
            return dataset.shard(num_shards=self.world_size, index=self.rank)
        return IterableShard(
            dataset,
            self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
            split_batches=self.split_batches,
            fill_round=alone,
        )

    def batches(self, sampler: Any) -> BatchSampler:
        """Return the batch sampler of this process for a map-style dataset."""
        return ShardedBatchSampler(
            sampler,
            self.batch_size,
            self.drop_last,
            rank=None if self.dispatched else self.rank,
            world_size=self.world_size,
            even_batches=self.even_batches,
            split_batches=self.split_batches,
        )


def _seeded(sampler: Any, seed: int | None, seedable: bool, world_size: int) -> Any:
    """Return a sampler that has the same order in all processes."""
    if isinstance(sampler, SeedableRandomSampler):
        return sampler
    if isinstance(sampler, RandomSampler):
        if seedable:
            return SeedableRandomSampler.like(sampler, torch.initial_seed() if seed is None else seed)
        if world_size > 1 and sampler.generator is None:
            sampler.generator = torch.Generator().manual_seed(
                int(torch.empty((), dtype=torch.int64, device="cpu").random_())
            )
    if world_size > 1 and isinstance(sampler, (RandomSampler, LengthGroupedSampler)):
        return SharedOrderSampler(sampler)
    return sampler


def _files(dataset: Any) -> int:
    """Return the number of files of a `datasets.IterableDataset`; 0 for other streams."""
    if not is_instance(dataset, "datasets", "IterableDataset"):
        return 0
    return dataset.num_shards if hasattr(dataset, "num_shards") else dataset.n_shards


def loader_after(loader: Any, batches: int) -> Any:
    """As `accelerate.skip_first_batches`: skip the first batches of each iteration.

    Unlike there, a prepared loader and the result share their count of epochs, so that the next pass over the loader
    has the order of the next epoch.

    Args:
        loader: one of torch's, prepared or not. Batches of a map-style dataset are not even read.
        batches: how many, of this process.

    Raises:
        ValueError: there is no such number of batches.
    """
    if batches < 0:
        raise ValueError(f"num_batches={batches} must be 0 or more.")
    indexed = type(loader) is DataLoader and loader.batch_sampler is not None
    if indexed and not isinstance(loader.dataset, IterableDataset):
        return DataLoader(
            loader.dataset, batch_sampler=BatchesAfter(loader.batch_sampler, batches), **options_of(loader)
        )
    return LoaderAfter(loader, batches)


class LoaderAfter:
    """Loader without the first batches of another one; all other attributes are those of that loader.

    Args:
        loader: the loader.
        skipped: how many are left out.
    """

    def __init__(self, loader: Any, skipped: int) -> None:
        self.loader = loader
        self.skipped = skipped

    def __getattr__(self, name: str) -> Any:
        if name == "loader" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return max(len(self.loader) - self.skipped, 0)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.loader, EpochLoader):
            self.loader.skip(self.skipped)
            yield from self.loader
        else:
            yield from itertools.islice(iterate(self.loader), self.skipped, None)
