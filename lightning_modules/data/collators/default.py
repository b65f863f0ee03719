"""Batches of samples with columns, one tensor or array for each column that the model takes."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .base import LABELS, Batch, DataCollatorMixin, check_kind, has_fraction

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger(__name__)
_KEEP_ALL = "set `remove_unused_columns=False` to pass all of them to the data_collator"


def default_data_collator(features: Sequence[Any], return_tensors: str = "pt") -> Batch:
    """Stack the columns of samples into a batch, without padding.

    Works like `transformers.default_data_collator`, but an error names the column.

    Labels differ where 5.3.0 loses something: numpy integers are of type long, as in 5.23, and not
    float; and if the first label is an integer and another one is not (1, then 1.7), all are
    floats, while 5.3.0 cuts 1.7 down to 1.

    Args:
        features: samples with the same columns: mappings, or objects whose attributes are the
            columns. The first one decides which columns there are; strings and None are left out;
            "label" or "label_ids" become "labels".
        return_tensors: "pt" for tensors, "np" for arrays.

    Returns:
        Column to a tensor or array of shape (samples, ...).

    Raises:
        TypeError: a sample is neither a mapping nor an object with attributes.
        ValueError: there are no samples, or the values of a column do not fit together.
    """
    if return_tensors != "pt":
        check_kind(return_tensors)

    # Checking each sample for being a mapping would take longer than everything else.
    samples = features
    if set(map(type, features)) != {dict}:
        samples = [_as_mapping(feature, index) for index, feature in enumerate(features)]

    stack = _stack_torch if return_tensors == "pt" else _stack_numpy
    first = samples[0]
    # `name` is the column that is being stacked, for the error.
    name = ""
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


def torch_default_data_collator(features: Sequence[object]) -> Batch:
    """Stack the columns of samples into tensors, see `default_data_collator`.

    Works like `torch_default_data_collator` in `transformers.data.data_collator`.

    Args:
        features: samples with the same columns.

    Returns:
        Column to a tensor of shape (samples, ...).
    """
    return default_data_collator(features, "pt")


def numpy_default_data_collator(features: Sequence[object]) -> Batch:
    """Stack the columns of samples into arrays, see `default_data_collator`.

    Works like `numpy_default_data_collator` in `transformers.data.data_collator`.

    Args:
        features: samples with the same columns.

    Returns:
        Column to an array of shape (samples, ...).
    """
    return default_data_collator(features, "np")


def collate_samples(features: Sequence[object]) -> Any:
    """As torch's `default_collate`, but samples with columns as `default_data_collator`.

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
    data: Any = importlib.import_module("torch.utils.data")  # its types are incomplete
    return data.default_collate(list(features))


def _is_value(sample: object) -> bool:
    """Return whether a sample is a value, not an object whose attributes are columns.

    Tensors have attributes, too.
    """
    import torch

    return isinstance(sample, (torch.Tensor, np.ndarray, tuple, list, int, float, str, bytes))


def _as_mapping(feature: object, index: int) -> Mapping[str, object]:
    if isinstance(feature, Mapping):
        return cast("Mapping[str, Any]", feature)
    attributes = getattr(feature, "__dict__", None)
    if attributes is None:
        raise TypeError(
            f"Sample {index} of the batch is a {type(feature).__name__}, not a mapping or an "
            "object with attributes. Let the dataset return dicts, or pass a `data_collator` for "
            "these. Several evaluation datasets are a dict of them, not a list."
        )
    return attributes


def _column_error(name: str, samples: Sequence[Mapping[str, Any]], error: Exception) -> ValueError:
    """Return the error for a column whose values could not be stacked."""
    for index, sample in enumerate(samples):
        if name not in sample:
            return ValueError(
                f"The column {name!r} is in sample 0 of the batch but not in sample {index}, "
                f"which has {list(sample)}. Give all samples the same columns."
            )

    values = [sample[name] for sample in samples]
    kinds = dict.fromkeys(type(value).__name__ for value in values)
    shapes = list(dict.fromkeys(_shape(value) for value in values))
    return ValueError(
        f"The column {name!r} cannot be made into one tensor: its values are of type "
        f"{', '.join(kinds)} and shape {', '.join(shapes[:8])}, which raised "
        f"{type(error).__name__}: {error}. Pad or cut them to one length, for example with "
        "`DataCollatorWithPadding`, convert them to numbers, or drop the column."
    )


def _shape(value: Any) -> str:
    try:
        if hasattr(value, "shape"):
            return str(tuple(value.shape))
        return str(np.asarray(value).shape)
    except (ValueError, TypeError, RuntimeError):
        return "ragged"


def _stack_torch(values: list[Any], name: str) -> object:
    """Return the values of a column as a tensor."""
    import torch

    first = values[0]
    # The first label decides about the dtype: a "label" is a number, "label_ids" are a list.
    if isinstance(first, torch.Tensor):
        if name == "label":
            return _labels_torch(values, first.item(), torch.tensor)
        return torch.stack(values)
    if name == "label_ids":
        make = _tensor_of_arrays if isinstance(first, np.ndarray) else torch.tensor
        return _labels_torch(values, first[0], make)
    if name == "label":
        return _labels_torch(values, first, torch.tensor)
    if isinstance(first, np.ndarray):
        return _tensor_of_arrays(values)

    # Passing the dtype of plain numbers saves torch the time to infer it.
    types = set(map(type, values))
    if types == {float}:
        return torch.tensor(values, dtype=torch.get_default_dtype())
    if types == {int}:
        return torch.tensor(values, dtype=torch.long)
    return torch.tensor(values)


def _tensor_of_arrays(values: list[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
    import torch

    tensor = torch.as_tensor(np.stack(values), device="cpu")
    return tensor if dtype is None else tensor.to(dtype)


def _labels_torch(
    values: list[Any], first: object, make: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Return labels: integers if the first one is an integer and no other one has a fraction."""
    import torch

    if not isinstance(first, (int, np.integer)):
        return make(values, dtype=torch.float)
    # The usual case first: plain integers need no search for fractions.
    if set(map(type, values)) == {int}:
        return torch.tensor(values, dtype=torch.long)
    labels = make(values)
    if labels.is_floating_point() and has_fraction(labels.numpy()):
        return labels.to(torch.float)
    return labels.to(torch.long)


def _stack_numpy(values: list[Any], name: str) -> object:
    """Return the values of a column as an array."""
    first = values[0]
    is_array = _is_array(first)
    if name == "label":
        if is_array:
            first = first.item()
        return _labels_numpy(values, first)
    if is_array:
        return np.stack(values)
    if name == "label_ids":
        return _labels_numpy(values, first[0])
    return np.array(values)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def _labels_numpy(values: list[Any], first: object) -> np.ndarray:
    """Return the labels as arrays, by the rules of `_labels_torch`."""
    if not isinstance(first, (int, np.integer)):
        return np.array(values, dtype=np.float32)
    labels = np.array(values)
    if labels.dtype == np.int64:
        return labels
    return labels.astype(np.float32 if has_fraction(labels) else np.int64)


@dataclass
class DefaultDataCollator(DataCollatorMixin):
    """Stack the columns of samples into a batch, see `default_data_collator`.

    Works like `transformers.DefaultDataCollator`.
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
    """Leave out the columns that a model does not take, before samples become a batch.

    Works like `transformers.trainer_utils.RemoveColumnsCollator`.

    It raises if the model takes none of the columns. Samples that are not dicts are passed to the
    collator as they are.

    Args:
        data_collator: makes the batch of the columns that are left.
        signature_columns: the columns that the model takes.
        logger: logs the dropped columns, once; None logs nothing.
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
            ValueError: a sample has columns, but none that the model takes.
            KeyError: the collator asks for a column that was dropped.
        """
        samples = [self._without_unused_columns(feature) for feature in features]
        try:
            return self.data_collator(samples)
        except KeyError as error:
            self._explain(error, features)
            raise

    def _without_unused_columns(self, feature: object) -> Any:
        if not isinstance(feature, dict):
            return feature
        columns = cast("dict[str, Any]", feature)
        remaining = {name: value for name, value in columns.items() if name in self._keep}
        if len(remaining) < len(columns):
            self._report_dropped(columns, remaining)
        return remaining

    def _explain(self, error: KeyError, features: list[Any]) -> None:
        """Raise an error that says so if the collator asked for a column that was dropped."""
        dropped = set(self.removed)
        for feature in features:
            if isinstance(feature, dict):
                dropped |= cast("dict[str, Any]", feature).keys() - self._keep
        if error.args and error.args[0] in dropped:
            message = ignored_columns_message(
                error.args, str(self.model_name), self.description, self.advice
            )
            raise KeyError(f"The collator asks for a column that was dropped. {message}") from error

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
    """Return a `datasets.Dataset` with only the columns that the model takes.

    The others are not even read.

    Args:
        dataset: the dataset.
        columns: names that the model takes.
        model_name: for the message that names the others.
        description: which dataset it is, such as "training".
        logger: logs them; None logs nothing.
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
    """Return the error for data of which the model takes no column.

    Args:
        columns: the columns of the data.
        signature_columns: the columns that the model takes.
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
