"""Build the loader of a dataset: in order, shuffled, sharded over processes, or after its first
batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
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
    batch_size: int | None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
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
    """As `Accelerator.prepare(DataLoader(...))`, in one step.

    Args:
        dataset: map-style or iterable dataset.
        batch_size: samples per process and step; with `split_batches`, of all processes together.
            None where `sampler` gives the batches of all processes.
        collate_fn: list of samples -> batch.
        sampler: order of the samples; in sequence by default. A plain `RandomSampler` is made to
            depend on `seed` and the epoch alone; a `BatchRebalanceSampler` or `TokenBudgetSampler`
            gives the batches of this process.
        seed: seed of the data order, by default the seed that torch was given last.
        seedable: False leaves a `RandomSampler` as it is; its order then depends on torch's global
            generator.
        drop_last: leave out the last, incomplete round; of given batches as they say.
        rank: index of this process.
        world_size: number of processes.
        copies: how many of them, of numbers that follow one another, get the same batches.
        even_batches: give every process equally many samples, repeating some from the start.
        split_batches: split the samples of one batch over all processes.
        dispatch_batches: let process 0 read the data and send it to the others. None lets each
            process read its own and shards streams as if process 0 had read them, which it does if
            several workers read one; False fills up the last round of a stream to a whole one, and
            gives each process its own files of a `datasets.IterableDataset` that has enough of
            them.
        kwargs: further arguments of `torch.utils.data.DataLoader` (workers, pinning, ...).

    Raises:
        ValueError: `split_batches`, and the batches cannot be split evenly.
    """
    shares = world_size // copies
    is_stream = isinstance(dataset, IterableDataset)
    if is_stream and dispatch_batches is None and kwargs.get("num_workers", 0) > 1:
        # Batches of the workers alternate, and each ends at its own time: only one process can
        # order them.
        dispatch_batches = True
    is_dispatched = bool(dispatch_batches) and world_size > 1
    share_rank = None if is_dispatched else rank // copies

    options: dict[str, Any] = {"collate_fn": collate_fn, "drops_last": drop_last, **kwargs}
    if is_stream:
        assert batch_size is not None, "a stream has no batch sampler"
        share: int | None = share_of(batch_size, shares, split_batches)
        options |= {"total": None, "batch_size": share, "drop_last": drop_last}

        stream: Any = dataset
        reads_own_files = (
            dispatch_batches is False and not split_batches and _files(stream) >= shares
        )
        if share_rank is None or shares == 1:
            dataset = stream
        elif reads_own_files:
            dataset = stream.shard(num_shards=shares, index=share_rank)
            options["files"] = shares
        else:
            dataset = IterableShard(
                stream,
                batch_size,
                rank=share_rank,
                world_size=shares,
                drop_last=drop_last,
                split_batches=split_batches,
                fill_round=dispatch_batches is False,
            )
    # gives the batches of this process only
    elif isinstance(sampler, (BatchRebalanceSampler, TokenBudgetSampler)):
        share = batch_size
        options |= {"total": len(dataset), "batch_sampler": sampler}
    else:
        batches = ShardedBatchSampler(
            SequentialSampler(dataset) if sampler is None else sampler,
            batch_size,
            drop_last,
            rank=share_rank,
            world_size=shares,
            even_batches=even_batches,
            split_batches=split_batches,
        )
        if batch_size is not None or (seedable and isinstance(batches.sampler, RandomSampler)):
            batches.sampler = _seeded(
                batches.sampler, seed, seedable, 1 if is_dispatched else world_size
            )
        share = batches.share
        options |= {
            "total": len(dataset),
            "batch_sampler": batches,
            "drops_last": batches.drop_last,
        }
        if share is None:
            # The padding of the last batch is unknown, so that nothing can be cut off.
            options |= {"total": None, "drops_last": True}

    options["samples_per_round"] = (share or 1) * shares
    if is_dispatched:
        return DispatchLoader(dataset, rank=rank, world_size=world_size, copies=copies, **options)
    return EpochLoader(dataset, **options)


def rebuild_loader(loader: DataLoader, **sharing: Any) -> EpochLoader:
    """As `Accelerator.prepare(loader)`: shard a loader of torch as `build_loader` does.

    Args:
        loader: makes batches, of a batch size or by a batch sampler; it is not changed, except for
            a `RandomSampler` in a custom batch sampler.
        sharing: the arguments of `build_loader` from `seed` to `dispatch_batches`, but `drop_last`.

    Raises:
        ValueError: `split_batches`, and the batches cannot be split evenly.
    """
    batching: dict[str, Any] = {"batch_size": None, "sampler": loader.batch_sampler}
    if isinstance(loader.dataset, IterableDataset):
        batching = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif type(loader.batch_sampler) is BatchSampler:
        batches = loader.batch_sampler
        batching = {
            "batch_size": batches.batch_size,
            "drop_last": batches.drop_last,
            "sampler": batches.sampler,
        }
    return build_loader(loader.dataset, **batching, **sharing, **options_of(loader))


def _seeded(sampler: Any, seed: int | None, seedable: bool, world_size: int) -> Any:
    """Return a sampler that has the same order in all processes."""
    if isinstance(sampler, SeedableRandomSampler):
        return sampler
    if isinstance(sampler, RandomSampler) and seedable:
        return SeedableRandomSampler.like(sampler, torch.initial_seed() if seed is None else seed)
    if world_size == 1 or not isinstance(sampler, (RandomSampler, LengthGroupedSampler)):
        return sampler
    if isinstance(sampler, RandomSampler) and sampler.generator is None:
        drawn = torch.empty((), dtype=torch.int64, device="cpu").random_()
        sampler.generator = torch.Generator().manual_seed(int(drawn))
    return SharedOrderSampler(sampler)


def _files(dataset: Any) -> int:
    """Return the number of files of a `datasets.IterableDataset`; 0 for other streams."""
    if not is_instance(dataset, "datasets", "IterableDataset"):
        return 0
    return dataset.num_shards if hasattr(dataset, "num_shards") else dataset.n_shards


def loader_after(loader: Any, batches: int) -> Any:
    """As `accelerate.skip_first_batches`: skip the first batches of each iteration.

    Unlike there, a prepared loader and the result share their count of epochs, so that the next
    pass over the loader has the order of the next epoch.

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
            loader.dataset,
            batch_sampler=BatchesAfter(loader.batch_sampler, batches),
            **options_of(loader),
        )
    return LoaderAfter(loader, batches)


class LoaderAfter:
    """Loader without the first batches of another one; all other attributes are those of that
    loader.

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
