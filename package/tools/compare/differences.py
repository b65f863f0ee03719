"""Differences between two sides: of numbers, weights, files and their contents."""

from __future__ import annotations

import filecmp
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .findings import Findings, content, read_weights

if TYPE_CHECKING:
    from torch import Tensor

LOGS = "logged numbers"
METRICS = "metrics"
WEIGHTS = "final weights"
FILES = "files"
CONTENT = "contents of files"
GROUPS = (METRICS, LOGS, WEIGHTS, FILES, CONTENT)
"""The kinds of values, in the order in which they are shown."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that differs between the sides."""

    group: str
    name: str
    reference: Any = None
    lightrainer: Any = None
    only_in: str | None = None
    """The side that alone has it."""
    size: float | None = None
    """The largest absolute difference, where there is one."""


@dataclass(kw_only=True)
class Compared:
    """All values of one kind."""

    group: str
    count: int = 0
    """Values compared: in files places of a text and tensors of weights; a file of equal weights
    counts once.
    """
    differences: list[Difference] = field(default_factory=list)


def compare(reference: Findings, ours: Findings, tolerance: float = 0.0) -> list[Compared]:
    """Compare two sides.

    Args:
        reference: the reference.
        ours: lightrainer.
        tolerance: numbers are equal that differ by no more than this share of the larger one.
    """
    files = [dict.fromkeys(sorted(side.files), "there") for side in (reference, ours)]
    return [
        _compared(METRICS, reference.metrics, ours.metrics, tolerance),
        _compared(LOGS, reference.logs, ours.logs, tolerance),
        _compared(WEIGHTS, _weights(reference), _weights(ours), tolerance),
        _compared(FILES, files[0], files[1], tolerance),
        _contents(reference, ours, tolerance),
    ]


def _weights(side: Findings) -> dict[str, Any]:
    """Return the tensors of the models after each training."""
    tensors: dict[str, Any] = {}
    for number, path in enumerate(side.weights, 1):
        prefix = ""
        if number > 1:
            prefix = f"training {number}, "
        for name, tensor in read_weights(path).items():
            tensors[prefix + name] = tensor
    return tensors


def _contents(reference: Findings, ours: Findings, tolerance: float) -> Compared:
    """Compare the files of both sides, texts place by place and weights tensor by tensor."""
    found = Compared(group=CONTENT)
    for name, path in reference.files.items():
        if name not in ours.files:
            continue

        # Read both; files of weights are large, and are mostly equal.
        our_path = ours.files[name]
        if path.suffix != ".safetensors":
            left = content(reference, name)
            right = content(ours, name)
        elif filecmp.cmp(path, our_path, shallow=False):
            left = {}
            right = {}
        else:
            left = read_weights(path)
            right = read_weights(our_path)
        if left is None or right is None:
            continue

        # Compare them place by place.
        inside = _compared(CONTENT, _placed(name, left), _placed(name, right), tolerance)
        found.count += max(inside.count, 1)
        found.differences += inside.differences
    return found


def _placed(file: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a file, with its name before each place."""
    return {f"{file} {place}": value for place, value in values.items()}


def _compared(
    group: str, left: Mapping[str, Any], right: Mapping[str, Any], tolerance: float
) -> Compared:
    found = Compared(group=group)
    for name in {**left, **right}:
        found.count += 1
        if name not in right:
            difference = Difference(
                group=group, name=name, reference=left[name], only_in="reference"
            )
        elif name not in left:
            difference = Difference(
                group=group, name=name, lightrainer=right[name], only_in="lightrainer"
            )
        elif hasattr(left[name], "dtype") and hasattr(right[name], "dtype"):
            difference = _of_tensors(group, name, left[name], right[name], tolerance)
        else:
            difference = _of_values(group, name, left[name], right[name], tolerance)
        if difference is not None:
            found.differences.append(difference)
    return found


def _of_values(group: str, name: str, one: Any, other: Any, tolerance: float) -> Difference | None:
    if one == other or (one != one and other != other):
        return None
    size = abs(one - other) if _is_number(one) and _is_number(other) else None
    if size is not None and size <= tolerance * max(abs(one), abs(other)):
        return None
    return Difference(group=group, name=name, reference=one, lightrainer=other, size=size)


def _of_tensors(
    group: str, name: str, left: Tensor, right: Tensor, tolerance: float
) -> Difference | None:
    import torch

    if left.shape != right.shape or left.dtype != right.dtype:
        left_kind = f"{left.dtype} {list(left.shape)}"
        right_kind = f"{right.dtype} {list(right.shape)}"
        return Difference(group=group, name=name, reference=left_kind, lightrainer=right_kind)
    if torch.equal(left, right):
        return None
    left = left.double()
    right = right.double()
    if tolerance and torch.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    size = float((left - right).abs().nan_to_num(nan=math.inf).max())
    return Difference(
        group=group,
        name=name,
        reference=float(left.norm()),
        lightrainer=float(right.norm()),
        size=size,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
