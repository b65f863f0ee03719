"""Pad, concatenate and truncate tensors and arrays nested in lists, tuples and mappings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch

from ...lightning_modules.common.nested import find_batch_size, map_nested, mapping_like, nested_detach, nested_numpify

__all__ = [
    "EvalLoopContainer",
    "atleast_1d",
    "expand_like",
    "find_batch_size",
    "nested_concat",
    "nested_detach",
    "nested_new_like",
    "nested_numpify",
    "nested_truncate",
    "numpy_pad_and_concatenate",
    "torch_pad_and_concatenate",
]


def atleast_1d(tensor_or_array: Any) -> Any:
    """As `transformers.trainer_pt_utils.atleast_1d`: turn a number into a vector of one."""
    return (torch if isinstance(tensor_or_array, torch.Tensor) else np).atleast_1d(tensor_or_array)


def torch_pad_and_concatenate(tensor1: torch.Tensor, tensor2: torch.Tensor, padding_index: int = -100) -> torch.Tensor:
    """As `transformers.trainer_pt_utils.torch_pad_and_concatenate`: one after the other, the shorter one padded.

    Args:
        tensor1: of shape (samples, length, ...), (samples,) or ().
        tensor2: of such a shape too; only `samples` and `length` may differ.
        padding_index: fills up `length`.
    """
    first, second = atleast_1d(tensor1), atleast_1d(tensor2)
    if first.ndim == 1 or first.shape[1] == second.shape[1]:
        return torch.cat((first, second))
    return _joined(first, second, lambda shape: first.new_full(shape, padding_index))


def numpy_pad_and_concatenate(array1: np.ndarray, array2: np.ndarray, padding_index: int = -100) -> np.ndarray:
    """As `transformers.trainer_pt_utils.numpy_pad_and_concatenate`; see `torch_pad_and_concatenate`."""
    first, second = atleast_1d(array1), atleast_1d(array2)
    if first.ndim == 1 or first.shape[1] == second.shape[1]:
        return np.concatenate((first, second))
    return _joined(first, second, lambda shape: np.full_like(first, padding_index, shape=shape))


def _joined(first: Any, second: Any, empty: Callable[[tuple[int, ...]], Any]) -> Any:
    samples = len(first)
    result = empty((samples + len(second), max(first.shape[1], second.shape[1]), *first.shape[2:]))
    result[:samples, : first.shape[1]] = first
    result[samples:, : second.shape[1]] = second
    return result


def nested_concat(tensors: Any, new_tensors: Any, padding_index: int = -100) -> Any:
    """As `transformers.trainer_pt_utils.nested_concat`: each tensor or array followed by its new part.

    Raises:
        AssertionError: The two are not of the same type.
        TypeError: A leaf is neither a tensor nor an array.
    """
    both = isinstance(tensors, torch.Tensor) and isinstance(new_tensors, torch.Tensor)
    if not both and type(tensors) is not type(new_tensors):
        raise AssertionError(f"{type(tensors)} and {type(new_tensors)} cannot be joined: they are not of one type.")
    if isinstance(tensors, (list, tuple)):
        pairs = zip(tensors, new_tensors, strict=False)
        return type(tensors)(nested_concat(old, new, padding_index) for old, new in pairs)
    if isinstance(tensors, Mapping):
        joined = {key: nested_concat(old, new_tensors[key], padding_index) for key, old in tensors.items()}
        return mapping_like(tensors, joined)
    if isinstance(tensors, torch.Tensor):
        return torch_pad_and_concatenate(tensors, new_tensors, padding_index)
    if isinstance(tensors, np.ndarray):
        return numpy_pad_and_concatenate(tensors, cast(np.ndarray, new_tensors), padding_index)
    raise TypeError(f"{type(tensors)} cannot be joined: it is neither a tensor nor an array, nor does it hold them.")


def nested_new_like(arrays: Any, num_samples: int, padding_index: int = -100) -> Any:
    """As `transformers.trainer_pt_utils.nested_new_like`: make arrays of `num_samples` rows of `padding_index`.

    As in the reference, arrays inside a list or a tuple are filled with -100, whatever `padding_index` is.
    """
    if isinstance(arrays, (list, tuple)):
        return type(arrays)(nested_new_like(array, num_samples) for array in arrays)
    return np.full_like(arrays, padding_index, shape=(num_samples, *arrays.shape[1:]))


def expand_like(arrays: np.ndarray, new_seq_length: int, padding_index: int = -100) -> np.ndarray:
    """As `transformers.trainer_pt_utils.expand_like`: pad along the second axis."""
    missing = [(0, 0), (0, new_seq_length - arrays.shape[1])] + [(0, 0)] * (arrays.ndim - 2)
    return np.pad(arrays, missing, constant_values=padding_index)


def nested_truncate(tensors: Any, limit: int) -> Any:
    """As `transformers.trainer_pt_utils.nested_truncate`: keep the first `limit` samples of each leaf."""
    return map_nested(lambda value: value[:limit], tensors)


class EvalLoopContainer:
    """As `transformers.trainer_pt_utils.EvalLoopContainer`: gather batches, and convert them to arrays on demand.

    Args:
        do_nested_concat: join the batches; otherwise they are kept as a list.
        padding_index: fills up shorter ones.
    """

    def __init__(self, do_nested_concat: bool = True, padding_index: int = -100) -> None:
        self.do_nested_concat = do_nested_concat
        self.padding_index = padding_index
        self.tensors: Any = None
        self.arrays: Any = None

    def add(self, tensors: Any) -> None:
        """Append a batch."""
        self.tensors = self._with(self.tensors, tensors if self.do_nested_concat else [tensors])

    def to_cpu_and_numpy(self) -> None:
        """Convert the appended batches to arrays in main memory."""
        if self.tensors is not None:
            self.arrays = self._with(self.arrays, nested_numpify(self.tensors))
            self.tensors = None

    def get_arrays(self) -> Any:
        """Return all batches as arrays; None if there are none."""
        self.to_cpu_and_numpy()
        return self.arrays

    def _with(self, old: Any, new: Any) -> Any:
        if old is None:
            return new
        return nested_concat(old, new, self.padding_index) if self.do_nested_concat else [*old, *new]
