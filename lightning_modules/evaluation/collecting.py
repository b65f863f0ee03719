"""Collect what an evaluation produces batch by batch and join it once, so that the cost grows linearly."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..common.device_copies import to_host
from ..common.nested import leaves, mapping_like, nested_numpify, sequence_like, to_numpy
from .preallocated_arrays import PreallocatedArray, PreallocatedTree, growing


def move_to_host(*collectors: BatchCollector | LossCollector | ObjectCollector) -> None:
    """Move what collectors keep on a device to the host's memory, which waits for the device once a batch.

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
    """As `transformers.trainer_pt_utils.EvalLoopContainer`, but linear in the number of batches, and without a copy.

    What is in the host's memory already is written to its final place at once.

    Args:
        concatenate: join the batches into one array each; otherwise `result` is the list of batches.
        rows: how many samples are expected in all, None if that is unknown.
    """

    def __init__(self, concatenate: bool = True, rows: int | None = None) -> None:
        self.concatenate, self.rows = concatenate, rows
        self._on_device: deque[Any] = deque()
        self._joined: PreallocatedArray | PreallocatedTree | None = None
        self._apart: list[Any] = []

    def add(self, batch: Any) -> None:
        """Keep a batch, on its device."""
        if type(batch) is torch.Tensor and batch.is_cpu and self._joined is not None and not self._on_device:
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
        waiting, self._on_device = self._on_device, deque()
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
        joined, self._joined = self._joined, None
        apart, self._apart = self._apart, []
        return joined.result() if joined is not None else apart or None


class LossCollector:
    """As `BatchCollector` over `loss.repeat(times)[:rows]` of each batch, but one number a batch is kept.

    Args:
        concatenate: give one array; otherwise a list with an array for each batch.
    """

    _WAITING = 512  # numbers that are put together at a time

    def __init__(self, concatenate: bool = True) -> None:
        self.concatenate = concatenate
        self._waiting: list[Any] = []
        """Of one type and device: numbers in the host's memory, tensors elsewhere.

        Small tensors that stay, each beside large ones that go, would cut the host's memory into unusable pieces.
        """
        self._kind: tuple[torch.dtype, torch.device] | None = None
        self._parts: list[torch.Tensor] = []
        self._runs: list[list[int]] = []
        """Values, repetitions and rows of batches that are alike, and how many such batches there are in a row."""
        self._alike: tuple[int, int, int] | None = None
        """The first three of them in the last row."""

    def add(self, loss: torch.Tensor, times: int = 1, rows: int | None = None) -> None:
        """Keep the loss of a batch, on its device.

        Args:
            loss: a number, or several ones.
            times: how often it counts.
            rows: how many values of them all are left; all by default.
        """
        values, kind = loss.numel(), (loss.dtype, loss.device)
        alike = values, times, values * times if rows is None else min(rows, values * times)
        if alike != self._alike:
            self._alike = alike
            self._runs.append([*alike, 0])
        self._runs[-1][3] += 1
        if kind != self._kind:
            self._join_waiting()
            self._kind = kind
        if not loss.is_cpu:
            self._waiting.append(loss.detach().reshape(-1))
        elif values == 1:
            self._waiting.append(loss.item())
        else:
            self._waiting += loss.reshape(-1).tolist()
        if len(self._waiting) >= self._WAITING:
            self._join_waiting()

    def to_host(self) -> None:
        """Move what was kept so far to the host's memory."""
        move_to_host(self)

    def take_waiting(self) -> deque[Any]:
        """Return the losses of all batches since the last call as one batch, and keep them no more."""
        self._join_waiting()
        parts, self._parts = self._parts, []
        return deque([parts] if parts else [])

    def keep_on_host(self, parts: list[torch.Tensor]) -> None:
        """Keep losses that `take_waiting` gave, and that are in the host's memory by now."""
        self._parts = [torch.cat(parts)]

    def result(self) -> Any:
        """Return all of it, or None if nothing was added."""
        self.to_host()
        parts, self._parts, runs, self._runs, self._alike = self._parts, [], self._runs, [], None
        if not parts:
            return None
        values = to_numpy(parts[0])
        if self.concatenate and all(count == 1 for count, *_ in runs):
            batches = [batches for *_, batches in runs]
            return np.repeat(values, np.repeat([rows for _, _, rows, _ in runs], batches))
        repeated = list(_repeated(values, runs))
        return np.concatenate(repeated) if self.concatenate else repeated

    def _join_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting and self._kind is not None:
            numbers = not isinstance(waiting[0], torch.Tensor)
            part = torch.tensor(waiting, dtype=self._kind[0], device="cpu") if numbers else torch.cat(waiting)
            self._parts.append(part)


def _repeated(values: np.ndarray, runs: list[list[int]]) -> Iterator[np.ndarray]:
    """Yield the values of each batch."""
    start = 0
    for count, times, rows, batches in runs:
        for _ in range(batches):
            yield np.tile(values[start : start + count], times)[:rows]
            start += count


def _is_on_host(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_cpu
    return all(leaf.is_cpu for leaf in leaves(value) if isinstance(leaf, torch.Tensor))


PADDING = -100


def join_objects(parts: Sequence[Any], padding: float = PADDING) -> Any:
    """Return one structure of several alike ones: their lists one after the other, tensors along the first dimension.

    As `accelerate.utils.gather_object` does it with lists. Of tuples and dicts, of which that would leave the parts in
    a row or the keys alone, each part is joined for itself, and tensors stay tensors.

    Args:
        parts: lists, tensors, arrays, or tuples and dicts of them; anything else is for all samples, and put in a list.
        padding: fills up shorter rows of the second dimension of tensors and arrays, on the right.
    """
    first = parts[0]
    if isinstance(first, Mapping):
        return mapping_like(first, {key: join_objects([part[key] for part in parts], padding) for key in first})
    if isinstance(first, tuple):
        return sequence_like(first, (join_objects(same, padding) for same in zip(*parts, strict=True)))
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


class ObjectCollector:
    """As `BatchCollector`, for what need not be tensors.

    Args:
        concatenate: join the batches; otherwise `result` is the list of batches.
    """

    def __init__(self, concatenate: bool = True) -> None:
        self.concatenate = concatenate
        self._batches: list[Any] = []
        self._on_host = 0

    def add(self, batch: Any) -> None:
        """Keep a batch, on its device."""
        self._batches.append(batch)

    def to_host(self) -> None:
        """Move what was kept so far to the host's memory."""
        move_to_host(self)

    def take_waiting(self) -> deque[Any]:
        """Return the batches that are kept on their device, and keep them no more."""
        waiting = deque(self._batches[self._on_host :])
        del self._batches[self._on_host :]
        return waiting

    def keep_on_host(self, batch: Any) -> None:
        """Keep a batch that `take_waiting` gave, and that is in the host's memory by now."""
        self._batches.append(nested_numpify(batch))
        self._on_host = len(self._batches)

    def result(self) -> Any:
        """Return all of it, with arrays in place of tensors, or None if nothing was added."""
        self.to_host()
        batches, self._batches, self._on_host = self._batches, [], 0
        if not batches:
            return None
        return join_objects(batches) if self.concatenate else batches


def _of_one_width(rows: list[Any], padding: float) -> list[Any]:
    """Return tensors or arrays whose second dimension is as long as the longest of them."""
    if rows[0].ndim < 2:
        return rows
    width = max(row.shape[1] for row in rows)
    return [row if row.shape[1] == width else _padded(row, width, padding) for row in rows]


def _padded(row: Any, width: int, padding: float) -> Any:
    shape = (row.shape[0], width, *row.shape[2:])
    wide = row.new_full(shape, padding) if isinstance(row, torch.Tensor) else np.full(shape, padding, row.dtype)
    wide[:, : row.shape[1]] = row
    return wide
