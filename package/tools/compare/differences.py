"""Compare the numbers, weights, files and contents of files of two sides."""

from __future__ import annotations

import filecmp
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .results import Results, read_content, read_weights

if TYPE_CHECKING:
    from torch import Tensor

METRICS = "metrics"
LOGS = "logged numbers"
WEIGHTS = "final weights"
FILES = "files"
CONTENT = "contents of files"
MISSING = "(missing)"
"""Shown in reports as the value of a side that lacks a name."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that differs between the sides; `MISSING` for a side without it."""

    name: str
    reference: Any
    lightrainer: Any
    size: float | None = None
    """The largest absolute difference; None for values that are not numbers."""


@dataclass(kw_only=True)
class Comparison:
    """The comparison of all values of one kind."""

    group: str
    count: int = 0
    """Number of values compared; a weights file that is equal on both sides counts once."""
    differences: list[Difference] = field(default_factory=list)

    def add(
        self,
        reference: Mapping[str, Any],
        lightrainer: Mapping[str, Any],
        tolerance: float,
        prefix: str = "",
    ) -> None:
        """Compare values by name.

        Args:
            reference: the values of transformers.
            lightrainer: the values of lightrainer.
            tolerance: relative tolerance of numbers.
            prefix: put before the names of the differences.
        """
        # The names of the reference in its order, then those that only lightrainer has.
        for name in {**reference, **lightrainer}:
            self.count += 1
            left = reference.get(name, MISSING)
            right = lightrainer.get(name, MISSING)
            difference = _compare_values(prefix + name, left, right, tolerance)
            if difference is not None:
                self.differences.append(difference)


def compare(reference: Results, lightrainer: Results, tolerance: float = 0.0) -> list[Comparison]:
    """Compare two sides.

    Args:
        reference: the side of transformers.
        lightrainer: the side of lightrainer.
        tolerance: relative tolerance of numbers.

    Returns:
        a comparison for each kind of value, in the order of the report.
    """
    metrics = Comparison(group=METRICS)
    metrics.add(reference.metrics, lightrainer.metrics, tolerance)
    logs = Comparison(group=LOGS)
    logs.add(reference.logs, lightrainer.logs, tolerance)
    weights = Comparison(group=WEIGHTS)
    weights.add(_all_weights(reference), _all_weights(lightrainer), tolerance)
    files = Comparison(group=FILES)
    files.add(
        dict.fromkeys(reference.files, "exists"), dict.fromkeys(lightrainer.files, "exists"), 0.0
    )
    return [metrics, logs, weights, files, _compare_contents(reference, lightrainer, tolerance)]


def _all_weights(side: Results) -> dict[str, Tensor]:
    """Return the tensors of the models after each training, by training and name."""
    tensors: dict[str, Tensor] = {}
    for label, path in side.weights.items():
        for name, tensor in read_weights(path).items():
            tensors[f"{label}: {name}"] = tensor
    return tensors


def _compare_contents(reference: Results, lightrainer: Results, tolerance: float) -> Comparison:
    """Compare the contents of the files that both sides have."""
    comparison = Comparison(group=CONTENT)
    for name, path in reference.files.items():
        if name not in lightrainer.files:
            continue

        # Weights files are large and mostly equal, so their tensors are read only if they differ.
        is_weights = path.suffix == ".safetensors"
        if is_weights and filecmp.cmp(path, lightrainer.files[name], shallow=False):
            comparison.count += 1
            continue
        left = read_content(reference, name)
        right = read_content(lightrainer, name)
        if left is not None and right is not None:
            comparison.add(left, right, tolerance, f"{name} ")
    return comparison


def _compare_values(name: str, left: Any, right: Any, tolerance: float) -> Difference | None:
    """Return the difference between two values, of which left is the reference; None if equal."""
    if hasattr(left, "dtype") and hasattr(right, "dtype"):
        return _compare_tensors(name, left, right, tolerance)
    both_nan = left != left and right != right
    if left == right or both_nan:
        return None

    size = None
    if _is_finite_number(left) and _is_finite_number(right):
        size = abs(left - right)
        if size <= tolerance * max(abs(left), abs(right)):
            return None
    return Difference(name=name, reference=left, lightrainer=right, size=size)


def _compare_tensors(name: str, left: Tensor, right: Tensor, tolerance: float) -> Difference | None:
    """Return the difference between two tensors, shown by their norms; None if they are equal."""
    import torch

    if left.shape != right.shape or left.dtype != right.dtype:
        return Difference(
            name=name,
            reference=f"{left.dtype} {list(left.shape)}",
            lightrainer=f"{right.dtype} {list(right.shape)}",
        )
    if torch.equal(left, right):
        return None

    # Compare in float64, so that the comparison itself does not round.
    left = left.double()
    right = right.double()
    if tolerance and torch.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    distance = (left - right).abs().nan_to_num(nan=math.inf)
    return Difference(
        name=name,
        reference=float(left.norm()),
        lightrainer=float(right.norm()),
        size=float(distance.max()),
    )


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)
