"""What a loader has to know of a dataset: whether it is a table, which columns it has, how long its samples are."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.class_paths import build_described, is_description
from .collators import no_columns_left_error
from .lengths import column_lengths, sample_lengths

KEEP_ALL_COLUMNS = "name those to keep: columns=[...]"

__all__ = ["KEEP_ALL_COLUMNS", "is_table", "made", "measured_lengths", "without_columns"]


def is_table(dataset: Any) -> bool:
    """Whether this is a `datasets.Dataset`, found out without importing the library."""
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(dataset, datasets.Dataset)


def measured_lengths(dataset: Any, length_column: str, input_column: str) -> Any:
    """The length of each sample: from a column of lengths if there is one, else of the column that is measured."""
    given = column_lengths(dataset, length_column)
    return sample_lengths(dataset, input_column, length_argument="length_column") if given is None else given


def without_columns(dataset: Any, columns: Sequence[str], model_name: str) -> Any:
    """A `datasets.Dataset` with these columns only, so that others are not even read.

    Raises:
        ValueError: it has none of them.
    """
    unused = [name for name in dataset.column_names if name not in columns]
    if len(unused) == len(dataset.column_names):
        raise no_columns_left_error(unused, columns, model_name, None, KEEP_ALL_COLUMNS)
    return dataset.remove_columns(unused) if unused else dataset


def made(dataset: Any, name: str) -> Any:
    """The dataset itself, where a function or a description of it is given, or a dict of them."""
    if is_description(dataset):
        return build_described(dataset, object, name)
    if isinstance(dataset, Mapping):
        return {key: made(value, name) for key, value in dataset.items()}
    is_function = callable(dataset) and not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__")
    return dataset() if is_function else dataset
