"""Collect what an evaluation produces batch by batch and join it once, so that the cost grows
linearly.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..common.device_copies import to_host
from ..common.nested import leaves, mapping_like, nested_numpify, sequence_like, to_numpy
from .preallocated_arrays import PreallocatedArray, PreallocatedTree, growing


def move_to_host(*collectors: BatchCollector | LossCollector) -> None:
    """Move what collectors keep on a device to the host's memory, which waits for the device once a
    batch.

    Args:
        collectors: of the parts of the same batches, such as predictions and labels.
    """
    waiting = [collector.take_waiting() for collector in collectors]
    while any(waiting):
        # One batch of each, which leaves the device's memory before the next.
        parts = [batches.popleft() if batches else None for batches in waiting]
        for collector, part in zip(collectors, to_host(parts), strict=True):
            if part is not None:
                collector.keep_on_host(part)


class BatchCollector:
    """As `transformers.trainer_pt_utils.EvalLoopContainer`, but linear in the number of batches,
    and without a copy.

    What is in the host's memory already is written to its final place at once.

    Args:
        concatenate: join the batches into one array each; otherwise `result` is the list of
            batches.
        rows: how many samples are expected in all, None if that is unknown.
    """

    def __init__(self, concatenate: bool = True, rows: int | None = None) -> None:
        self.concatenate = concatenate
        self.rows = rows
        self._on_device: deque[Any] = deque()
        self._joined: PreallocatedArray | PreallocatedTree | None = None
        self._apart: list[Any] = []

    def add(self, batch: Any) -> None:
        """Keep a batch, on its device."""
        if (
            type(batch) is torch.Tensor
            and batch.is_cpu
            and self._joined is not None
            and not self._on_device
        ):
            self._joined.add(to_numpy(batch))  # most often
        elif self.concatenate and _is_on_host(batch):
            self.to_host()
            self._write(nested_numpify(batch))
        else:
            self._on_device.append(batch)

    def to_host(self) -> None:
        """Move what was kept so far to the host's memory."""
        move_to_host(self)

    def take_waiting(self) -> deque[Any]:
        """Return the batches that are kept on their device, and keep them no more."""
        waiting = self._on_device
        self._on_device = deque()
        return waiting

    def keep_on_host(self, batch: Any) -> None:
        """Keep a batch that `take_waiting` gave, and that is in the host's memory by now."""
        batch = nested_numpify(batch)
        if self.concatenate:
            self._write(batch)
        else:
            self._apart.append(batch)

    def _write(self, batch: Any) -> None:
        if self._joined is None:
            self._joined = growing(batch, self.rows)
        else:
            self._joined.add(batch)

    def result(self) -> Any:
        """Return all of it as arrays, or None if nothing was added."""
        self.to_host()
        joined = self._joined
        apart = self._apart
        self._joined = None
        self._apart = []
        if joined is not None:
            return joined.result()
        return apart or None


class LossCollector:
    """As `BatchCollector` over `loss.repeat(times)[:rows]` of each batch, but each number is kept
    once.

    Args:
        concatenate: give one array; otherwise a list with an array for each batch.
    """

    def __init__(self, concatenate: bool = True) -> None:
        self.concatenate = concatenate
        self._on_device: deque[torch.Tensor] = deque()
        self._numbers: list[float] = []
        """Those in the host's memory, as numbers: small tensors beside large ones would cut it
        into unusable pieces.
        """
        self._dtype = torch.float32
        self._counts: list[int] = []
        """Values of each batch."""
        self._rows: list[int] = []
        """Rows of each batch, which repeat its values."""

    def add(self, loss: torch.Tensor, times: int = 1, rows: int | None = None) -> None:
        """Keep the loss of a batch, on its device.

        Args:
            loss: a number, or several ones.
            times: how often it counts.
            rows: how many values of them all are left; all by default.
        """
        count = loss.numel()
        repeated = count * times
        self._counts.append(count)
        self._rows.append(repeated if rows is None else min(rows, repeated))
        if not loss.is_cpu:
            self._on_device.append(loss.detach().reshape(-1))
            return
        if self._on_device:
            self.to_host()
        self.keep_on_host(loss)

    def to_host(self) -> None:
        """Move what was kept so far to the host's memory."""
        move_to_host(self)

    def take_waiting(self) -> deque[torch.Tensor]:
        """Return the losses that are kept on their device as one tensor, and keep them no more."""
        waiting = self._on_device
        self._on_device = deque()
        if waiting:
            waiting = deque([torch.cat(list(waiting))])
        return waiting

    def keep_on_host(self, loss: torch.Tensor) -> None:
        """Keep a loss that is in the host's memory."""
        self._dtype = loss.dtype
        if loss.numel() == 1:
            self._numbers.append(loss.item())
        else:
            self._numbers += loss.flatten().tolist()

    def result(self) -> Any:
        """Return all of it, or None if nothing was added."""
        self.to_host()
        values = to_numpy(torch.tensor(self._numbers, dtype=self._dtype, device="cpu"))
        counts = self._counts
        rows = self._rows
        self._numbers = []
        self._counts = []
        self._rows = []
        if not counts:
            return None
        if self.concatenate and len(values) == len(counts):
            return np.repeat(values, rows)

        batches = np.split(values, np.cumsum(counts)[:-1])
        repeated = [np.resize(batch, length) for batch, length in zip(batches, rows, strict=True)]
        return np.concatenate(repeated) if self.concatenate else repeated


def _is_on_host(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_cpu
    return all(leaf.is_cpu for leaf in leaves(value) if isinstance(leaf, torch.Tensor))


PADDING = -100


def join_objects(parts: Sequence[Any], padding: float = PADDING) -> Any:
    """Return one structure of several alike ones: their lists one after the other, tensors along
    the first dimension.

    As `accelerate.utils.gather_object` does it with lists. Of tuples and dicts, of which that would
    leave the parts in a row or the keys alone, each part is joined for itself, and tensors stay
    tensors.

    Args:
        parts: lists, tensors, arrays, or tuples and dicts of them; anything else is for all
            samples, and put in a list.
        padding: fills up shorter rows of the second dimension of tensors and arrays, on the right.
    """
    first = parts[0]
    if isinstance(first, Mapping):
        return mapping_like(
            first, {key: join_objects([part[key] for part in parts], padding) for key in first}
        )
    if isinstance(first, tuple):
        return sequence_like(
            first, (join_objects(same, padding) for same in zip(*parts, strict=True))
        )
    if isinstance(first, list):
        return list(itertools.chain.from_iterable(parts))
    if isinstance(first, torch.Tensor):
        return torch.cat(_of_one_width([torch.atleast_1d(part) for part in parts], padding))
    if isinstance(first, np.ndarray):
        return np.concatenate(_of_one_width([np.atleast_1d(part) for part in parts], padding))
    return list(parts)


def cut_objects(value: Any, count: int) -> Any:
    """Return the first `count` samples of what `join_objects` gives."""
    if isinstance(value, Mapping):
        return mapping_like(value, {key: cut_objects(part, count) for key, part in value.items()})
    if isinstance(value, tuple):
        return sequence_like(value, (cut_objects(part, count) for part in value))
    return value[:count]


class ObjectCollector(BatchCollector):
    """As `BatchCollector`, for what need not be tensors.

    Args:
        concatenate: join the batches; otherwise `result` is the list of batches.
    """

    def __init__(self, concatenate: bool = True) -> None:
        super().__init__(concatenate=False)
        self.joins = concatenate

    def result(self) -> Any:
        """Return all of it, with arrays in place of tensors, or None if nothing was added."""
        batches = super().result()
        if batches is None or not self.joins:
            return batches
        return join_objects(batches)


def _of_one_width(rows: list[Any], padding: float) -> list[Any]:
    """Return tensors or arrays whose second dimension is as long as the longest of them."""
    if rows[0].ndim < 2:
        return rows
    width = max(row.shape[1] for row in rows)
    return [_padded(row, width, padding) for row in rows]


def _padded(row: Any, width: int, padding: float) -> Any:
    if row.shape[1] == width:
        return row
    shape = (row.shape[0], width, *row.shape[2:])
    if isinstance(row, torch.Tensor):
        wide: Any = row.new_full(shape, padding)
    else:
        wide = np.full(shape, padding, row.dtype)
    wide[:, : row.shape[1]] = row
    return wide
