"""Iterate over torch's loaders without losing errors of datasets and collators."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, MapDataPipe, get_worker_info

from ..common.stop_iteration import stop_iteration_error, stop_iteration_guard
from ..internals import torch_names
from .batch_samplers import SkipBatchSampler


class TorchLoader(Protocol):
    """The attributes of a `DataLoader` that are used here, some of which are untyped in torch."""

    dataset: Any
    sampler: Any
    batch_sampler: Any
    batch_size: int | None
    collate_fn: Any
    num_workers: int
    pin_memory: bool
    drop_last: bool
    generator: torch.Generator | None


_TORCH_METHODS: Mapping[str, Callable[..., Any]] = vars(DataLoader)
"""The untyped methods of `DataLoader`, including those that a script has patched."""


class StopIterationSafeCollate:
    """Wrapper around a `collate_fn` that raises errors that torch would lose.

    torch interprets a `StopIteration` as the end of a stream, and loses the error if a worker
    cannot send its batch.

    Args:
        collate: the wrapped `collate_fn`.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    @stop_iteration_guard
    def __call__(self, samples: Any) -> Any:
        """Return the batch."""
        batch = self.collate(samples)
        require_sendable(batch)
        return batch


def iterate(loader: Any) -> Iterator[Any]:
    """Iterate over a loader without losing errors of its dataset or collator.

    Args:
        loader: any iterable. For classes other than torch's `DataLoader`, `__iter__` is called.
    """
    if iterates_as_torch(loader):
        return batches_of(loader)
    return iter(loader)


def iterates_as_torch(loader: object) -> bool:
    """Return whether a loader is a `DataLoader` whose iteration is not overridden."""
    iter_method = getattr(type(loader), "__iter__", None)
    return isinstance(loader, DataLoader) and iter_method is _TORCH_METHODS["__iter__"]


def has_batches(loader: TorchLoader) -> bool:
    """Return whether a loader yields batches, which can be sharded.

    With `batch_size=None` and without a batch sampler it yields samples.
    """
    return loader.batch_size is not None or loader.batch_sampler is not None


def can_be_rebuilt(loader: object) -> bool:
    """Return whether a loader can be rebuilt without losing behaviour.

    This is the case if it neither overrides the iteration nor has a state.
    """
    return iterates_as_torch(loader) and not hasattr(loader, "state_dict")


def batches_of(
    loader: TorchLoader, collate: StopIterationSafeCollate | None = None
) -> Iterator[Any]:
    """Iterate like `DataLoader.__iter__`, but without losing errors of dataset or collator.

    Args:
        loader: a `DataLoader`; its own `__iter__` is not called.
        collate: a wrapper of the loader's `collate_fn` to use instead of it.

    Raises:
        RuntimeError: dataset or collator raised `StopIteration`, which torch's iterators interpret
            as the end of the data.
        TypeError: a worker cannot send a batch.
    """
    # Without workers, read a map-style dataset here, which is faster and loses no errors. torch's
    # iterators are needed for a `MapDataPipe`, because they shard it.
    is_stream = isinstance(loader.dataset, (IterableDataset, MapDataPipe))
    if loader.num_workers == 0 and not is_stream:
        batches = _read_here(loader)
        if loader.pin_memory:
            return _pinned(batches)
        return batches

    if collate is None:
        collate = StopIterationSafeCollate(loader.collate_fn)
    with replaced_attributes(loader, collate_fn=collate):
        batches = _TORCH_METHODS["__iter__"](loader)
    return _until_end(batches)


@contextlib.contextmanager
def replaced_attributes(loader: TorchLoader, **values: object) -> Generator[None]:
    """Replace attributes of a loader while an iterator over it is created.

    torch's iterators, and the workers that they start, copy the attributes at that time.

    Args:
        loader: a `DataLoader`.
        values: the values by name of the attribute.
    """
    # `DataLoader.__setattr__` rejects some attributes, so replace them in the instance dict.
    attributes = vars(loader)
    original = {name: attributes[name] for name in values}
    attributes.update(values)
    try:
        yield
    finally:
        attributes.update(original)


def require_sendable(batch: object) -> None:
    """Check in a worker that its batch can be sent to the training process.

    A thread of the worker sends it and loses errors, so the training process would hang.

    Raises:
        TypeError: the batch cannot be pickled.
    """
    if get_worker_info() is None:
        return
    try:
        _SendabilityProbe(io.BytesIO()).dump(batch)
    except Exception as error:
        raise TypeError(
            f"A data worker cannot send its batch to the training process: {error}. Let dataset "
            "and collator leave out what cannot be pickled, or read without workers "
            "(dataloader_num_workers=0, num_workers=0)."
        ) from error


class _SendabilityProbe(ForkingPickler):
    """Pickles like the queue of a worker, but skips the contents of tensors and arrays."""

    def persistent_id(self, obj: object) -> str | None:
        """Return a placeholder for objects that can always be pickled."""
        if isinstance(obj, (torch.Tensor, torch.UntypedStorage)):
            return "tensor"
        if isinstance(obj, np.ndarray):
            array = cast("np.ndarray[Any, np.dtype[Any]]", obj)
            return None if array.dtype.hasobject else "array"
        return None


def _read_here(loader: TorchLoader) -> Iterator[object]:
    """Iterate like torch, but without its profiler context, which takes 20 us per batch."""
    sampler = loader.sampler
    if loader.batch_sampler is not None:
        sampler = loader.batch_sampler
    skipped = 0
    if isinstance(sampler, SkipBatchSampler):
        skipped = sampler.skipped
        sampler = sampler.batches
    indices: Iterator[Any] = iter(sampler)

    # torch's iterator draws a seed for workers here, even if there are none. Without this draw all
    # later random numbers would differ from torch's.
    seed = torch.empty((), dtype=torch.int64, device=torch.get_default_device())
    seed.random_(generator=loader.generator)

    # Most samplers draw the order of an epoch with its first batch. This draw must happen now, at
    # the start of the epoch. Samplers that draw each index on demand draw the first batch after the
    # skipped ones later, with the generators that the caller restores in the meantime.
    first = list(itertools.islice(indices, max(skipped, 1)))[skipped:]
    return _collated(loader, itertools.chain(first, indices))


def _collated(loader: TorchLoader, indices: Iterator[Any]) -> Iterator[Any]:
    """Yield the collated samples of each index, or of each batch of indices."""
    fetcher = torch_names.dataset_fetcher(loader)
    with stop_iteration_guard:
        for batch in indices:
            yield fetcher.fetch(batch)


class _BatchStream(IterableDataset[Any]):
    """Stream of batches that can be passed to torch's iterators as a dataset."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self.batches


def _pinned(batches: Iterator[object]) -> Iterator[object]:
    """Return the batches in pinned memory, copied by torch's own iterator."""
    loader: DataLoader[Any] = DataLoader(
        _BatchStream(batches),
        batch_size=None,
        collate_fn=_unchanged,
        pin_memory=True,
        # The loader draws a seed, which must not change the global generator.
        generator=torch.Generator(),
    )
    return iter(loader)


def _unchanged(batch: object) -> object:
    return batch


def _until_end(batches: Iterator[object]) -> Iterator[object]:
    """Yield the batches of torch's iterator, and raise errors that a worker has reported.

    They are reported as a `StopIteration` with a message.
    """
    while True:
        try:
            batch = next(batches)
        except StopIteration as end:
            if end.args:
                raise stop_iteration_error(end) from end
            return
        yield batch
