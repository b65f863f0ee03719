"""Slice the samples of a batch, and join the samples of several batches.

A batch is a tensor, a mapping of columns, or a list or tuple of parts, such as inputs and labels.
A column or part may hold a tensor with a row for each sample, a list with an entry for each sample,
or other values, which belong to the batch as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .nested import count_rows, find_batch_size, mapping_like, sequence_like


def slice_rows(batch: object, start: int, stop: int) -> Any:
    """Return a slice of the samples of a batch, with its other values.

    Args:
        batch: a batch as described in the module docstring.
        start: index of the first sample.
        stop: index after the last one.
    """
    rows = slice(start, stop)
    size = count_rows(batch)
    if not isinstance(batch, (list, tuple)):
        return _sliced(batch, rows, size)

    parts: list[object] = []
    for part in batch:
        parts.append(_sliced(part, rows, size))
    return sequence_like(batch, parts)


def _sliced(value: Any, rows: slice, size: int | None) -> object:
    """Slice a column or part of a batch with `size` samples."""
    if isinstance(value, Mapping):
        columns: dict[Any, object] = {}
        for key, column in value.items():
            columns[key] = _sliced(column, rows, size)
        return mapping_like(value, columns)

    if isinstance(value, (list, tuple)):
        has_entries = _have_entries([value], [size])
        if has_entries:
            return value[rows]
        parts: list[object] = []
        for part in value:
            parts.append(_sliced(part, rows, size))
        return sequence_like(value, parts)

    # Arrays of other lengths belong to the batch as a whole.
    if _is_array(value) and len(value) == size:
        return value[rows]
    return value


def join_rows(batches: Sequence[Any]) -> Any:
    """Join the samples of several batches into one, with the other values of the first batch.

    Args:
        batches: batches of the same structure, at least one.

    Raises:
        ValueError, RuntimeError: parts or rows of the batches do not match.
    """
    sizes = [count_rows(batch) for batch in batches]
    first = batches[0]
    has_parts = isinstance(first, (list, tuple)) and sizes[0] is not None
    if not has_parts:
        return _joined(batches, sizes)

    parts: list[object] = []
    for values in zip(*batches, strict=True):
        parts.append(_joined(values, sizes))
    return sequence_like(first, parts)


def _joined(values: Sequence[Any], sizes: list[int | None]) -> object:
    """Join a column or part of several batches.

    Args:
        values: the value of each batch.
        sizes: the number of samples of each batch.
    """
    first = values[0]
    if isinstance(first, Mapping):
        columns: dict[Any, object] = {}
        for key in first:
            column = [value[key] for value in values]
            columns[key] = _joined(column, sizes)
        return mapping_like(first, columns)

    if isinstance(first, (list, tuple)):
        # Lists of strings are joined even if they have several entries for each sample.
        are_texts = isinstance(first, list) and find_batch_size(first) is None
        if are_texts or _have_entries(values, sizes):
            return list(itertools.chain.from_iterable(values))
        joined: list[object] = []
        for parts in zip(*values, strict=True):
            joined.append(_joined(parts, sizes))
        return sequence_like(first, joined)

    if not _is_array(first):
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat(list(values))
    return np.concatenate(values)


def _is_array(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim > 0


def _have_entries(values: Sequence[Sequence[object]], sizes: list[int | None]) -> bool:
    """Return whether lists or tuples have an entry for each sample of their batches.

    If each entry has a row for each sample instead, the entries are parts of the batches.
    """
    lengths = [len(value) for value in values]
    if lengths != sizes:
        return False

    for value, size in zip(values, sizes, strict=True):
        if any(find_batch_size(entry) != size for entry in value):
            return True
    return False
