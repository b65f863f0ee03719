"""Samples of a batch: cut some out of it, and join those of several batches.

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
    """Return some samples of a batch, and its other values.

    Args:
        batch: see the module.
        start: index of the first sample.
        stop: index after the last one.
    """
    rows = slice(start, stop)
    size = count_rows(batch)
    if isinstance(batch, (list, tuple)):
        return sequence_like(batch, [_sliced(part, rows, size) for part in batch])
    return _sliced(batch, rows, size)


def _sliced(value: Any, rows: slice, size: int | None) -> object:
    """Return some samples of a column or part of a batch with `size` samples."""
    if isinstance(value, Mapping):
        items = {key: _sliced(item, rows, size) for key, item in value.items()}
        return mapping_like(value, items)
    if isinstance(value, (list, tuple)):
        if _have_entries([value], [size]):
            return value[rows]
        return sequence_like(value, [_sliced(part, rows, size) for part in value])
    if _is_array(value) and len(value) == size:
        return value[rows]
    return value


def join_rows(batches: Sequence[Any]) -> Any:
    """Return the samples of several batches as one, with the other values of the first.

    Args:
        batches: batches of the same structure, at least one.

    Raises:
        ValueError, RuntimeError: parts or rows of the batches do not match.
    """
    sizes = [count_rows(batch) for batch in batches]
    first = batches[0]
    if isinstance(first, (list, tuple)) and sizes[0] is not None:
        parts = [_joined(values, sizes) for values in zip(*batches, strict=True)]
        return sequence_like(first, parts)
    return _joined(batches, sizes)


def _joined(values: Sequence[Any], sizes: list[int | None]) -> object:
    """Join a column or part of several batches.

    Args:
        values: the value of each batch.
        sizes: the number of samples of each batch.
    """
    first = values[0]
    if isinstance(first, Mapping):
        columns = {key: _joined([value[key] for value in values], sizes) for key in first}
        return mapping_like(first, columns)
    if isinstance(first, (list, tuple)):
        # Lists of texts are joined also if they have several for each sample.
        are_texts = isinstance(first, list) and find_batch_size(first) is None
        if are_texts or _have_entries(values, sizes):
            return list(itertools.chain.from_iterable(values))
        parts = [_joined(parts, sizes) for parts in zip(*values, strict=True)]
        return sequence_like(first, parts)
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
    if [len(value) for value in values] != sizes:
        return False
    for value, size in zip(values, sizes, strict=True):
        if any(find_batch_size(entry) != size for entry in value):
            return True
    return False
