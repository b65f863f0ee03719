"""Finds what differs between two sides: numbers, weights, files and what is in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .reading import Findings, content, read_weights

if TYPE_CHECKING:
    from torch import Tensor

LOGS, METRICS, WEIGHTS, FILES, CONTENT = "logged numbers", "metrics", "final weights", "files", "contents of files"
GROUPS = (METRICS, LOGS, WEIGHTS, FILES, CONTENT)
"""What is compared, in the order in which it is shown."""
_MISSING = object()


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One place where the sides are not equal."""

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
    """All places of one kind."""

    group: str
    count: int = 0
    differences: list[Difference] = field(default_factory=list)
    tensors: dict[str, float] = field(default_factory=dict)
    """The largest absolute difference of each tensor, of weights alone."""


def compare(reference: Findings, ours: Findings, tolerance: float = 0.0) -> list[Compared]:
    """Compare two sides.

    Args:
        reference: what the reference came to.
        ours: what lightrainer came to.
        tolerance: numbers that differ by no more than this share of the larger one are equal.
    """
    return [
        _values(METRICS, reference.metrics, ours.metrics, tolerance),
        _values(LOGS, reference.logs, ours.logs, tolerance),
        _weights(reference, ours, tolerance),
        _files(reference, ours),
        _contents(reference, ours, tolerance),
    ]


def _values(group: str, left: Mapping[str, Any], right: Mapping[str, Any], tolerance: float) -> Compared:
    found = Compared(group=group, count=len({**left, **right}))
    found.differences = list(_unequal(group, left, right, tolerance))
    return found


def _unequal(group: str, left: Mapping[str, Any], right: Mapping[str, Any], tolerance: float) -> Iterator[Difference]:
    for name in {**left, **right}:
        one, other = left.get(name, _MISSING), right.get(name, _MISSING)
        if one is _MISSING:
            yield Difference(group=group, name=name, lightrainer=other, only_in="lightrainer")
        elif other is _MISSING:
            yield Difference(group=group, name=name, reference=one, only_in="reference")
        elif not _same(one, other, tolerance):
            yield Difference(group=group, name=name, reference=one, lightrainer=other, size=_distance(one, other))


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if one == other or (one != one and other != other):
        return True
    distance = _distance(one, other)
    return distance is not None and distance <= tolerance * max(abs(one), abs(other))


def _distance(one: Any, other: Any) -> float | None:
    if not (_is_number(one) and _is_number(other)):
        return None
    return abs(one - other)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _weights(reference: Findings, ours: Findings, tolerance: float) -> Compared:
    """The models after each training, tensor by tensor."""
    found = Compared(group=WEIGHTS)
    for number, (left, right) in enumerate(zip(reference.weights, ours.weights, strict=False), 1):
        prefix = f"training {number}, " if len(reference.weights) > 1 else ""
        _compare_tensors(found, read_weights(left), read_weights(right), prefix, tolerance)
    if len(reference.weights) != len(ours.weights):
        counts = len(reference.weights), len(ours.weights)
        found.differences.append(_pair("models recorded", WEIGHTS, *counts))
    return found


def _compare_tensors(
    found: Compared, left: Mapping[str, Tensor], right: Mapping[str, Tensor], prefix: str, tolerance: float
) -> None:
    import torch

    for name in {**left, **right}:
        found.count += 1
        place = f"{prefix}{name}"
        if name not in left or name not in right:
            side = "reference" if name in left else "lightrainer"
            found.differences.append(Difference(group=found.group, name=place, only_in=side))
            continue
        one, other = left[name], right[name]
        if one.shape != other.shape or one.dtype != other.dtype:
            left_kind, right_kind = (f"{it.dtype} {list(it.shape)}" for it in (one, other))
            found.differences.append(_pair(place, found.group, left_kind, right_kind))
            continue
        if torch.equal(one, other):
            found.tensors[place] = 0.0
            continue
        one, other = one.double(), other.double()
        size = float((one - other).abs().nan_to_num(nan=math.inf).max())
        same = torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True) if tolerance else False
        found.tensors[place] = size
        if not same:
            found.differences.append(_pair(place, found.group, float(one.norm()), float(other.norm()), size))


def _pair(name: str, group: str, left: Any, right: Any, size: float | None = None) -> Difference:
    return Difference(group=group, name=name, reference=left, lightrainer=right, size=size)


def _files(reference: Findings, ours: Findings) -> Compared:
    names = sorted({*reference.files, *ours.files})
    found = Compared(group=FILES, count=len(names))
    for name in names:
        if name not in ours.files or name not in reference.files:
            side = "reference" if name in reference.files else "lightrainer"
            found.differences.append(Difference(group=FILES, name=name, only_in=side))
    return found


def _contents(reference: Findings, ours: Findings, tolerance: float) -> Compared:
    """Texts place by place and weights tensor by tensor, of the files that both sides wrote."""
    found = Compared(group=CONTENT)
    for name in (name for name in reference.files if name in ours.files):
        if reference.files[name].suffix == ".safetensors":
            found.count += 1
            if not _same_bytes(reference.files[name], ours.files[name]):
                inside = Compared(group=CONTENT)
                pair = [read_weights(side.files[name]) for side in (reference, ours)]
                _compare_tensors(inside, pair[0], pair[1], f"{name} ", tolerance)
                found.differences += inside.differences
            continue
        left, right = content(reference, name), content(ours, name)
        if left is not None and right is not None:
            found.count += 1
            one, other = ({f"{name} {place}": value for place, value in side.items()} for side in (left, right))
            found.differences += _unequal(CONTENT, one, other, tolerance)
    return found


def _same_bytes(one: Path, other: Path) -> bool:
    from filecmp import cmp

    return cmp(one, other, shallow=False)
