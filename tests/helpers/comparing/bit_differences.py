"""Finds every place where two results are not the same bits."""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

CLOCK_ENDINGS = ("_runtime", "_per_second", "_model_preparation_time")


def without_clock(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry without what a clock measured, which no two runs share."""
    return {key: value for key, value in entry.items() if not key.endswith(CLOCK_ENDINGS)}


def same_bits(left: Any, right: Any) -> bool:
    """Whether all bits are equal, and mappings have the same type and order, too."""
    return not differences(left, right, strict=True)


def differences(left: Any, right: Any, path: str = "", *, strict: bool = False) -> list[str]:
    """One line for each place where the values differ: in type, shape or in a single bit (NaN
    equals the same NaN).

    Mappings may have another type and order, unless `strict` is set.
    """
    are_mappings = isinstance(left, Mapping) and isinstance(right, Mapping)
    if type(left) is not type(right) and (strict or not are_mappings):
        return [
            f"{path}: {type(left).__name__} {_short(left)} != {type(right).__name__} "
            f"{_short(right)}"
        ]
    if isinstance(left, Mapping):
        return _mapping_differences(left, right, path, strict)
    if isinstance(left, (list, tuple)):
        return _sequence_differences(left, right, path, strict)
    if isinstance(left, torch.Tensor):
        if left.dtype != right.dtype:
            return [f"{path}: {left.dtype} != {right.dtype}"]
        return _array_differences(_as_array(left), _as_array(right), path)
    if isinstance(left, (np.ndarray, np.generic)):
        return _array_differences(np.asarray(left), np.asarray(right), path)
    if isinstance(left, float):
        return (
            []
            if struct.pack("<d", left) == struct.pack("<d", right)
            else [f"{path}: {left!r} != {right!r}"]
        )
    return [] if left == right else [f"{path}: {_short(left)} != {_short(right)}"]


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    """The values, or the bits of a type that NumPy does not have."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return tensor.numpy()


def _mapping_differences(left: Mapping, right: Mapping, path: str, strict: bool) -> list[str]:
    messages = [
        f"{path}.{key}: only on the left ({_short(left[key])})" for key in left if key not in right
    ]
    messages += [
        f"{path}.{key}: only on the right ({_short(right[key])})"
        for key in right
        if key not in left
    ]
    for key in left:
        if key in right:
            messages += differences(left[key], right[key], f"{path}.{key}", strict=strict)
    if strict and not messages and list(left) != list(right):
        messages.append(f"{path}: order {list(left)} != {list(right)}")
    return messages


def _sequence_differences(left: Any, right: Any, path: str, strict: bool = False) -> list[str]:
    messages = []
    for index, (left_item, right_item) in enumerate(zip(left, right, strict=False)):
        messages += differences(left_item, right_item, f"{path}[{index}]", strict=strict)
    if len(left) != len(right):
        first = min(len(left), len(right))
        extra = left[first] if len(left) > first else right[first]
        messages.append(
            f"{path}: length {len(left)} != {len(right)}, the first one more is {_short(extra)}"
        )
    return messages


def _array_differences(left: np.ndarray, right: np.ndarray, path: str) -> list[str]:
    if left.dtype != right.dtype or left.shape != right.shape:
        return [f"{path}: {left.dtype}{list(left.shape)} != {right.dtype}{list(right.shape)}"]
    if left.tobytes() == right.tobytes():
        return []
    if left.dtype == object:
        return _sequence_differences(left.tolist(), right.tolist(), path)
    width = left.dtype.itemsize
    bits = [
        np.ascontiguousarray(side).reshape(-1).view(np.uint8).reshape(-1, width)
        for side in (left, right)
    ]
    differing = np.flatnonzero((bits[0] != bits[1]).any(axis=1))
    first = int(differing[0])
    left_value, right_value = left.reshape(-1)[first], right.reshape(-1)[first]
    return [
        f"{path}: {len(differing)} of {left.size} values differ, the first at {first}: "
        f"{left_value!r} != {right_value!r}"
    ]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "..."
