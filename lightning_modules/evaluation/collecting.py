"""Collects what an evaluation produces batch by batch and joins it once, so that the cost grows linearly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from .preallocated_arrays import PreallocatedArray, PreallocatedTree, growing


def find_batch_size(tensors: Any) -> int | None:
    """As `transformers.trainer_pt_utils.find_batch_size`: length of the first tensor or array in a nested structure."""
    if isinstance(tensors, (torch.Tensor, np.ndarray)):
        return tensors.shape[0] if tensors.ndim else None
    if isinstance(tensors, Mapping):
        tensors = list(tensors.values())
    if isinstance(tensors, (list, tuple)):
        return next((size for part in tensors if (size := find_batch_size(part)) is not None), None)
    return None


def mapping_like(original: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """The items in a mapping of the same class as another one: it can be made of a mapping, as a dict can."""
    kind: Any = type(original)
    return kind(items)


def map_nested(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply `function` to every leaf of nested lists, tuples (named ones too) and mappings."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_nested(function, part) for part in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_nested(function, part) for part in value)
    if isinstance(value, Mapping):
        return mapping_like(value, {key: map_nested(function, part) for key, part in value.items()})
    return function(value)


def nested_detach(tensors: Any) -> Any:
    """As `transformers.trainer_pt_utils.nested_detach`."""
    return map_nested(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, tensors)


def nested_numpify(tensors: Any) -> Any:
    """As `transformers.trainer_pt_utils.nested_numpify`: tensors become arrays; bfloat16, unknown to numpy, float32."""
    return map_nested(_to_numpy, tensors)


class BatchCollector:
    """As `transformers.trainer_pt_utils.EvalLoopContainer`, but linear in the number of batches, and without a copy.

    What is in the host's memory already is written to its final place at once.

    Args:
        concatenate: join the batches into one array each; otherwise `result` is the list of batches.
        rows: how many samples are expected in all, None if that is unknown.
    """

    def __init__(self, concatenate: bool = True, rows: int | None = None) -> None:
        self.concatenate = concatenate
        self.rows = rows
        self._on_device: list[Any] = []
        self._joined: PreallocatedArray | PreallocatedTree | None = None
        self._apart: list[Any] = []

    def add(self, batch: Any) -> None:
        """Keep a batch, on its device."""
        self._on_device.append(batch)
        if self.concatenate and _is_on_host(batch):
            self.to_host()

    def to_host(self) -> None:
        """Move what was kept so far to the host's memory."""
        waiting, self._on_device = self._on_device[::-1], []
        while waiting:
            batch = nested_numpify(waiting.pop())
            if not self.concatenate:
                self._apart.append(batch)
            elif self._joined is None:
                self._joined = growing(batch, self.rows)
            else:
                self._joined.add(batch)

    def result(self) -> Any:
        """All of it as arrays, or None if nothing was added."""
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

    def add(self, loss: torch.Tensor, times: int = 1, rows: int | None = None) -> None:
        """Keep the loss of a batch, on its device.

        Args:
            loss: a number, or several ones.
            times: how often it counts.
            rows: how many values of them all are left; all by default.
        """
        values = loss.numel()
        alike = [values, times, values * times if rows is None else min(rows, values * times)]
        if self._runs and self._runs[-1][:3] == alike:
            self._runs[-1][3] += 1
        else:
            self._runs.append([*alike, 1])
        if (loss.dtype, loss.device) != self._kind:
            self._join_waiting()
            self._kind = (loss.dtype, loss.device)
        if not _is_on_host(loss):
            self._waiting.append(loss.detach().reshape(-1))
        elif values == 1:
            self._waiting.append(loss.item())
        else:
            self._waiting += loss.reshape(-1).tolist()
        if len(self._waiting) >= self._WAITING:
            self._join_waiting()

    def to_host(self) -> None:
        """Move what was kept so far to the host's memory."""
        self._join_waiting()
        self._parts = [torch.cat([part.cpu() for part in self._parts])] if self._parts else []

    def result(self) -> Any:
        """All of it, or None if nothing was added."""
        self.to_host()
        parts, self._parts, runs, self._runs = self._parts, [], self._runs, []
        if not parts:
            return None
        values = _to_numpy(parts[0])
        if self.concatenate and all(count == 1 for count, *_ in runs):
            batches = [batches for *_, batches in runs]
            return np.repeat(values, np.repeat([rows for _, _, rows, _ in runs], batches))
        repeated = list(_repeated(values, runs))
        return np.concatenate(repeated) if self.concatenate else repeated

    def _join_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting and self._kind is not None:
            numbers = not isinstance(waiting[0], torch.Tensor)
            self._parts.append(torch.tensor(waiting, dtype=self._kind[0]) if numbers else torch.cat(waiting))


def _repeated(values: np.ndarray, runs: list[list[int]]) -> Iterator[np.ndarray]:
    """The values of each batch."""
    start = 0
    for count, times, rows, batches in runs:
        for _ in range(batches):
            yield np.tile(values[start : start + count], times)[:rows]
            start += count


def _is_on_host(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu"
    if isinstance(value, Mapping):
        value = list(value.values())
    return all(map(_is_on_host, value)) if isinstance(value, (list, tuple)) else True


def _to_numpy(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach().cpu()
    return (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy()
