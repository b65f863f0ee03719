"""Drop the columns that a model does not take, and say so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

_logger = logging.getLogger(__name__)
_KEEP_ALL = "set `remove_unused_columns=False` to pass all of them to the data_collator"


class RemoveColumnsCollator:
    """As `transformers.trainer_utils.RemoveColumnsCollator`, but an error when the model takes none of the columns.

    Samples that are not dicts go to the collator as they are.

    Args:
        data_collator: makes the batch of what is left.
        signature_columns: the columns that the model takes.
        logger: where the dropped columns are named, once; None for silence.
        model_name: name of the model's class, for that message.
        description: which dataset it is, such as "training".
        advice: how to keep all columns, for messages.
        removed: columns that were removed before.
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
        """Return the batch of the columns that the model takes.

        Args:
            features: the samples.

        Raises:
            ValueError: when a sample has columns, but none that the model takes.
            KeyError: the collator asks for a column that was dropped.
        """
        reduced = []
        for feature in features:
            kept = feature
            if isinstance(feature, dict):
                kept = {name: value for name, value in feature.items() if name in self._keep}
                if len(kept) < len(feature):
                    self._note_dropped(feature, kept)
            reduced.append(kept)
        try:
            return self.data_collator(reduced)
        except KeyError as error:
            self._explain(error, features)
            raise

    def _explain(self, error: KeyError, features: list[Any]) -> None:
        """Raise an error that says so if the collator asked for a column that was dropped."""
        names = {name for feature in features if isinstance(feature, dict) for name in feature} - self._keep
        if error.args and error.args[0] in names.union(self.removed):
            message = ignored_columns_message(error.args, str(self.model_name), self.description, self.advice)
            raise KeyError(f"The collator asks for a column that is not there. {message}") from error

    def _note_dropped(self, feature: dict[str, Any], kept: dict[str, Any]) -> None:
        if not kept:
            raise no_columns_left_error(feature, self.signature_columns, self.model_name, self.description, self.advice)
        if not self.message_logged and self.logger and self.model_name:
            ignored = [name for name in feature if name not in kept]
            self.logger.info(ignored_columns_message(ignored, self.model_name, self.description, self.advice))
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
    """Return a `datasets.Dataset` with the columns that the model takes only, so that others are not even read.

    Args:
        dataset: the dataset.
        columns: names that the model takes.
        model_name: for the message that names the others.
        description: which dataset it is, such as "training".
        logger: where they are named; None for silence.
        advice: how to keep all columns.

    Raises:
        ValueError: no column would be left.
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
    ignored: Iterable[str], model_name: str, description: str | None = None, advice: str = _KEEP_ALL
) -> str:
    """Return the message for columns that are dropped because the model does not take them.

    Args:
        ignored: the dropped columns.
        model_name: name of the model's class.
        description: which dataset it is, such as "training".
        advice: how to keep all columns.
    """
    return (
        f"Dropped from the {description + ' ' if description else ''}data, because `{model_name}.forward` has no such "
        f"parameter: {', '.join(map(str, ignored))}. If they are needed, {advice}."
    )


def no_columns_left_error(
    columns: Iterable[str],
    signature_columns: Iterable[str],
    model_name: str | None = None,
    description: str | None = None,
    advice: str = _KEEP_ALL,
) -> ValueError:
    """Return the error for data of which the model takes not a single column.

    Args:
        columns: the columns of the data.
        signature_columns: the columns that the model takes.
        model_name: name of the model's class.
        description: which dataset it is, such as "training".
        advice: how to keep all columns.
    """
    forward = f"`{model_name}.forward`" if model_name else "The model's forward"
    return ValueError(
        f"No column of the {description + ' ' if description else ''}data is one that the model takes. The data has: "
        f"{', '.join(map(str, columns))}. {forward} takes: {', '.join(signature_columns)}. Rename the columns, or "
        f"{advice}."
    )
