"""Join and truncate nested structures of samples of several batches or processes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..common.nested import mapping_like, sequence_like
from .preallocated_arrays import PADDING


def join_objects(parts: Sequence[Any]) -> Any:
    """Join nested structures of the same form: concatenate lists, and tensors along dimension 0.

    `accelerate.utils.gather_object` also concatenates lists, but chains the parts of tuples, and
    returns only the keys of dicts. Here each part is joined separately, and tensors stay tensors.
    Shorter rows are padded with `PADDING` on the right of the second dimension.

    Args:
        parts: lists, tensors, arrays, or tuples and dicts of these. Other values are collected in a
            list.
    """
    first = parts[0]
    if isinstance(first, Mapping):
        columns: dict[Any, Any] = {}
        for key in first:
            columns[key] = join_objects([part[key] for part in parts])
        return mapping_like(first, columns)
    if isinstance(first, tuple):
        joined: list[Any] = []
        for same_part in zip(*parts, strict=True):
            joined.append(join_objects(same_part))
        return sequence_like(first, joined)
    if isinstance(first, list):
        return list(itertools.chain.from_iterable(parts))
    # A number, such as a loss, becomes one row.
    if isinstance(first, torch.Tensor):
        tensors = [torch.atleast_1d(part) for part in parts]
        return torch.cat(_pad_to_one_width(tensors))
    if isinstance(first, np.ndarray):
        arrays = [np.atleast_1d(part) for part in parts]
        return np.concatenate(_pad_to_one_width(arrays))
    return list(parts)


def cut_objects(value: Any, count: int) -> object:
    """Return the first `count` samples of a result of `join_objects`."""
    if isinstance(value, Mapping):
        columns: dict[Any, object] = {}
        for key, part in value.items():
            columns[key] = cut_objects(part, count)
        return mapping_like(value, columns)
    if isinstance(value, tuple):
        parts: list[object] = []
        for part in value:
            parts.append(cut_objects(part, count))
        return sequence_like(value, parts)
    return value[:count]


def _pad_to_one_width(batches: list[Any]) -> list[Any]:
    """Pad the second dimension of tensors or arrays to the longest of them."""
    if batches[0].ndim < 2:
        return batches
    width = max(batch.shape[1] for batch in batches)
    return [_padded(batch, width) for batch in batches]


def _padded(batch: Any, width: int) -> object:
    """Pad the second dimension of a tensor or an array to a width."""
    if batch.shape[1] == width:
        return batch
    shape = (batch.shape[0], width, *batch.shape[2:])
    padded: Any
    if isinstance(batch, torch.Tensor):
        padded = batch.new_full(shape, PADDING)
    else:
        padded = np.full(shape, PADDING, batch.dtype)
    padded[:, : batch.shape[1]] = batch
    return padded
