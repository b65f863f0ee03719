"""Differences between two sides: in numbers, weights, files and the contents of files."""

from __future__ import annotations

import filecmp
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .findings import Findings, read_text_file, read_weights

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
    """The side that has the value, if the other one does not have it."""
    size: float | None = None
    """The largest absolute difference; None for values that are not numbers."""


@dataclass(kw_only=True)
class Comparison:
    """The comparison of all values of one kind."""

    group: str
    count: int = 0
    """Number of values compared.

    For the contents of files it counts lines, values in JSON and tensors; a file of equal weights
    counts once.
    """
    differences: list[Difference] = field(default_factory=list)


def compare(reference: Findings, lightrainer: Findings, tolerance: float = 0.0) -> list[Comparison]:
    """Compare two sides.

    Args:
        reference: the side of transformers.
        lightrainer: the side of lightrainer.
        tolerance: relative tolerance of numbers.

    Returns:
        a comparison for each of `GROUPS`.
    """
    pairs: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
        (METRICS, reference.metrics, lightrainer.metrics),
        (LOGS, reference.logs, lightrainer.logs),
        (WEIGHTS, _weights(reference), _weights(lightrainer)),
        (FILES, _file_names(reference), _file_names(lightrainer)),
    ]
    comparisons = [_compare_values(*pair, tolerance) for pair in pairs]
    return [*comparisons, _compare_contents(reference, lightrainer, tolerance)]


def _file_names(side: Findings) -> dict[str, str]:
    """Return the names of the files as values to compare: the value of each says that it exists."""
    return dict.fromkeys(sorted(side.files), "exists")


def _weights(side: Findings) -> dict[str, Any]:
    """Return the tensors of the models after each training, by training and name."""
    tensors: dict[str, Any] = {}
    for number, path in enumerate(side.weights, 1):
        prefix = ""
        if number > 1:
            prefix = f"training {number}, "
        for name, tensor in read_weights(path).items():
            tensors[prefix + name] = tensor
    return tensors


def _compare_contents(reference: Findings, lightrainer: Findings, tolerance: float) -> Comparison:
    """Compare the files that both sides have: lines, values in JSON, and tensors of weights."""
    comparison = Comparison(group=CONTENT)
    for name, path in reference.files.items():
        if name not in lightrainer.files:
            continue

        # Files of weights are large and mostly equal, so they are read only if they differ.
        lightrainer_path = lightrainer.files[name]
        if path.suffix != ".safetensors":
            left = read_text_file(reference, name)
            right = read_text_file(lightrainer, name)
        elif filecmp.cmp(path, lightrainer_path, shallow=False):
            left = {}
            right = {}
        else:
            left = read_weights(path)
            right = read_weights(lightrainer_path)
        if left is None or right is None:
            continue

        of_file = _compare_values(
            CONTENT, _with_prefix(name, left), _with_prefix(name, right), tolerance
        )
        comparison.count += max(of_file.count, 1)
        comparison.differences += of_file.differences
    return comparison


def _with_prefix(prefix: str, values: Mapping[str, object]) -> dict[str, object]:
    return {f"{prefix} {name}": value for name, value in values.items()}


def _compare_values(
    group: str, left: Mapping[str, Any], right: Mapping[str, Any], tolerance: float
) -> Comparison:
    """Compare values by name; left is the reference, right is lightrainer."""
    comparison = Comparison(group=group)
    # In the order of the reference, followed by what only lightrainer has.
    for name in {**left, **right}:
        comparison.count += 1
        if name not in right:
            difference = Difference(
                group=group, name=name, reference=left[name], only_in="reference"
            )
        elif name not in left:
            difference = Difference(
                group=group, name=name, lightrainer=right[name], only_in="lightrainer"
            )
        elif hasattr(left[name], "dtype") and hasattr(right[name], "dtype"):
            difference = _compare_tensors(group, name, left[name], right[name], tolerance)
        else:
            difference = _compare_scalars(group, name, left[name], right[name], tolerance)
        if difference is not None:
            comparison.differences.append(difference)
    return comparison


def _compare_scalars(
    group: str, name: str, left: Any, right: Any, tolerance: float
) -> Difference | None:
    """Compare two numbers or texts; None if they are equal."""
    both_nan = left != left and right != right
    if left == right or both_nan:
        return None
    size = None
    if _is_finite_number(left) and _is_finite_number(right):
        size = abs(left - right)
        if size <= tolerance * max(abs(left), abs(right)):
            return None
    return Difference(group=group, name=name, reference=left, lightrainer=right, size=size)


def _compare_tensors(
    group: str, name: str, left: Tensor, right: Tensor, tolerance: float
) -> Difference | None:
    """Compare two tensors; None if they are equal. A difference has their norms."""
    import torch

    if left.shape != right.shape or left.dtype != right.dtype:
        return Difference(
            group=group,
            name=name,
            reference=f"{left.dtype} {list(left.shape)}",
            lightrainer=f"{right.dtype} {list(right.shape)}",
        )
    if torch.equal(left, right):
        return None

    # In float64, so that the comparison itself does not round.
    left = left.double()
    right = right.double()
    if tolerance and torch.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    distance = (left - right).abs().nan_to_num(nan=math.inf)
    return Difference(
        group=group,
        name=name,
        reference=float(left.norm()),
        lightrainer=float(right.norm()),
        size=float(distance.max()),
    )


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)
