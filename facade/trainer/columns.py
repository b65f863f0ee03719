"""Which columns of the data the model takes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from ...lightning_modules.data.collators import ignored_columns_message, no_columns_left_error

logger = logging.getLogger(__name__)


def is_hub_dataset(dataset: Any) -> bool:
    """Whether this is a `datasets.Dataset`, found out without importing the library."""
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(dataset, datasets.Dataset)


def remove_unused(dataset: Any, columns: Sequence[str], model_name: str, description: str | None) -> Any:
    """The dataset without the columns that the model does not take, with a message that names them.

    Args:
        dataset: a `datasets.Dataset`.
        columns: names that the model takes.
        model_name: for the message.
        description: which data this is, e.g. `training`.

    Raises:
        ValueError: no column would be left.
    """
    unused = [name for name in dataset.column_names if name not in columns]
    if not unused:
        return dataset
    if len(unused) == len(dataset.column_names):
        raise no_columns_left_error(unused, columns, model_name, description)
    logger.info(ignored_columns_message(unused, model_name, description))
    return dataset.remove_columns(unused)
