"""Compare results to the last bit."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def same(left: Any, right: Any) -> bool:
    """Equal values of equal types, dtypes, shapes and order, also inside of containers."""
    if isinstance(left, torch.Tensor):
        return (
            isinstance(right, torch.Tensor)
            and left.dtype == right.dtype
            and torch.equal(left, right)
        )
    if isinstance(left, np.ndarray):
        alike = isinstance(right, np.ndarray) and (left.dtype, left.shape) == (
            right.dtype,
            right.shape,
        )
        return alike and left.tobytes() == right.tobytes()
    if type(left) is not type(right):
        return False
    if isinstance(left, Mapping):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right
