"""Loaders without their first batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from .batch_samplers import options_of
from .epoch_loader import EpochLoader

__all__ = ["loader_after"]


def loader_after(loader: Any, batches: int) -> Any:
    """As `accelerate.skip_first_batches`: in each of its iterations the first batches are left out.

    Unlike there, a prepared loader and what is made of it count their epochs together, so that the next pass over the
    loader has the order of the next epoch.

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


class BatchesAfter(BatchSampler):
    """The batches of a sampler but the first ones.

    Args:
        batches: the sampler.
        skipped: how many are left out.
    """

    def __init__(self, batches: Any, skipped: int) -> None:
        self.batches = batches
        self.skipped = skipped

    def __len__(self) -> int:
        return max(len(self.batches) - self.skipped, 0)

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(self.batches, self.skipped, None)


class LoaderAfter:
    """A loader but its first batches; all else is that of the loader.

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
            yield from itertools.islice(self.loader, self.skipped, None)
