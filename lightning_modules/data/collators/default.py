"""The default collator, which stacks each column of the samples into a tensor or array."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .base import LABELS, Batch, DataCollatorMixin, check_return_tensors, has_fraction

if TYPE_CHECKING:
    import torch


def default_data_collator(features: Sequence[Any], return_tensors: str = "pt") -> Batch:
    """Stack the columns of samples into a batch, without padding.

    Works like `transformers.default_data_collator`, but an error names the column.

    Differs from 5.3.0 in the dtype of labels in two cases:

    - Labels that are numpy integers become long as in 5.23, instead of float.
    - If the first label is an integer and a later one is not (1, then 1.7), all become float;
      5.3.0 truncates 1.7 to 1.

    Args:
        features: samples with the same columns: mappings, or objects whose attributes are the
            columns. The columns are those of the first sample; columns that are a string or None in
            it are left out, and "label" or "label_ids" becomes "labels".
        return_tensors: "pt" for tensors, "np" for arrays.

    Returns:
        A dict from each column to a tensor or array of shape (samples, ...).

    Raises:
        TypeError: a sample is neither a mapping nor an object with attributes.
        ValueError: there are no samples, or the values of a column do not fit together.
    """
    if return_tensors != "pt":
        check_return_tensors(return_tensors)

    # Almost always all samples are dicts, which one fast pass over their types detects. Checking
    # whether each is a Mapping would take longer than everything else.
    samples = features
    if set(map(type, features)) != {dict}:
        samples = [_as_mapping(feature, index) for index, feature in enumerate(features)]

    stack = _stack_torch if return_tensors == "pt" else _stack_numpy
    # Map each column of the batch to the column of the samples that it is made from.
    first = samples[0]
    columns: dict[str, str] = {}
    for name in LABELS:
        if first.get(name) is not None:
            columns["labels"] = name
            break
    for name, value in first.items():
        if value is not None and name not in LABELS and not isinstance(value, str):
            columns[name] = name

    batch: Batch = {}
    for name_in_batch, name in columns.items():
        try:
            batch[name_in_batch] = stack([sample[name] for sample in samples], name)
        except (KeyError, ValueError, TypeError, RuntimeError, IndexError, OverflowError) as error:
            raise _column_error(name, samples, error) from error
    return batch


def torch_default_data_collator(features: Sequence[object]) -> Batch:
    """Stack the columns of samples into tensors, see `default_data_collator`.

    Works like `torch_default_data_collator` in `transformers.data.data_collator`.

    Args:
        features: samples with the same columns.

    Returns:
        A dict from each column to a tensor of shape (samples, ...).
    """
    return default_data_collator(features, "pt")


def numpy_default_data_collator(features: Sequence[object]) -> Batch:
    """Stack the columns of samples into arrays, see `default_data_collator`.

    Works like `numpy_default_data_collator` in `transformers.data.data_collator`.

    Args:
        features: samples with the same columns.

    Returns:
        A dict from each column to an array of shape (samples, ...).
    """
    return default_data_collator(features, "np")


def collate_samples(features: Sequence[object]) -> Any:
    """Use `default_data_collator` for samples with columns, torch's `default_collate` for others.

    Args:
        features: samples, all of the same kind.

    Returns:
        A dict of columns; or a list of tensors, one for each element of a sample; or one tensor.

    Raises:
        ValueError: the samples cannot be stacked.
    """
    first = features[0]
    if isinstance(first, Mapping) or (hasattr(first, "__dict__") and not _is_value(first)):
        return default_data_collator(features)
    data: Any = importlib.import_module("torch.utils.data")  # its types are incomplete
    return data.default_collate(list(features))


def _is_value(sample: object) -> bool:
    """Return whether a sample is a value instead of an object whose attributes are columns.

    Its type decides, because tensors have attributes, too.
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
    is_tensor = isinstance(first, torch.Tensor)
    is_array = isinstance(first, np.ndarray)

    # The first label decides the dtype. A "label" is a number, and "label_ids" is a list.
    if name == "label":
        if is_tensor:
            first = first.item()
        return _labels_torch(values, first, torch.tensor)
    if name == "label_ids" and not is_tensor:
        make = _tensor_of_arrays if is_array else torch.tensor
        return _labels_torch(values, first[0], make)

    if is_tensor:
        return torch.stack(values)
    if is_array:
        return _tensor_of_arrays(values)

    # With an explicit dtype torch does not spend time to infer it from plain numbers.
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
    """Return labels as integers if the first is an integer and all are whole, else as floats."""
    import torch

    if not isinstance(first, (int, np.integer)):
        return make(values, dtype=torch.float)
    # Handle the usual case first: plain integers need no search for fractions.
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
    # In a function, because for pyright an inline isinstance narrows to arrays of unknown type.
    return isinstance(value, np.ndarray)


def _labels_numpy(values: list[Any], first: object) -> np.ndarray:
    """Return the labels as an array, with the dtype rules of `_labels_torch`."""
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
