"""Lengths of datasets and of their samples."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..common.libraries import is_instance


def sample_lengths(
    dataset: Any, column: str, *, length_argument: str = "length_column_name"
) -> np.ndarray:
    """Return the length of one column in each sample.

    Args:
        dataset: map-style, its samples are mappings.
        column: name of the column to measure.
        length_argument: which argument names a column of lengths, for the error.

    Raises:
        ValueError: when the first sample is no mapping or has no such column.
    """
    if not len(dataset):
        return np.zeros(0, np.int32)
    first = dataset[0]
    if not isinstance(first, Mapping) or column not in first:
        seen = (
            f"the columns {list(first)}"
            if isinstance(first, Mapping)
            else f"the type {type(first).__name__}"
        )
        raise ValueError(
            f"Grouping by length needs a column {column!r}, or lengths in one "
            f"(`{length_argument}`); the first sample has {seen}."
        )
    lengths = _arrow_lengths(dataset, column)
    if lengths is not None:
        return lengths
    # Without `__iter__` an IndexError anywhere in a dataset would end a loop over it, and many
    # raise none at their end.
    if hasattr(type(dataset), "__iter__"):
        samples = itertools.islice(dataset, len(dataset))
    else:
        samples = (dataset[index] for index in range(len(dataset)))
    return np.fromiter((len(sample[column]) for sample in samples), np.int32, count=len(dataset))


def column_lengths(dataset: Any, column: str) -> np.ndarray | None:
    """Return the lengths that a `datasets.Dataset` has in a column of its own; None without such a
    column.

    Args:
        dataset: of any kind.
        column: name of the column.

    Raises:
        ValueError: when a value is missing.
    """
    if not is_table(dataset) or column not in dataset.column_names:
        return None
    values = _arrow_column(dataset, column)
    if values.null_count:
        raise ValueError(
            f"The column {column!r} of lengths lacks {values.null_count} of {len(values)} values. "
            "Fill or remove it."
        )
    return np.concatenate(
        [length_array(chunk.to_numpy(zero_copy_only=False)) for chunk in values.chunks]
    )


def _arrow_lengths(dataset: Any, column: str) -> np.ndarray | None:
    """Read the lengths from the table of a `datasets.Dataset`; None without one, or where a
    transform makes samples.
    """
    if (
        not is_table(dataset)
        or dataset.format["type"] == "custom"
        or column not in dataset.column_names
    ):
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    values = _arrow_column(dataset, column)
    kinds = (pa.types.is_list, pa.types.is_large_list)
    if values.null_count or not any(kind(values.type) for kind in kinds):
        return None
    functions: Any = pc  # it makes them when it is imported
    return functions.list_value_length(values).to_numpy()


def is_table(dataset: Any) -> bool:
    """Return whether a dataset is a `datasets.Dataset`, without importing the library."""
    return is_instance(dataset, "datasets", "Dataset")


def _arrow_column(dataset: Any, column: str) -> Any:
    return dataset.with_format("arrow").select_columns([column])[:].column(column)


class LengthCache:
    """Lengths of the few datasets that were measured last, by object and number of samples."""

    def __init__(self) -> None:
        self._entries: deque[tuple[Any, Any, int, Any]] = deque(maxlen=4)

    def get(self, dataset: Any, key: Any, measure: Callable[[], Any]) -> Any:
        """Return the lengths of a dataset, measuring them on a miss.

        Args:
            dataset: has a length.
            key: what else the lengths depend on, such as the name of a column.
            measure: finds them out.
        """
        for known, of, samples, lengths in self._entries:
            if known is dataset and of == key and samples == len(dataset):
                return lengths
        lengths = measure()
        self._entries.append((dataset, key, len(dataset), lengths))
        return lengths


def has_length(dataset: Any) -> bool:
    """As `transformers.trainer_utils.has_length`: whether `len()` works."""
    try:
        return len(dataset) is not None
    except (TypeError, AttributeError, NotImplementedError):
        return False


def why_without_length(dataset: Any) -> str:
    """Return the error of a `__len__`, in parentheses, as it may be a mistake; empty for a
    dataset without one.
    """
    if not hasattr(type(dataset), "__len__"):
        return ""
    try:
        len(dataset)
    except Exception as error:
        return f" (its __len__ raised {type(error).__name__}: {error})"
    return ""


def length_array(lengths: Sequence[int] | np.ndarray | torch.Tensor) -> np.ndarray:
    """Return lengths as an array, of 4 bytes each if they are integers and fit; signed, so that
    they can be negated.
    """
    array = lengths.numpy(force=True) if isinstance(lengths, torch.Tensor) else np.asarray(lengths)
    if array.dtype.kind not in "biu":
        return array
    return array.astype(np.int32 if array.max(initial=0) < 2**31 else np.int64, copy=False)
