"""Iterate over torch's loaders, without losing errors of datasets and collators."""

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
    """The attributes of a `DataLoader` that are read here; torch leaves the types of some open."""

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
"""The methods of `DataLoader`, whose types torch leaves open, also those that a script patches."""


class StopIterationSafeCollate:
    """Wrapper around a `collate_fn` that raises errors which torch would lose.

    torch takes a `StopIteration` for the end of a stream, and loses the error if a worker cannot
    send its batch.

    Args:
        collate: makes the batch.
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
        loader: any iterable. `__iter__` of other classes than torch's `DataLoader` is called as it
            is.
    """
    if iterates_as_torch(loader):
        return batches_of(loader)
    return iter(loader)


def iterates_as_torch(loader: object) -> bool:
    """Return whether a loader is a `DataLoader` whose iteration is not overridden."""
    iter_method = getattr(type(loader), "__iter__", None)
    return isinstance(loader, DataLoader) and iter_method is _TORCH_METHODS["__iter__"]


def has_batches(loader: TorchLoader) -> bool:
    """Return whether a loader makes batches, which can be sharded.

    With `batch_size=None` and no batch sampler it yields samples.
    """
    return loader.batch_size is not None or loader.batch_sampler is not None


def can_be_rebuilt(loader: object) -> bool:
    """Return whether a loader can be built again without losing behaviour.

    That is the case if it does not override the iteration, and has no state.
    """
    return iterates_as_torch(loader) and not hasattr(loader, "state_dict")


def batches_of(
    loader: TorchLoader, collate: StopIterationSafeCollate | None = None
) -> Iterator[Any]:
    """Iterate as `DataLoader.__iter__`, but without losing errors of dataset or collator.

    Args:
        loader: a `DataLoader`; its own `__iter__` is not called.
        collate: used instead of the loader's `collate_fn`, which it wraps.

    Raises:
        RuntimeError: dataset or collator raised `StopIteration`, which torch's iterators take for
            the end.
        TypeError: a worker cannot send a batch.
    """
    # Without workers a map-style dataset is read here, which is faster and loses no error.
    # A `MapDataPipe` is left to torch's iterators, which shard it.
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
    """Replace attributes of a loader while an iterator over it is made.

    The iterators of torch, and the workers that they start, copy the attributes at that time.

    Args:
        loader: a `DataLoader`.
        values: by name of the attribute.
    """
    # Some attributes refuse to be set, so they are replaced in the dict of the object.
    attributes = vars(loader)
    original = {name: attributes[name] for name in values}
    attributes.update(values)
    try:
        yield
    finally:
        attributes.update(original)


def require_sendable(batch: object) -> None:
    """Check in a worker that its batch can be sent to the training process.

    A thread of the worker sends it and loses errors, so that the training process would wait.

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
    """Pickles as the queue of a worker does, but skips the contents of tensors and arrays."""

    def persistent_id(self, obj: object) -> str | None:
        """Return a placeholder for objects that can always be pickled."""
        if isinstance(obj, (torch.Tensor, torch.UntypedStorage)):
            return "tensor"
        if isinstance(obj, np.ndarray):
            array = cast("np.ndarray[Any, np.dtype[Any]]", obj)
            return None if array.dtype.hasobject else "array"
        return None


def _read_here(loader: TorchLoader) -> Iterator[object]:
    """Iterate as torch does, but without its block for profilers, which costs 20 us a batch."""
    sampler = loader.sampler
    if loader.batch_sampler is not None:
        sampler = loader.batch_sampler
    skipped = 0
    if isinstance(sampler, SkipBatchSampler):
        skipped = sampler.skipped
        sampler = sampler.batches
    indices: Iterator[Any] = iter(sampler)

    # torch's iterator draws a seed for workers here, even if there are none. Without that draw all
    # later random numbers would differ from torch's.
    seed = torch.empty((), dtype=torch.int64, device=torch.get_default_device())
    seed.random_(generator=loader.generator)

    # Most samplers draw the order of an epoch with its first batch. That draw belongs to the start
    # of the epoch. Those that draw each index when it is needed draw the first batch after the
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
    """Batches as a dataset, for torch's iterators."""

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
        # The loader draws a seed, which must not come from the global generator.
        generator=torch.Generator(),
    )
    return iter(loader)


def _unchanged(batch: object) -> object:
    return batch


def _until_end(batches: Iterator[object]) -> Iterator[object]:
    """Yield the batches of torch's iterator, and raise an error that a worker passed on.

    It arrives as a `StopIteration` with a message.
    """
    while True:
        try:
            batch = next(batches)
        except StopIteration as end:
            if end.args:
                raise stop_iteration_error(end) from end
            return
        yield batch
