"""Collects what an evaluation produces batch by batch and joins it once, so that the cost grows linearly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

PADDING = -100


def find_batch_size(tensors: Any) -> int | None:
    """As `transformers.trainer_pt_utils.find_batch_size`: length of the first tensor or array in a nested structure."""
    if isinstance(tensors, (torch.Tensor, np.ndarray)):
        return tensors.shape[0] if tensors.ndim else None
    if isinstance(tensors, Mapping):
        tensors = list(tensors.values())
    if isinstance(tensors, (list, tuple)):
        return next((size for part in tensors if (size := find_batch_size(part)) is not None), None)
    return None


def map_nested(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply `function` to every leaf of nested lists, tuples (named ones too) and mappings."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_nested(function, part) for part in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_nested(function, part) for part in value)
    if isinstance(value, Mapping):
        return type(value)({key: map_nested(function, part) for key, part in value.items()})  # type: ignore[call-arg]
    return function(value)


def nested_detach(tensors: Any) -> Any:
    """As `transformers.trainer_pt_utils.nested_detach`."""
    return map_nested(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, tensors)


def nested_numpify(tensors: Any) -> Any:
    """As `transformers.trainer_pt_utils.nested_numpify`: tensors become arrays; bfloat16, unknown to numpy, float32."""
    return map_nested(_to_numpy, tensors)


def join_batches(batches: Sequence[Any], padding: float = PADDING) -> Any:
    """As `nested_concat` over all batches, but each value is copied once.

    Args:
        batches: one nested structure of arrays a batch, all of the same shape but for the first two dimensions.
        padding: fills up shorter rows of the second dimension, on the right.

    Returns:
        The same structure, with arrays over all samples.

    Raises:
        TypeError: batches differ in structure.
    """
    first = batches[0]
    _require_alike(batches)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(join_batches(parts, padding) for parts in zip(*batches, strict=True)))
    if isinstance(first, (list, tuple)):
        return type(first)(join_batches(parts, padding) for parts in zip(*batches, strict=True))
    if isinstance(first, Mapping):
        joined = {key: join_batches([batch[key] for batch in batches], padding) for key in first}
        return type(first)(joined)  # type: ignore[call-arg]
    if not isinstance(first, np.ndarray):
        raise TypeError(
            f"Predictions of type {type(first).__name__} cannot be joined: expected tensors, or nested lists, tuples "
            "or dicts of tensors. Leave them out with `ignore_keys`, or set `eval_do_concat_batches=False`."
        )
    return _join_arrays([np.atleast_1d(array) for array in batches], padding)


class BatchCollector:
    """As `transformers.trainer_pt_utils.EvalLoopContainer`, but linear in the number of batches.

    Args:
        concatenate: join the batches into one array each; otherwise `result` is the list of batches.
    """

    def __init__(self, concatenate: bool = True) -> None:
        self.concatenate = concatenate
        self._on_device: list[Any] = []
        self._on_host: list[Any] = []

    def add(self, batch: Any) -> None:
        """Keep a batch, on its device."""
        self._on_device.append(batch)

    def to_host(self) -> None:
        """Move what was kept so far to the host's memory."""
        self._on_host += [nested_numpify(batch) for batch in self._on_device]
        self._on_device = []

    def result(self) -> Any:
        """All of it as arrays, or None if nothing was added."""
        self.to_host()
        batches, self._on_host = self._on_host, []
        if not batches:
            return None
        return join_batches(batches) if self.concatenate else batches


def _require_alike(batches: Sequence[Any]) -> None:
    first = batches[0]
    shape = _structure(first)
    for index, batch in enumerate(batches):
        if type(batch) is not type(first) or _structure(batch) != shape:
            raise TypeError(
                f"Predictions of batch {index} cannot be joined with those of batch 0: it has {_described(batch)}, the "
                f"first one {_described(first)}. Set `eval_do_concat_batches=False` to get them batch by batch."
            )


def _structure(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return set(batch)
    return len(batch) if isinstance(batch, (list, tuple)) else None


def _described(batch: Any) -> str:
    parts = _structure(batch)
    return f"a {type(batch).__name__}" + ("" if parts is None else f" of {parts}")


def _join_arrays(arrays: list[np.ndarray], padding: float) -> np.ndarray:
    first = arrays[0]
    if first.ndim == 1 or all(array.shape[1] == first.shape[1] for array in arrays):
        return np.concatenate(arrays, axis=0)
    rows, width = sum(len(array) for array in arrays), max(array.shape[1] for array in arrays)
    joined = np.full_like(first, padding, shape=(rows, width, *first.shape[2:]))
    start = 0
    for array in arrays:
        joined[start : start + len(array), : array.shape[1]] = array
        start += len(array)
    return joined


def _to_numpy(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach().cpu()
    return (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy()
