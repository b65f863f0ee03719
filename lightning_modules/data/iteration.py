"""Iterate over torch's loaders, without losing errors of datasets and collators."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, MapDataPipe, get_worker_info

from ..common.stop_iteration import stop_iteration_error, stop_iteration_surfaces


class SurfacingCollate:
    """Wrapper around a `collate_fn` whose errors torch would lose.

    They are a `StopIteration`, which it takes for the end of a stream, and a batch that a worker
    cannot send.

    Args:
        collate: makes the batch.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    @stop_iteration_surfaces
    def __call__(self, samples: Any) -> Any:
        """Return the batch."""
        batch = self.collate(samples)
        require_sendable(batch)
        return batch


def iterate(loader: Any) -> Iterator[Any]:
    """As `iter(loader)`, but no error of dataset or collator is lost where torch iterates.

    Args:
        loader: any iterable; one with its own `__iter__` is left to that.
    """
    if isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__:
        return batches_of(loader)
    return iter(loader)


def batches_of(loader: DataLoader, collate: SurfacingCollate | None = None) -> Iterator[Any]:
    """As `DataLoader.__iter__`, but no error of dataset or collator is lost.

    Args:
        loader: whose own `__iter__` is not called.
        collate: used instead of the loader's `collate_fn`, which it wraps.

    Raises:
        RuntimeError: dataset or collator raised `StopIteration`, which torch's iterators take for
            the end.
        TypeError: a worker cannot send a batch.
    """
    torch_has_to_read = loader.num_workers > 0 or isinstance(
        loader.dataset, (IterableDataset, MapDataPipe)
    )
    if not torch_has_to_read:
        batches = _read_here(loader)
        if loader.pin_memory:
            return _pinned(batches)
        return batches

    original = loader.collate_fn
    if collate is None:
        collate = SurfacingCollate(original)

    # torch's iterator, and the workers that it starts, keep the collate_fn that the loader has
    # while it is made.
    loader.collate_fn = collate
    try:
        return _until_end(DataLoader.__iter__(loader))
    finally:
        loader.collate_fn = original


def require_sendable(batch: Any) -> None:
    """Check in a worker that a batch can be sent: a thread sends it, whose errors are lost, and its
    parent would wait.

    Raises:
        TypeError: the batch cannot be pickled.
    """
    if get_worker_info() is None:
        return
    try:
        _Probe(io.BytesIO()).dump(batch)
    except Exception as error:
        raise TypeError(
            f"A worker cannot send a batch to the training process: {error}. Let dataset and "
            "collator leave out what cannot be pickled, or read without workers "
            "(dataloader_num_workers=0, num_workers=0)."
        ) from error


class _Probe(ForkingPickler):
    """Pickles as the queue of a worker does, but skips the contents of tensors and arrays."""

    def persistent_id(self, obj: Any) -> str | None:
        """Return a stand-in for what can be pickled for sure."""
        if isinstance(obj, (torch.Tensor, torch.UntypedStorage)):
            return "tensor"
        if isinstance(obj, np.ndarray) and not obj.dtype.hasobject:
            return "array"
        return None


def _read_here(loader: DataLoader) -> Iterator[Any]:
    """As torch's iterator with its draw of a seed, but it opens no block for profilers, which
    costs 20 us a batch.
    """
    sampler = loader.sampler
    if loader.batch_sampler is not None:
        sampler = loader.batch_sampler
    indices = iter(sampler)

    # The draw of torch's iterator, which seeds workers by it: without it, everything drawn later
    # would differ.
    torch.empty((), dtype=torch.int64, device=torch.get_default_device()).random_(
        generator=loader.generator
    )

    # Most samplers draw the order of an epoch with its first batch, which belongs to the start of
    # the epoch.
    first = itertools.islice(indices, 1)
    return _read(loader, itertools.chain(list(first), indices))


def _read(loader: DataLoader, indices: Iterator[Any]) -> Iterator[Any]:
    dataset = loader.dataset
    collate = loader.collate_fn
    with stop_iteration_surfaces:
        # Without batches each index is a sample, which the collator turns into what is yielded.
        if loader.batch_sampler is None:
            for index in indices:
                yield collate(dataset[index])
            return

        get_samples = getattr(dataset, "__getitems__", None)
        for batch in indices:
            samples = get_samples(batch) if get_samples else [dataset[index] for index in batch]
            yield collate(samples)


class _Batches(IterableDataset):
    """Batches as a dataset, for torch's iterators."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self.batches


def _pinned(batches: Iterator[Any]) -> Iterator[Any]:
    """Return the batches in pinned memory, by torch; it draws a seed, which must not be of the
    global generator.
    """
    loader = DataLoader(
        _Batches(batches),
        batch_size=None,
        collate_fn=_unchanged,
        pin_memory=True,
        generator=torch.Generator(),
    )
    return iter(loader)


def _unchanged(batch: Any) -> Any:
    return batch


def _until_end(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of torch's iterator; a `StopIteration` with a message is an error that a
    worker handed over.
    """
    while True:
        try:
            batch = next(batches)
        except StopIteration as end:
            if end.args:
                raise stop_iteration_error(end) from end
            return
        yield batch
