"""From lists to tensors or arrays, and back."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from .names import TensorType


def as_kind(values: Any, kind: TensorType, name: str) -> Any:
    """A column as a tensor or array; empty ones are of type int64, arrays of rows of different lengths of type object.

    Args:
        values: nested lists, or what is a tensor (an array) already.
        kind: which of both.
        name: of the column, for the error.

    Raises:
        ValueError: its rows have different lengths, or it does not hold numbers.
    """
    make = _array if kind == TensorType.NUMPY else _tensor
    try:
        return make(values)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise _column_error(values, name, error) from error


def check_tensor_type(kind: str | TensorType) -> TensorType:
    """`return_tensors` as its enum.

    Raises:
        ValueError: it is not known, or MLX.
    """
    found = TensorType(getattr(kind, "value", kind))
    if found == TensorType.MLX:
        raise ValueError("`return_tensors` is 'mlx', but only 'pt' (torch) and 'np' (numpy) can be made here.")
    return found


def _tensor(values: Any) -> Any:
    import torch

    if isinstance(values, torch.Tensor):
        return values
    if isinstance(values, list) and values and isinstance(values[0], np.ndarray):
        return torch.from_numpy(np.array(values))
    return torch.tensor(values, dtype=torch.int64 if _is_empty(values) else None)


def _array(values: Any) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    if _is_ragged(values):
        return np.asarray([np.asarray(row) for row in values], dtype=object)
    return np.asarray(values, dtype=np.int64 if _is_empty(values) else None)


def _is_ragged(values: Any) -> bool:
    rows = (list, tuple, np.ndarray)
    if not (isinstance(values, (list, tuple)) and values and isinstance(values[0], rows)):
        return False
    return len({len(row) for row in values}) > 1


def _is_empty(values: Any) -> bool:
    """Whether there is not a single number in it."""
    if not isinstance(values, (list, tuple)):
        return False
    return all(isinstance(value, (list, tuple)) and _is_empty(value) for value in values)


def _column_error(values: Any, name: str, error: Exception) -> ValueError:
    lengths = [len(row) for row in values if isinstance(row, (list, tuple))] if isinstance(values, list) else []
    if len(set(lengths)) > 1:
        return ValueError(
            f"The column {name!r} cannot be made into one tensor, since its rows differ in length: "
            f"{', '.join(map(str, lengths[:8]))}. Pass `padding=True`, and `truncation=True` where a row may be too "
            "long, or leave out `return_tensors`."
        )
    return ValueError(
        f"The column {name!r} cannot be made into one tensor ({type(error).__name__}: {error}). Its values should be "
        "numbers, or lists of numbers of one length."
    )


def as_lists(values: Any) -> Any:
    """As `transformers.utils.to_py_obj`: tensors and arrays anywhere in it become lists of plain numbers."""
    if isinstance(values, (int, float, str)) or values is None:
        return values
    if isinstance(values, Mapping):
        return {key: as_lists(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        if all(isinstance(value, (int, float, np.number)) for value in values):
            return list(values)
        return [as_lists(value) for value in values]
    return values.tolist() if hasattr(values, "tolist") else values


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of torch; without loading torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
