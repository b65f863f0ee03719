"""Batches of samples with columns: drop those that the model does not take, make one tensor or
array of each other.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import LABELS, Batch, DataCollatorMixin, check_kind, has_fraction

_logger = logging.getLogger(__name__)
_KEEP_ALL = "set `remove_unused_columns=False` to pass all of them to the data_collator"

_DICTS, _FLOATS, _INTEGERS = {dict}, {float}, {int}


def default_data_collator(features: Sequence[Any], return_tensors: str = "pt") -> Batch:
    """As `transformers.default_data_collator`, but an error names the column; numpy integers are
    labels of type long, and labels of which the first is an integer and another one is not (1, then
    1.7) are floats.

    5.3.0 cuts 1.7 down to 1 then; and it makes floats of numpy integer labels, later versions
    (5.23) do not.

    Args:
        features: samples with the same columns: mappings, or objects whose attributes are the
            columns. The first one decides which columns there are; strings and None are left out;
            "label" or "label_ids" become "labels".
        return_tensors: "pt" for tensors, "np" for arrays.

    Returns:
        Column to a tensor or array of shape (samples, ...).

    Raises:
        TypeError: when a sample is neither a mapping nor an object with attributes.
        ValueError: when there are no samples, or those of a column do not fit together.
    """
    if return_tensors != "pt":
        check_kind(return_tensors)
    # Asking each of them for a mapping takes longer than all the rest.
    samples = (
        features
        if {*map(type, features)} == _DICTS
        else list(map(_as_mapping, features, itertools.count()))
    )
    stack = _stack_torch if return_tensors == "pt" else _stack_numpy
    first, name = samples[0], ""
    batch: Batch = {}
    try:
        for name in LABELS:
            if first.get(name) is not None:
                batch["labels"] = stack([sample[name] for sample in samples], name)
                break
        for name, value in first.items():
            if value is not None and name not in LABELS and not isinstance(value, str):
                batch[name] = stack([sample[name] for sample in samples], name)
    except (KeyError, ValueError, TypeError, RuntimeError, IndexError, OverflowError) as error:
        raise _column_error(name, samples, error) from error
    return batch


def torch_default_data_collator(features: Sequence[Any]) -> Batch:
    """As `transformers.data.data_collator.torch_default_data_collator`: `default_data_collator`
    with tensors.
    """
    return default_data_collator(features, "pt")


def numpy_default_data_collator(features: Sequence[Any]) -> Batch:
    """As `transformers.data.data_collator.numpy_default_data_collator`: `default_data_collator`
    with arrays.
    """
    return default_data_collator(features, "np")


def collate_samples(features: Sequence[Any]) -> Any:
    """As torch's `default_collate` for tuples, tensors and numbers; samples with columns as
    `default_data_collator`.

    Args:
        features: samples, all of one kind.

    Returns:
        A mapping of columns; a list of tensors, one for each part of the samples; or one tensor.

    Raises:
        ValueError: they do not fit together.
    """
    first = features[0]
    if isinstance(first, Mapping) or (hasattr(first, "__dict__") and not _is_value(first)):
        return default_data_collator(features)
    from torch.utils.data import default_collate

    return default_collate(list(features))


def _is_value(sample: Any) -> bool:
    """Return whether a sample is a value, not an object whose attributes are columns; tensors
    have attributes too.
    """
    import torch

    return isinstance(sample, (torch.Tensor, np.ndarray, tuple, list, int, float, str, bytes))


def _as_mapping(feature: Any, index: int) -> Mapping[str, Any]:
    if isinstance(feature, Mapping):
        return feature
    try:
        return vars(feature)
    except TypeError:
        raise TypeError(
            f"Sample {index} of the batch is a {type(feature).__name__}, not a mapping or an "
            "object with attributes. Let the dataset return dicts, or pass a `data_collator` for "
            "these. Several evaluation datasets are a dict of them, not a list."
        ) from None


def _column_error(name: str, samples: Sequence[Mapping[str, Any]], error: Exception) -> ValueError:
    for index, sample in enumerate(samples):
        if name not in sample:
            shown = f"which has {list(sample)}. Give all samples the same columns."
            return ValueError(
                f"The column {name!r} is in sample 0 of the batch but not in sample {index}, "
                f"{shown}"
            )
    kinds = ", ".join(dict.fromkeys(type(sample[name]).__name__ for sample in samples))
    shapes = ", ".join(list(dict.fromkeys(_shape(sample[name]) for sample in samples))[:8])
    return ValueError(
        f"The column {name!r} cannot be made into one tensor: its values are of type {kinds} and "
        f"shape {shapes}, which gave {type(error).__name__}: {error}. Pad or cut them to one "
        "length, for example with `DataCollatorWithPadding`, make numbers of them, or drop the "
        "column."
    )


def _shape(value: Any) -> str:
    try:
        return str(tuple(np.shape(value)))
    except (ValueError, TypeError, RuntimeError):
        return "ragged"


def _stack_torch(values: list[Any], name: str) -> Any:
    import torch

    first = values[0]
    if isinstance(first, torch.Tensor):
        return (
            torch.stack(values)
            if name != "label"
            else _labels_torch(values, first.item(), torch.tensor)
        )
    if name == "label_ids":
        return _labels_torch(
            values, first[0], _tensor_of_arrays if isinstance(first, np.ndarray) else torch.tensor
        )
    if name == "label":
        return _labels_torch(values, first, torch.tensor)
    if isinstance(first, np.ndarray):
        return _tensor_of_arrays(values)
    kinds = {*map(type, values)}
    if kinds == _FLOATS:  # torch takes longer to find that out
        return torch.tensor(values, dtype=torch.get_default_dtype())
    return torch.tensor(values, dtype=torch.long if kinds == _INTEGERS else None)


def _tensor_of_arrays(values: list[Any], dtype: Any = None) -> Any:
    import torch

    made = torch.from_numpy(np.stack(values))
    return made if dtype is None else made.to(dtype)


def _labels_torch(values: list[Any], first: Any, make: Callable[..., Any]) -> Any:
    """Return labels: integers where the first one is an integer, but floats where another one
    has a fraction.
    """
    import torch

    if not isinstance(first, (int, np.integer)):
        return make(values, dtype=torch.float)
    if {*map(type, values)} == _INTEGERS:
        return torch.tensor(values, dtype=torch.long)
    labels = make(values)
    return labels.to(
        torch.float if labels.is_floating_point() and has_fraction(labels.numpy()) else torch.long
    )


def _stack_numpy(values: list[Any], name: str) -> Any:
    first = values[0]
    if name == "label":
        number = first.item() if isinstance(first, np.ndarray) else first
        return _labels_numpy(values) if _is_integer(number) else np.array(values, dtype=np.float32)
    if isinstance(first, np.ndarray):
        return np.stack(values)
    if name == "label_ids":
        return (
            _labels_numpy(values) if _is_integer(first[0]) else np.array(values, dtype=np.float32)
        )
    return np.array(values)


def _labels_numpy(values: list[Any]) -> np.ndarray:
    """As `_labels_torch`."""
    labels = np.array(values)
    if labels.dtype == np.int64:
        return labels
    return labels.astype(np.float32 if has_fraction(labels) else np.int64)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer))


@dataclass
class DefaultDataCollator(DataCollatorMixin):
    """As `transformers.DefaultDataCollator`: `default_data_collator` as an object that knows its
    `return_tensors`.
    """

    return_tensors: str = "pt"
    """"pt" for tensors, "np" for arrays."""

    def torch_call(self, features: list[Any]) -> Batch:
        """Return the batch as torch tensors."""
        return default_data_collator(features, "pt")

    def numpy_call(self, features: list[Any]) -> Batch:
        """Return the batch as numpy arrays."""
        return default_data_collator(features, "np")


class RemoveColumnsCollator:
    """As `transformers.trainer_utils.RemoveColumnsCollator`, but an error when the model takes none
    of the columns.

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
        names = {
            name for feature in features if isinstance(feature, dict) for name in feature
        } - self._keep
        if error.args and error.args[0] in names.union(self.removed):
            message = ignored_columns_message(
                error.args, str(self.model_name), self.description, self.advice
            )
            raise KeyError(
                f"The collator asks for a column that is not there. {message}"
            ) from error

    def _note_dropped(self, feature: dict[str, Any], kept: dict[str, Any]) -> None:
        if not kept:
            raise no_columns_left_error(
                feature, self.signature_columns, self.model_name, self.description, self.advice
            )
        if not self.message_logged and self.logger and self.model_name:
            ignored = [name for name in feature if name not in kept]
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
    """Return a `datasets.Dataset` with the columns that the model takes only, so that others are
    not even read.

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
    ignored: Iterable[str],
    model_name: str,
    description: str | None = None,
    advice: str = _KEEP_ALL,
) -> str:
    """Return the message for columns that are dropped because the model does not take them.

    Args:
        ignored: the dropped columns.
        model_name: name of the model's class.
        description: which dataset it is, such as "training".
        advice: how to keep all columns.
    """
    return (
        f"Dropped from the {description + ' ' if description else ''}data, because "
        f"`{model_name}.forward` has no such parameter: {', '.join(map(str, ignored))}. If they "
        f"are needed, {advice}."
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
        f"No column of the {description + ' ' if description else ''}data is one that the model "
        f"takes. The data has: {', '.join(map(str, columns))}. {forward} takes: "
        f"{', '.join(signature_columns)}. Rename the columns, or {advice}."
    )
