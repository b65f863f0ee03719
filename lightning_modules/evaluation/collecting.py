"""Collectors of the results of an evaluation, whose cost grows linearly with the batches."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..common.device_copies import to_host
from ..common.nested import leaves, mapping_like, nested_numpify, sequence_like, to_numpy
from .preallocated_arrays import PADDING, PreallocatedArray, PreallocatedTree, growing


def move_to_host(*collectors: BatchCollector) -> None:
    """Move the batches that collectors keep on a device to the host's memory.

    This waits for the device once a batch.

    Args:
        collectors: the collectors of the parts of the same batches, such as predictions and labels.
    """
    waiting = [collector.take_waiting() for collector in collectors]
    while any(waiting):
        # Move one batch of each collector at a time, so that its memory on the device is free
        # before the next one is moved.
        parts = [batches.popleft() if batches else None for batches in waiting]
        for collector, part in zip(collectors, to_host(parts), strict=True):
            if part is not None:
                collector.keep_on_host(part)


class BatchCollector:
    """Collect the results of an evaluation, batch by batch, in the host's memory.

    Works like `transformers.trainer_pt_utils.EvalLoopContainer`, but in time linear in the number
    of batches. Batches that are in the host's memory already are written to their final place at
    once.

    Args:
        concatenate: True to join the batches into arrays; False if `result` is to be the list of
            batches.
        rows: expected number of samples of all batches; None if unknown.
    """

    def __init__(self, concatenate: bool = True, rows: int | None = None) -> None:
        self.concatenate = concatenate
        self.rows = rows
        self._on_device: deque[Any] = deque()
        """Batches that are kept on their device."""
        self._joined: PreallocatedArray | PreallocatedTree | None = None
        """Batches in the host's memory, joined."""
        self._separate: list[Any] = []
        """Batches in the host's memory, if they are not to be joined."""

    def add(self, batch: object) -> None:
        """Keep a batch, on its device."""
        # The most frequent case is checked first: another tensor in the host's memory.
        is_host_tensor = type(batch) is torch.Tensor and batch.is_cpu
        if is_host_tensor and self._joined is not None and not self._on_device:
            self._joined.add(to_numpy(batch))
        elif self.concatenate and _is_on_host(batch):
            self.to_host()
            self._write(nested_numpify(batch))
        else:
            self._on_device.append(batch)

    def to_host(self) -> None:
        """Move the batches that were kept so far to the host's memory."""
        move_to_host(self)

    def take_waiting(self) -> deque[object]:
        """Return the batches that are kept on their device, and forget them."""
        waiting = self._on_device
        self._on_device = deque()
        return waiting

    def keep_on_host(self, batch: object) -> None:
        """Keep a batch that `take_waiting` returned, and that was moved to the host's memory."""
        batch = nested_numpify(batch)
        if self.concatenate:
            self._write(batch)
        else:
            self._separate.append(batch)

    def _write(self, batch: object) -> None:
        """Append a batch to the joined ones."""
        if self._joined is None:
            self._joined = growing(batch, self.rows)
        else:
            self._joined.add(batch)

    def result(self) -> Any:
        """Return all batches as arrays, or None if nothing was added."""
        self.to_host()
        joined = self._joined
        separate = self._separate
        self._joined = None
        self._separate = []
        if joined is not None:
            return joined.result()
        return separate or None


class LossCollector(BatchCollector):
    """Collect losses of shape (samples,), which are moved to the host's memory as one tensor.

    Losses are small: joining them on their device takes little memory, and moving them waits for
    the device once instead of once a batch.
    """

    def take_waiting(self) -> deque[object]:
        """Return the losses that are kept on their device, and forget them."""
        waiting: deque[Any] = super().take_waiting()
        if self.concatenate and waiting:
            # A function of the script may gather a single number.
            losses = [torch.atleast_1d(loss) for loss in waiting]
            return deque([torch.cat(losses)])
        return waiting


def _is_on_host(value: object) -> bool:
    """Return whether all tensors in a nested batch are in the host's memory."""
    if isinstance(value, torch.Tensor):
        return value.is_cpu
    return all(leaf.is_cpu for leaf in leaves(value) if isinstance(leaf, torch.Tensor))


def join_objects(parts: Sequence[Any], padding: float = PADDING) -> Any:
    """Join structures of the same form: lists one after the other, tensors along dimension 0.

    `accelerate.utils.gather_object` joins lists in this way, but chains the parts of tuples, and
    returns only the keys of dicts. Here each part is joined separately, and tensors stay tensors.

    Args:
        parts: lists, tensors, arrays, or tuples and dicts of these. Other values are collected in a
            list.
        padding: the value that fills up shorter rows in the second dimension of tensors and arrays,
            on the right.
    """
    first = parts[0]
    if isinstance(first, Mapping):
        columns: dict[Any, Any] = {}
        for key in first:
            columns[key] = join_objects([part[key] for part in parts], padding)
        return mapping_like(first, columns)
    if isinstance(first, tuple):
        joined = [join_objects(same_part, padding) for same_part in zip(*parts, strict=True)]
        return sequence_like(first, joined)
    if isinstance(first, list):
        return list(itertools.chain.from_iterable(parts))
    # A number, such as a loss, becomes one row.
    if isinstance(first, torch.Tensor):
        tensors = [torch.atleast_1d(part) for part in parts]
        return torch.cat(_pad_to_one_width(tensors, padding))
    if isinstance(first, np.ndarray):
        arrays = [np.atleast_1d(part) for part in parts]
        return np.concatenate(_pad_to_one_width(arrays, padding))
    return list(parts)


def cut_objects(value: Any, count: int) -> object:
    """Return the first `count` samples of a result of `join_objects`."""
    if isinstance(value, Mapping):
        columns = {key: cut_objects(part, count) for key, part in value.items()}
        return mapping_like(value, columns)
    if isinstance(value, tuple):
        return sequence_like(value, [cut_objects(part, count) for part in value])
    return value[:count]


class ObjectCollector(BatchCollector):
    """Collect results of any type.

    Args:
        concatenate: True to join the batches; False if `result` is to be the list of batches.
    """

    def __init__(self, concatenate: bool = True) -> None:
        super().__init__(concatenate=False)
        self.joins = concatenate

    def result(self) -> Any:
        """Return all batches, with arrays instead of tensors, or None if nothing was added."""
        batches = super().result()
        if batches is None or not self.joins:
            return batches
        return join_objects(batches)


def _pad_to_one_width(batches: list[Any], padding: float) -> list[Any]:
    """Pad the second dimension of tensors or arrays to the longest of them."""
    if batches[0].ndim < 2:
        return batches
    width = max(batch.shape[1] for batch in batches)
    return [_padded(batch, width, padding) for batch in batches]


def _padded(batch: Any, width: int, padding: float) -> object:
    """Pad the second dimension of a tensor or an array to a width."""
    if batch.shape[1] == width:
        return batch
    shape = (batch.shape[0], width, *batch.shape[2:])
    padded: Any
    if isinstance(batch, torch.Tensor):
        padded = batch.new_full(shape, padding)
    else:
        padded = np.full(shape, padding, batch.dtype)
    padded[:, : batch.shape[1]] = batch
    return padded
