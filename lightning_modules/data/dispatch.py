"""Loader whose data rank 0 reads and sends to the other ranks."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..common.collectives import transport_device
from ..common.nested import find_batch_size, leaves, map_nested, mapping_like
from .epoch_loader import EpochLoader

Round = tuple[list[Any], int]
"""The batches of all processes, and their number of samples without padding."""


class DispatchLoader(EpochLoader):
    """As `accelerate.data_loader.DataLoaderDispatcher`, but a batch goes to the process that works
    on it, and no other.

    Only process 0 touches the data. It reads one batch for each process, and sends each its own:
    batches may differ in all of their shapes. Only where a stream ends in the middle of a round its
    last batches are put together and split evenly, filled up with the first samples of the stream,
    and have to fit together for that.

    Args:
        dataset: see `EpochLoader`; on other processes than 0 it is not read.
        rank: index of this process.
        world_size: number of processes.
        copies: how many of them, of numbers that follow one another, get the same batches.
        kwargs: see `EpochLoader`; batches come in turn, one for each process, or for each such
            group.
    """

    reports_states = False

    def __init__(
        self, dataset: Any, *, rank: int, world_size: int, copies: int = 1, **kwargs: Any
    ) -> None:
        self._draws_once = kwargs.get("persistent_workers", False)
        if rank > 0:
            kwargs |= {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None}
            kwargs |= {"multiprocessing_context": None, "worker_init_fn": None}
        super().__init__(dataset, **kwargs)
        self.rank = rank
        self.world_size = world_size // copies
        self.batches_of_round = self.world_size
        self.copies = copies
        self._count = -1
        self._has_drawn = False

    def __len__(self) -> int:
        batches = super().__len__()
        return batches // self.world_size if self.drops_last else -(-batches // self.world_size)

    @property
    def remainder(self) -> int:
        """As `EpochLoader.remainder`; process 0 sends it to the others."""
        if self.drops_last or self.total is not None:
            return super().remainder
        return self._count if self.end_of_loader else -1

    def _batches(self) -> Iterator[Any]:
        if self.rank == 0:
            return self._received(self._rounds(super()._batches()))
        self._draw()
        return self._received(iter(()))

    def _received(self, rounds: Iterator[Round]) -> Iterator[Any]:
        """Yield this process's batch of each round."""
        while (received := _exchange(rounds, self.rank, self.copies)) is not None:
            batch, self._count = received
            yield batch

    def _rounds(self, batches: Iterator[Any]) -> Iterator[Round]:
        """Yield the rounds that process 0 reads."""
        first: list[Any] = []
        while gathered := list(itertools.islice(batches, self.world_size)):
            first = first or gathered
            sizes = [_size(batch) for batch in gathered]
            if len(gathered) == self.world_size and len(set(sizes)) == 1:
                yield gathered, sum(sizes)
            elif not self.drops_last:
                yield _evened(gathered, first, self.world_size), sum(sizes)

    def _draw(self) -> None:
        """Draw from the global generator as every iteration of a DataLoader does at its start."""
        if not (self._draws_once and self._has_drawn):
            torch.empty((), dtype=torch.int64, device="cpu").random_(generator=self.generator)
        self._has_drawn = True


def _evened(gathered: list[Any], first: list[Any], shares: int) -> list[Any]:
    """Return the last batches of a stream, split evenly and filled up from its start."""
    batch = _joined(gathered)
    share = -(-_size(batch) // shares)
    while (missing := share * shares - _size(batch)) > 0:
        batch = _joined([batch, _cut(_joined(first), 0, min(shares, missing))])
    return [_cut(batch, index * share, (index + 1) * share) for index in range(shares)]


def _size(batch: Any) -> int:
    return find_batch_size(batch) or 0


def _joined(batches: list[Any]) -> Any:
    """Return one batch of several: tensors and lists of other things along their first
    dimension.
    """
    first = batches[0]
    if isinstance(first, Mapping):
        return mapping_like(
            first, {key: _joined([batch[key] for batch in batches]) for key in first}
        )
    if isinstance(first, (list, tuple)) and not _is_list_of_samples(first):
        return type(first)(_joined(list(parts)) for parts in zip(*batches, strict=True))
    if isinstance(first, list):
        return list(itertools.chain.from_iterable(batches))
    if isinstance(first, torch.Tensor):
        return torch.cat(batches) if first.ndim else first
    return np.concatenate(batches) if isinstance(first, np.ndarray) else first


def _cut(batch: Any, start: int, stop: int) -> Any:
    """Return the samples `start` to `stop` of a batch."""
    if isinstance(batch, list) and _is_list_of_samples(batch):
        return batch[start:stop]
    if isinstance(batch, Mapping):
        return mapping_like(batch, {key: _cut(value, start, stop) for key, value in batch.items()})
    if isinstance(batch, (list, tuple)):
        return type(batch)(_cut(part, start, stop) for part in batch)
    return (
        batch[start:stop] if isinstance(batch, (torch.Tensor, np.ndarray)) and batch.ndim else batch
    )


def _is_list_of_samples(value: Any) -> bool:
    """Return whether a value is a list with one entry per sample, such as texts, not parts of a
    batch.
    """
    return isinstance(value, list) and find_batch_size(value) is None


@dataclass(frozen=True)
class _Slot:
    """Placeholder for a tensor in a batch whose tensors are sent separately."""

    shape: torch.Size
    dtype: torch.dtype

    @staticmethod
    def of(leaf: Any) -> Any:
        return _Slot(leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf

    def receive(self, device: torch.device) -> torch.Tensor:
        tensor = torch.empty(self.shape, dtype=self.dtype, device=device)
        if tensor.numel():
            dist.recv(tensor, src=0)
        return tensor


def _exchange(rounds: Iterator[Round], rank: int, copies: int) -> tuple[Any, int] | None:
    """Exchange the next round: return this process's batch and the number of samples; None at the
    end.

    Raises:
        RuntimeError: process 0 could not read the data; there the error itself.
    """
    if rank == 0:
        return _send(rounds, copies)
    box: list[Any] = [None]
    dist.broadcast_object_list(box, src=0)
    if isinstance(box[0], str):
        raise RuntimeError(f"dispatch_batches=True: process 0 could not read the data: {box[0]}")
    if box[0] is None:
        return None
    outlines, count = pickle.loads(box[0])
    device = transport_device()
    return (
        map_nested(
            lambda leaf: leaf.receive(device) if isinstance(leaf, _Slot) else leaf,
            outlines[rank // copies],
        ),
        count,
    )


def _send(rounds: Iterator[Round], copies: int) -> tuple[Any, int] | None:
    try:
        batches, count = next(rounds, ([], 0))
        outlines = [map_nested(_Slot.of, batch) for batch in batches]
        packed = pickle.dumps((outlines, count)) if batches else None
    except Exception as error:
        dist.broadcast_object_list([f"{type(error).__name__}: {error}"], src=0)
        raise
    dist.broadcast_object_list([packed], src=0)
    device = transport_device()
    for rank in range(1, len(batches) * copies):
        for leaf in leaves(batches[rank // copies]):
            if isinstance(leaf, torch.Tensor) and leaf.numel():
                dist.send(leaf.to(device).contiguous(), dst=rank)
    return (batches[0], count) if batches else None
