"""Predictions that are not all tensors: lists with something for each sample, in tuples and dicts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .collecting import mapping_like, nested_numpify

__all__ = ["ObjectCollector", "cut_objects", "join_objects"]

PADDING = -100


def join_objects(parts: Sequence[Any], padding: float = PADDING) -> Any:
    """One structure of several alike ones: their lists one after the other, tensors along the first dimension.

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
        joined = (join_objects(same, padding) for same in zip(*parts, strict=True))
        return type(first)(*joined) if hasattr(first, "_fields") else tuple(joined)
    if isinstance(first, list):
        return list(itertools.chain.from_iterable(parts))
    if isinstance(first, torch.Tensor):
        return torch.cat(_of_one_width([torch.atleast_1d(part) for part in parts], padding))
    if isinstance(first, np.ndarray):
        return np.concatenate(_of_one_width([np.atleast_1d(part) for part in parts], padding))
    return list(parts)


def cut_objects(value: Any, count: int) -> Any:
    """The first `count` samples of what `join_objects` gives."""
    if isinstance(value, Mapping):
        return mapping_like(value, {key: cut_objects(part, count) for key, part in value.items()})
    if isinstance(value, tuple):
        parts = (cut_objects(part, count) for part in value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
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
        self._batches[self._on_host :] = [nested_numpify(batch) for batch in self._batches[self._on_host :]]
        self._on_host = len(self._batches)

    def result(self) -> Any:
        """All of it, with arrays in place of tensors, or None if nothing was added."""
        self.to_host()
        batches, self._batches, self._on_host = self._batches, [], 0
        if not batches:
            return None
        return join_objects(batches) if self.concatenate else batches


def _of_one_width(rows: list[Any], padding: float) -> list[Any]:
    """Tensors or arrays whose second dimension is as long as the longest of them."""
    if rows[0].ndim < 2:
        return rows
    width = max(row.shape[1] for row in rows)
    return [row if row.shape[1] == width else _padded(row, width, padding) for row in rows]


def _padded(row: Any, width: int, padding: float) -> Any:
    shape = (row.shape[0], width, *row.shape[2:])
    make: Callable[..., Any] = row.new_full if isinstance(row, torch.Tensor) else _like(row)
    wide = make(shape, padding)
    wide[:, : row.shape[1]] = row
    return wide


def _like(row: np.ndarray) -> Callable[..., np.ndarray]:
    return lambda shape, fill: np.full(shape, fill, dtype=row.dtype)
