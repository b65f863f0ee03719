"""Build loaders that shuffle, shard, and skip batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from ..common.libraries import is_instance
from .batch_samplers import (
    ShardedBatchSampler,
    SkipBatchSampler,
    batch_size_of_rank,
    options_of,
    samples_in_epoch,
)
from .dispatch import DispatchLoader
from .epoch_loader import EpochLoader
from .iteration import TorchLoader, iterate
from .length_grouping import LengthGroupedSampler
from .samplers import IterableShard, SeedableRandomSampler, SharedOrderSampler
from .token_budget import TokenBudgetSampler


def build_loader(
    dataset: Any,
    *,
    batch_size: int | None,
    collate_fn: Callable[[list[Any]], object] | None = None,
    sampler: Any = None,
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
    """Build a loader that is sharded over the processes, seeded, and can be resumed.

    Equivalent to `Accelerator.prepare(DataLoader(...))`.

    Args:
        dataset: a map-style or iterable dataset.
        batch_size: number of samples per batch and process; with `split_batches`, over all
            processes. None if `sampler` yields the batches of all processes.
        collate_fn: converts a list of samples to a batch.
        sampler: the order of the samples; sequential by default. A plain `RandomSampler` is
            replaced by one that only depends on `seed` and the epoch; a `TokenBudgetSampler` yields
            the batches of this process.
        seed: the seed of the order; by default torch's current initial seed.
        seedable: False to keep a `RandomSampler`, whose order depends on torch's global generator.
        drop_last: whether to drop an incomplete last round. If `sampler` yields batches, its
            attribute `drop_last` is used instead.
        rank: index of this process.
        world_size: number of processes.
        copies: number of consecutive processes that get the same batches.
        even_batches: whether to give all processes the same number of samples, by repeating samples
            from the start.
        split_batches: whether to split each batch over all processes.
        dispatch_batches: whether rank 0 reads the data and sends it to the others. With None each
            process reads its own data, and streams are sharded as if rank 0 had read them; if
            several workers read a stream, rank 0 does read it. With False the last round of a
            stream is filled up to a full one, and each process reads its own files of a
            `datasets.IterableDataset` if there are enough files.
        kwargs: further arguments of `torch.utils.data.DataLoader`, such as `num_workers`.

    Returns:
        The loader of this process.

    Raises:
        ValueError: `split_batches` is set, but the batch size is not divisible.
    """
    shards = world_size // copies
    is_stream = isinstance(dataset, IterableDataset)
    if is_stream and dispatch_batches is None and kwargs.get("num_workers", 0) > 1:
        # Batches of the workers alternate, and each worker ends at a different time, so only a
        # single process can define the order of the batches.
        dispatch_batches = True
    is_dispatched = bool(dispatch_batches) and world_size > 1
    # If rank 0 reads for all, it reads the batches of all shards.
    shard_rank = None
    if not is_dispatched:
        shard_rank = rank // copies

    options: dict[str, Any] = {"collate_fn": collate_fn, "drops_last": drop_last, **kwargs}
    if is_stream:
        # Stream: each process keeps its part of each round, or reads its own files.
        assert batch_size is not None, "a stream has no batch sampler"
        samples_per_rank = batch_size_of_rank(batch_size, shards, split_batches)
        options |= {"total": None, "batch_size": samples_per_rank, "drop_last": drop_last}

        stream = cast(Any, dataset)
        may_read_own_files = dispatch_batches is False and not split_batches
        if shard_rank is None or shards == 1:
            dataset = stream
        elif may_read_own_files and _number_of_files(stream) >= shards:
            dataset = stream.shard(num_shards=shards, index=shard_rank)
            options["files"] = shards
        else:
            dataset = IterableShard(
                stream,
                batch_size,
                rank=shard_rank,
                world_size=shards,
                drop_last=drop_last,
                split_batches=split_batches,
                fill_round=dispatch_batches is False,
            )
    elif isinstance(sampler, TokenBudgetSampler):
        # The sampler only yields the batches of this process.
        samples_per_rank = batch_size
        options |= {"total": None, "drops_last": True, "batch_sampler": sampler}
    else:
        # Map-style dataset: all processes draw the same order, and take their batches from it.
        if sampler is None:
            sampler = SequentialSampler(dataset)
        batch_sampler = ShardedBatchSampler(
            sampler,
            batch_size,
            drop_last,
            rank=shard_rank,
            world_size=shards,
            even_batches=even_batches,
            split_batches=split_batches,
        )
        inner_sampler = batch_sampler.sampler
        if batch_size is not None or (seedable and isinstance(inner_sampler, RandomSampler)):
            # If batches are dispatched, only rank 0 draws an order.
            readers = 1 if is_dispatched else world_size
            batch_sampler.sampler = _with_shared_order(inner_sampler, seed, seedable, readers)
        samples_per_rank = batch_sampler.samples_per_rank
        options |= {
            "total": samples_in_epoch(dataset, batch_sampler),
            "batch_sampler": batch_sampler,
            "drops_last": batch_sampler.drop_last,
        }
        if samples_per_rank is None:
            # The number of duplicates in the last batch is unknown, so they cannot be removed.
            options |= {"total": None, "drops_last": True}

    options["samples_per_round"] = (samples_per_rank or 1) * shards
    if is_dispatched:
        return DispatchLoader(dataset, rank=rank, world_size=world_size, copies=copies, **options)
    return EpochLoader(dataset, **options)


def rebuild_loader(loader: TorchLoader, **sharding: Any) -> EpochLoader:
    """Shard a torch loader like `build_loader`; equivalent to `Accelerator.prepare(loader)`.

    Args:
        loader: a loader with a batch size or a batch sampler. It is not modified, except for a
            `RandomSampler` in a custom batch sampler.
        sharding: the arguments of `build_loader` from `seed` to `dispatch_batches`, except
            `drop_last`.

    Raises:
        ValueError: `split_batches` is set, but the batch size is not divisible.
    """
    dataset = loader.dataset
    batch_sampler = loader.batch_sampler
    batching: dict[str, object] = {"batch_size": None, "sampler": batch_sampler}
    if isinstance(loader.dataset, IterableDataset):
        batching = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    # A subclass may form its batches differently, so only plain batch samplers are replaced.
    elif type(batch_sampler) is BatchSampler:
        batching = {
            "batch_size": batch_sampler.batch_size,
            "drop_last": batch_sampler.drop_last,
            "sampler": batch_sampler.sampler,
        }
    return build_loader(dataset, **batching, **sharding, **options_of(loader))


def _with_shared_order(sampler: object, seed: int | None, seedable: bool, readers: int) -> object:
    """Return a sampler with the same order on all processes that read.

    Args:
        sampler: the sampler of the samples.
        seed: the seed of the order; None for torch's current initial seed.
        seedable: whether to make the order of a `RandomSampler` depend only on the seed and the
            epoch.
        readers: number of processes that draw an order.
    """
    if isinstance(sampler, SeedableRandomSampler):
        return sampler
    if isinstance(sampler, RandomSampler) and seedable:
        if seed is None:
            seed = torch.initial_seed()
        return SeedableRandomSampler.like(sampler, seed)
    if readers == 1 or not isinstance(sampler, (RandomSampler, LengthGroupedSampler)):
        return sampler

    # As in accelerate, a sampler without a generator gets one, seeded from the global generator.
    if isinstance(sampler, RandomSampler) and getattr(sampler, "generator", None) is None:
        seed_tensor = torch.empty((), dtype=torch.int64, device="cpu").random_()
        sampler.generator = torch.Generator().manual_seed(int(seed_tensor.item()))
    return SharedOrderSampler(sampler)


def _number_of_files(dataset: Any) -> int:
    """Return the number of files of a `datasets.IterableDataset`; 0 for other streams."""
    if not is_instance(dataset, "datasets", "IterableDataset"):
        return 0
    return dataset.num_shards


def skip_batches(loader: Any, batches: int) -> Any:
    """Skip the first batches of each iteration, like `accelerate.skip_first_batches`.

    Unlike in accelerate, a prepared loader and the result share their epoch counter, so that the
    next pass over the loader has the order of the next epoch.

    Args:
        loader: a torch loader, prepared or not. Samples of a map-style dataset are not loaded for
            skipped batches.
        batches: number of batches of this process to skip.

    Raises:
        ValueError: the number is negative.
    """
    if batches < 0:
        raise ValueError(f"num_batches={batches} must be 0 or more.")
    if type(loader) is not DataLoader:
        return SkipDataLoader(loader, batches)

    torch_loader = cast("TorchLoader", loader)
    batch_sampler = torch_loader.batch_sampler
    dataset = torch_loader.dataset
    if batch_sampler is None or isinstance(dataset, IterableDataset):
        return SkipDataLoader(loader, batches)
    remaining = SkipBatchSampler(batch_sampler, batches)
    return DataLoader[Any](dataset, batch_sampler=remaining, **options_of(torch_loader))


class SkipDataLoader:
    """Loader that skips the first batches of another one.

    All other attributes are forwarded to that loader.

    Args:
        loader: the other loader.
        skipped: number of batches to skip.
    """

    def __init__(self, loader: Any, skipped: int) -> None:
        self.loader = loader
        self.skipped = skipped

    def __getattr__(self, name: str) -> Any:
        # While an object is copied or unpickled it has no `loader` yet, so this would recurse
        # endlessly.
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
