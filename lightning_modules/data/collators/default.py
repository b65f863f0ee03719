"""The collator for samples that fit together as they are: each column becomes one tensor or array."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import LABELS, Batch, DataCollatorMixin, check_kind, has_fraction, require_samples

_DICTS, _FLOATS, _INTEGERS = {dict}, {float}, {int}


def default_data_collator(features: Sequence[Any], return_tensors: str = "pt") -> Batch:
    """As `transformers.default_data_collator`, but an error names the column; numpy integers are labels of type long,
    and labels of which the first is an integer and another one is not (1, then 1.7) are floats.

    5.3.0 cuts 1.7 down to 1 then; and it makes floats of numpy integer labels, later versions (5.23) do not.

    Args:
        features: samples with the same columns: mappings, or objects whose attributes are the columns. The first one
            decides which columns there are; strings and None are left out; "label" or "label_ids" become "labels".
        return_tensors: "pt" for tensors, "np" for arrays.

    Returns:
        Column to a tensor or array of shape (samples, ...).

    Raises:
        TypeError: when a sample is neither a mapping nor an object with attributes.
        ValueError: when there are no samples, or those of a column do not fit together.
    """
    if return_tensors != "pt":
        check_kind(return_tensors)
    if not len(features):
        require_samples(features)
    # Asking each of them for a mapping takes longer than all the rest.
    samples = features if {*map(type, features)} == _DICTS else list(map(_as_mapping, features, itertools.count()))
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
    """As `transformers.data.data_collator.torch_default_data_collator`: `default_data_collator` with tensors."""
    return default_data_collator(features, "pt")


def numpy_default_data_collator(features: Sequence[Any]) -> Batch:
    """As `transformers.data.data_collator.numpy_default_data_collator`: `default_data_collator` with arrays."""
    return default_data_collator(features, "np")


def collate_samples(features: Sequence[Any]) -> Any:
    """As torch's `default_collate` for tuples, tensors and numbers; samples with columns as `default_data_collator`.

    Args:
        features: samples, all of one kind.

    Returns:
        A mapping of columns; a list of tensors, one for each part of the samples; or one tensor.

    Raises:
        ValueError: they do not fit together.
    """
    require_samples(features)
    first = features[0]
    if isinstance(first, Mapping) or (hasattr(first, "__dict__") and not _is_value(first)):
        return default_data_collator(features)
    from torch.utils.data import default_collate

    try:
        return default_collate(list(features))
    except (RuntimeError, TypeError, ValueError) as error:
        kind = type(first).__name__
        if isinstance(first, (tuple, list)):
            kind += f" of {', '.join(type(part).__name__ for part in first)}"
        raise ValueError(
            f"No batch can be made of samples that are each a {kind}: {type(error).__name__}: {error}. Let the dataset "
            "return tensors of one shape, arrays or numbers, or pass a `collate_fn` that knows these samples."
        ) from error


def _is_value(sample: Any) -> bool:
    """Return whether a sample is a value, not an object whose attributes are columns; tensors have attributes too."""
    import torch

    return isinstance(sample, (torch.Tensor, np.ndarray, tuple, list, int, float, str, bytes))


def _as_mapping(feature: Any, index: int) -> Mapping[str, Any]:
    if isinstance(feature, Mapping):
        return feature
    try:
        return vars(feature)
    except TypeError:
        raise TypeError(
            f"Sample {index} of the batch is a {type(feature).__name__}; expected a mapping from column to value, or "
            "an object whose attributes are the columns. Let the dataset return dicts, or pass a `data_collator` "
            "that knows these samples."
        ) from None


def _column_error(name: str, samples: Sequence[Mapping[str, Any]], error: Exception) -> ValueError:
    for index, sample in enumerate(samples):
        if name not in sample:
            shown = f"which has {list(sample)}. Give all samples the same columns."
            return ValueError(f"The column {name!r} is in sample 0 of the batch but not in sample {index}, {shown}")
    kinds = ", ".join(dict.fromkeys(type(sample[name]).__name__ for sample in samples))
    shapes = ", ".join(list(dict.fromkeys(_shape(sample[name]) for sample in samples))[:8])
    return ValueError(
        f"The column {name!r} cannot be made into one tensor: its values are of type {kinds} and shape {shapes}, which "
        f"gave {type(error).__name__}: {error}. Pad or cut them to one length, for example with "
        "`DataCollatorWithPadding`, make numbers of them, or drop the column."
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
        return torch.stack(values) if name != "label" else _labels_torch(values, first.item(), torch.tensor)
    if name == "label_ids":
        return _labels_torch(values, first[0], _tensor_of_arrays if isinstance(first, np.ndarray) else torch.tensor)
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
    """Return labels: integers where the first one is an integer, but floats where another one has a fraction."""
    import torch

    if not isinstance(first, (int, np.integer)):
        return make(values, dtype=torch.float)
    if {*map(type, values)} == _INTEGERS:
        return torch.tensor(values, dtype=torch.long)
    labels = make(values)
    return labels.to(torch.float if labels.is_floating_point() and has_fraction(labels.numpy()) else torch.long)


def _stack_numpy(values: list[Any], name: str) -> Any:
    first = values[0]
    if name == "label":
        number = first.item() if isinstance(first, np.ndarray) else first
        return _labels_numpy(values) if _is_integer(number) else np.array(values, dtype=np.float32)
    if isinstance(first, np.ndarray):
        return np.stack(values)
    if name == "label_ids":
        return _labels_numpy(values) if _is_integer(first[0]) else np.array(values, dtype=np.float32)
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
    """As `transformers.DefaultDataCollator`: `default_data_collator` as an object that knows its `return_tensors`."""

    return_tensors: str = "pt"
    """"pt" for tensors, "np" for arrays."""

    def torch_call(self, features: list[Any]) -> Batch:
        """Return the batch as torch tensors."""
        return default_data_collator(features, "pt")

    def numpy_call(self, features: list[Any]) -> Batch:
        """Return the batch as numpy arrays."""
        return default_data_collator(features, "np")
