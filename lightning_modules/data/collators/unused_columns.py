"""Drop the columns of a dataset that the model's forward does not accept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

_logger = logging.getLogger(__name__)
_KEEP_ALL = "set `remove_unused_columns=False` to pass all of them to the data_collator"


class RemoveColumnsCollator:
    """Drop the columns that the model does not accept, before samples are collated.

    Works like `transformers.trainer_utils.RemoveColumnsCollator`.

    Calls raise if the model accepts none of the columns. Samples that are not dicts are passed to
    the collator unchanged.

    Args:
        data_collator: makes the batch from the remaining columns.
        signature_columns: the columns that the model accepts.
        logger: logs the dropped columns, once; None logs nothing.
        model_name: name of the model's class, for that message.
        description: which dataset it is, such as "training".
        advice: how to keep all columns, for messages.
        removed: columns that were removed from the dataset before.
    """

    def __init__(
        self,
        data_collator: Callable[[list[Any]], Any],
        signature_columns: Sequence[str],
        logger: logging.Logger | None = None,
        model_name: str | None = None,
        description: str | None = None,
        advice: str = _KEEP_ALL,
        removed: Collection[str] = (),
    ):
        self.data_collator = data_collator
        self.signature_columns = signature_columns
        self.logger = logger
        self.model_name = model_name
        self.description = description
        self.advice = advice
        self.removed = removed
        self.message_logged = False
        self._keep = frozenset(signature_columns)

    def __call__(self, features: list[Any]) -> Any:
        """Return the batch of the columns that the model accepts.

        Args:
            features: the samples.

        Raises:
            ValueError: the model accepts none of the columns of a sample.
            KeyError: the collator asks for a column that was dropped.
        """
        samples = [self._remove_columns(feature) for feature in features]
        try:
            return self.data_collator(samples)
        except KeyError as error:
            if not error.args or error.args[0] not in self._dropped_columns(features):
                raise
            message = ignored_columns_message(
                error.args, str(self.model_name), self.description, self.advice
            )
            raise KeyError(f"The collator asks for a column that was dropped. {message}") from error

    def _remove_columns(self, feature: object) -> Any:
        if not isinstance(feature, dict):
            return feature
        columns = cast("dict[str, Any]", feature)
        remaining = {name: value for name, value in columns.items() if name in self._keep}
        if len(remaining) < len(columns):
            self._report_dropped(columns, remaining)
        return remaining

    def _dropped_columns(self, features: list[Any]) -> set[str]:
        """Return the columns that were removed from these samples, here or before."""
        dropped = set(self.removed)
        for feature in features:
            if isinstance(feature, dict):
                dropped |= cast("dict[str, Any]", feature).keys() - self._keep
        return dropped

    def _report_dropped(self, feature: dict[str, Any], remaining: dict[str, Any]) -> None:
        if not remaining:
            raise no_columns_left_error(
                feature, self.signature_columns, self.model_name, self.description, self.advice
            )
        if not self.message_logged and self.logger and self.model_name:
            ignored = [name for name in feature if name not in remaining]
            self.logger.info(
                ignored_columns_message(ignored, self.model_name, self.description, self.advice)
            )
            self.message_logged = True


def remove_unused(
    dataset: Any,
    columns: Sequence[str],
    model_name: str,
    description: str | None = None,
    *,
    logger: logging.Logger | None = _logger,
    advice: str = _KEEP_ALL,
) -> Any:
    """Return a `datasets.Dataset` with only the columns that the model accepts.

    The other columns are never read from disk.

    Args:
        dataset: the dataset.
        columns: names of the columns that the model accepts.
        model_name: name of the model's class, for the message about dropped columns.
        description: which dataset it is, such as "training".
        logger: logs the dropped columns; None logs nothing.
        advice: how to keep all columns.

    Raises:
        ValueError: the model accepts none of the columns.
    """
    unused = [name for name in dataset.column_names if name not in columns]
    if not unused:
        return dataset
    if len(unused) == len(dataset.column_names):
        raise no_columns_left_error(unused, columns, model_name, description, advice)
    if logger is not None:
        logger.info(ignored_columns_message(unused, model_name, description, advice))
    return dataset.remove_columns(unused)


def ignored_columns_message(
    ignored: Iterable[str],
    model_name: str,
    description: str | None = None,
    advice: str = _KEEP_ALL,
) -> str:
    """Return the message about columns that the model does not accept.

    Args:
        ignored: the dropped columns.
        model_name: name of the model's class.
        description: which dataset it is, such as "training".
        advice: how to keep all columns.
    """
    data = f"{description} data" if description else "data"
    names = ", ".join(map(str, ignored))
    return (
        f"Dropped from the {data}, because `{model_name}.forward` has no such parameter: {names}. "
        f"If they are needed, {advice}."
    )


def no_columns_left_error(
    columns: Iterable[str],
    signature_columns: Iterable[str],
    model_name: str | None = None,
    description: str | None = None,
    advice: str = _KEEP_ALL,
) -> ValueError:
    """Return the error for data without any column that the model accepts.

    Args:
        columns: the columns of the data.
        signature_columns: the columns that the model accepts.
        model_name: name of the model's class.
        description: which dataset it is, such as "training".
        advice: how to keep all columns.
    """
    data = f"{description} data" if description else "data"
    forward = f"`{model_name}.forward`" if model_name else "The model's forward"
    names = ", ".join(map(str, columns))
    return ValueError(
        f"The model takes no column of the {data}. The data has: {names}. {forward} takes: "
        f"{', '.join(signature_columns)}. Rename the columns, or {advice}."
    )
