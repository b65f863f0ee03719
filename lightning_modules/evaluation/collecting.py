"""Collect the results of an evaluation in time linear in the number of batches."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from ..common.device_copies import to_host
from ..common.nested import leaves, nested_numpify, to_numpy
from .joined_objects import join_objects
from .preallocated_arrays import PreallocatedArray, PreallocatedTree, preallocate


def move_to_host(*collectors: BatchCollector) -> None:
    """Move the pending batches of collectors to the CPU. This synchronizes once a batch.

    Args:
        collectors: the collectors of the parts of the same batches, such as predictions and labels.
    """
    pending = [collector.pop_pending() for collector in collectors]
    while any(pending):
        # Move one batch of each collector at a time, so that its memory on the device is free
        # before the next one is moved.
        parts = [batches.popleft() if batches else None for batches in pending]
        for collector, part in zip(collectors, to_host(parts), strict=True):
            if part is not None:
                collector.keep_on_host(part)


class BatchCollector:
    """Collects the results of an evaluation batch by batch on the CPU.

    Works like `transformers.trainer_pt_utils.EvalLoopContainer`, but in time linear in the number
    of batches. Batches that are already on the CPU and will be joined are written to their final
    place immediately. Others are pending until `to_host` or `result`.

    Args:
        concatenate: True to join the batches into arrays; False to return the list of batches.
        rows: expected number of samples of all batches; None if unknown.
    """

    def __init__(self, concatenate: bool = True, rows: int | None = None) -> None:
        self.concatenate = concatenate
        self.rows = rows
        self._pending: deque[Any] = deque()
        """Batches as they were added, which follow those in `_joined` and `_separate`."""
        self._joined: PreallocatedArray | PreallocatedTree | None = None
        """Batches on the CPU, joined; None before the first one, and without `concatenate`."""
        self._separate: list[Any] = []
        """Batches on the CPU, without `concatenate`."""

    def add(self, batch: object) -> None:
        """Add a batch, which is copied immediately if possible, and pending otherwise."""
        # Check the most frequent case first: another tensor on the CPU.
        is_host_tensor = type(batch) is torch.Tensor and batch.is_cpu
        if is_host_tensor and self._joined is not None and not self._pending:
            self._joined.add(to_numpy(batch))
        elif self.concatenate and _is_on_host(batch):
            # Write pending batches first, to keep the order.
            self.to_host()
            self._write(nested_numpify(batch))
        else:
            self._pending.append(batch)

    def to_host(self) -> None:
        """Move the pending batches to the CPU."""
        move_to_host(self)

    def pop_pending(self) -> deque[object]:
        """Return the pending batches, and clear them."""
        pending = self._pending
        self._pending = deque()
        return pending

    def keep_on_host(self, batch: object) -> None:
        """Keep a batch that `pop_pending` returned, and that was moved to the CPU."""
        batch = nested_numpify(batch)
        if self.concatenate:
            self._write(batch)
        else:
            self._separate.append(batch)

    def _write(self, batch: object) -> None:
        """Append a batch to the joined ones."""
        if self._joined is None:
            self._joined = preallocate(batch, self.rows)
        else:
            self._joined.add(batch)

    def result(self) -> Any:
        """Return all batches as arrays, or their list without `concatenate`, and clear them.

        The result is None if nothing was added.
        """
        self.to_host()
        joined = self._joined
        separate = self._separate
        self._joined = None
        self._separate = []
        if joined is not None:
            return joined.result()
        return separate or None


class LossCollector(BatchCollector):
    """Collects losses of shape (samples,), which are moved to the CPU as one tensor.

    Losses are small, so joining them on their device takes little memory, and moving them
    synchronises once instead of once per batch.
    """

    def pop_pending(self) -> deque[object]:
        """Return the pending losses, joined, and clear them."""
        pending: deque[Any] = super().pop_pending()
        if self.concatenate and pending:
            # A loss gathered by user code may be a scalar.
            losses = [torch.atleast_1d(loss) for loss in pending]
            return deque([torch.cat(losses)])
        return pending


def _is_on_host(value: object) -> bool:
    """Return whether all tensors in a nested batch are on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.is_cpu
    return all(leaf.is_cpu for leaf in leaves(value) if isinstance(leaf, torch.Tensor))


class ObjectCollector(BatchCollector):
    """Collects results of any type.

    Args:
        concatenate: True to join the batches; False to return the list of batches.
    """

    def __init__(self, concatenate: bool = True) -> None:
        # The base class can only join tensors. Join all objects at the end.
        super().__init__(concatenate=False)
        self._joins_at_end = concatenate

    def result(self) -> Any:
        """Return all batches, with arrays instead of tensors, or None if nothing was added."""
        batches = super().result()
        if batches is None or not self._joins_at_end:
            return batches
        return join_objects(batches)
