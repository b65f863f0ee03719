"""Lengths of datasets and of their samples."""

from __future__ import annotations

import importlib
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from ..common.lengths import length_or_none
from ..common.libraries import is_instance


def sample_lengths(
    dataset: Any, column: str, *, length_argument: str = "length_column_name"
) -> np.ndarray:
    """Return the length of a column in each sample.

    Args:
        dataset: a map-style dataset whose samples are mappings.
        column: name of the column to measure.
        length_argument: the argument that names a column of lengths, for the error message.

    Raises:
        ValueError: the first sample is not a mapping, or does not have the column.
    """
    count = len(dataset)
    if count == 0:
        return np.zeros(0, np.int32)
    _require_column(dataset[0], column, length_argument)
    lengths = _arrow_lengths(dataset, column)
    if lengths is not None:
        return lengths

    # Without `__iter__`, iterate by index: Python's fallback iteration ends at any IndexError
    # raised in the dataset, and many datasets do not raise one at their end.
    kind = type(cast(object, dataset))
    samples = (dataset[index] for index in range(count))
    if hasattr(kind, "__iter__"):
        samples = itertools.islice(dataset, count)
    return np.fromiter((len(sample[column]) for sample in samples), np.int32, count=count)


def _require_column(sample: object, column: str, length_argument: str) -> None:
    """Check that a sample is a mapping with a column.

    Raises:
        ValueError: the sample is not a mapping, or does not have the column.
    """
    if isinstance(sample, Mapping):
        columns = list(cast("Mapping[Any, Any]", sample))
        if column in columns:
            return
        problem = f"has the columns {columns}"
    else:
        problem = f"is of the type {type(sample).__name__}"
    raise ValueError(
        f"Grouping by length needs a column {column!r}, or lengths in one (`{length_argument}`); "
        f"the first sample {problem}."
    )


def column_lengths(dataset: Any, column: str) -> np.ndarray | None:
    """Return the lengths stored in a column of a `datasets.Dataset`; None if it does not exist.

    Args:
        dataset: of any kind.
        column: name of the column of lengths.

    Raises:
        ValueError: a value is missing, or is not a number.
    """
    if not is_table(dataset) or column not in dataset.column_names:
        return None
    values = _arrow_column(dataset, column)

    # pyarrow is untyped.
    arrow: Any = importlib.import_module("pyarrow")
    is_number = arrow.types.is_integer(values.type) or arrow.types.is_floating(values.type)
    if not is_number:
        raise ValueError(
            f"length_column_name={column!r} is a column of {values.type}, not of lengths. Pass the "
            "name of a column of integers, or of no column: then the samples are measured."
        )
    if values.null_count:
        raise ValueError(
            f"The column {column!r} of lengths lacks {values.null_count} of {len(values)} values. "
            "Fill or remove it."
        )
    chunks = [chunk.to_numpy(zero_copy_only=False) for chunk in values.chunks]
    return np.concatenate([length_array(chunk) for chunk in chunks])


def _arrow_lengths(dataset: Any, column: str) -> np.ndarray | None:
    """Read the lengths of lists from the table of a `datasets.Dataset`.

    Returns:
        The lengths; None without such a table, if the values are not lists, or if a transform
        creates the samples.
    """
    if not is_table(dataset) or column not in dataset.column_names:
        return None
    if dataset.format["type"] == "custom":
        return None

    # pyarrow is untyped.
    arrow: Any = importlib.import_module("pyarrow")
    compute: Any = importlib.import_module("pyarrow.compute")
    values = _arrow_column(dataset, column)
    is_list = arrow.types.is_list(values.type) or arrow.types.is_large_list(values.type)
    if values.null_count or not is_list:
        return None
    return compute.list_value_length(values).to_numpy()


def is_table(dataset: object) -> bool:
    """Return whether a dataset is a `datasets.Dataset`, without importing the library."""
    return is_instance(dataset, "datasets", "Dataset")


def _arrow_column(dataset: Any, column: str) -> Any:
    return dataset.with_format("arrow").select_columns([column])[:].column(column)


class LengthCache:
    """Cache of the lengths of the last few datasets, by object and number of samples."""

    def __init__(self) -> None:
        self._entries: deque[_CachedLengths] = deque(maxlen=4)

    def get(self, dataset: Any, key: object, measure: Callable[[], Any]) -> Any:
        """Return the lengths of a dataset, measuring them on a miss.

        Args:
            dataset: a dataset with a length.
            key: anything else that the lengths depend on, such as the name of a column.
            measure: computes the lengths.
        """
        count = len(dataset)
        for entry in self._entries:
            if entry.dataset is dataset and entry.key == key and entry.samples == count:
                return entry.lengths
        lengths = measure()
        self._entries.append(_CachedLengths(dataset, key, len(dataset), lengths))
        return lengths


class _CachedLengths(NamedTuple):
    """The lengths of a dataset, and its number of samples when they were measured."""

    dataset: Any
    key: Any
    samples: int
    lengths: Any


def has_length(dataset: Any) -> bool:
    """Return whether `len()` of a dataset or loader works.

    Works like `transformers.trainer_utils.has_length`.

    Args:
        dataset: any object.
    """
    return length_or_none(dataset) is not None


def why_without_length(dataset: Any) -> str:
    """Return the error that `__len__` raises, in parentheses, because it may be a bug of the user.

    Returns an empty string for a dataset without that method.
    """
    kind = type(cast(object, dataset))
    if not hasattr(kind, "__len__"):
        return ""
    try:
        len(dataset)
    except Exception as error:
        return f" (its __len__ raised {type(error).__name__}: {error})"
    return ""


def length_array(lengths: Sequence[int] | np.ndarray | torch.Tensor) -> np.ndarray:
    """Return lengths as an array, with 4 bytes per element if the values fit into 32-bit integers.

    Integers are signed, so that they can be negated for sorting.
    """
    if isinstance(lengths, torch.Tensor):
        lengths = lengths.numpy(force=True)
    array = np.asarray(lengths)
    if array.dtype.kind not in "biu":
        return array
    dtype = np.int32 if array.max(initial=0) < 2**31 else np.int64
    return array.astype(dtype, copy=False)
