"""Collators: from a list of samples to a batch of tensors or arrays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "DataCollatorMixin",
    "DataCollatorWithPadding",
    "DefaultDataCollator",
    "RemoveColumnsCollator",
    "default_data_collator",
    "ignored_columns_message",
    "no_columns_left_error",
]

Batch = dict[str, Any]

_LABELS = ("label", "label_ids")


class DataCollatorMixin:
    """As `transformers.DataCollatorMixin`: sends a call to `torch_call` or `numpy_call`, as `return_tensors` says.

    A subclass has an attribute `return_tensors`, "pt" or "np", and the methods for those that it supports.
    """

    return_tensors: str = "pt"

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Any:
        """The batch of these samples.

        Args:
            features: the samples.
            return_tensors: "pt" or "np" in place of the attribute.

        Raises:
            ValueError: for any other `return_tensors`.
        """
        kind = self.return_tensors if return_tensors is None else return_tensors
        check_kind(kind)
        return self.torch_call(features) if kind == "pt" else self.numpy_call(features)

    def torch_call(self, features: list[Any]) -> Any:
        """The batch as torch tensors; to be overridden."""
        raise NotImplementedError(f"{type(self).__name__} has no `torch_call`, so it cannot return tensors ('pt').")

    def numpy_call(self, features: list[Any]) -> Any:
        """The batch as numpy arrays; to be overridden."""
        raise NotImplementedError(f"{type(self).__name__} has no `numpy_call`, so it cannot return arrays ('np').")


def check_kind(kind: str) -> None:
    """Check `return_tensors`.

    Raises:
        ValueError: it is neither "pt" nor "np".
    """
    if kind not in ("pt", "np"):
        raise ValueError(f"`return_tensors` is {kind!r}, but only 'pt' (torch) and 'np' (numpy) are known.")


def default_data_collator(features: Sequence[Any], return_tensors: str = "pt") -> Batch:
    """As `transformers.default_data_collator`, but an error names the column; numpy integers are labels of type long.

    5.3.0 makes floats of numpy integer labels, later versions (5.23) do not.

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
    check_kind(return_tensors)
    if not len(features):
        raise ValueError("A batch was to be made of no samples at all; is the sampler or the dataset empty?")
    samples = [_as_mapping(feature, index) for index, feature in enumerate(features)]
    stack = _stack_torch if return_tensors == "pt" else _stack_numpy
    batch: Batch = {}
    label = next((name for name in _LABELS if samples[0].get(name) is not None), None)
    if label is not None:
        batch["labels"] = _join(samples, label, stack)
    for name, value in samples[0].items():
        if name not in _LABELS and value is not None and not isinstance(value, str):
            batch[name] = _join(samples, name, stack)
    return batch


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


def _join(samples: list[Mapping[str, Any]], name: str, stack: Callable[[list[Any], str], Any]) -> Any:
    """One column of the batch."""
    try:
        values = [sample[name] for sample in samples]
    except KeyError:
        index = next(index for index, sample in enumerate(samples) if name not in sample)
        raise ValueError(
            f"The column {name!r} is in sample 0 of the batch but not in sample {index}, which has "
            f"{list(samples[index])}. Give all samples the same columns."
        ) from None
    try:
        return stack(values, name)
    except (ValueError, TypeError, RuntimeError, IndexError, OverflowError) as error:
        raise _column_error(name, values, error) from error


def _column_error(name: str, values: list[Any], error: Exception) -> ValueError:
    kinds = list(dict.fromkeys(type(value).__name__ for value in values))
    shapes = list(dict.fromkeys(_shape(value) for value in values))
    if "NoneType" not in kinds and (len(shapes) > 1 or "ragged" in shapes):
        return ValueError(
            f"The column {name!r} cannot be made into one tensor, since its values differ in size: "
            f"{', '.join(shapes[:8])}. Pad or cut them to one length, for example with `DataCollatorWithPadding`, "
            "or drop the column."
        )
    return ValueError(
        f"The column {name!r} cannot be made into one tensor: its values are of type {', '.join(kinds)}, which gave "
        f"{type(error).__name__}: {error}. Make numbers of them or drop the column."
    )


def _shape(value: Any) -> str:
    try:
        return str(tuple(np.shape(value)))
    except (ValueError, TypeError, RuntimeError):
        return "ragged"


def _stack_torch(values: list[Any], name: str) -> Any:
    import torch

    first = values[0]
    if name == "label":
        number = first.item() if isinstance(first, torch.Tensor) else first
        return torch.tensor(values, dtype=torch.long if _is_integer(number) else torch.float)
    if isinstance(first, torch.Tensor):
        return torch.stack(values)
    dtype = None
    if name == "label_ids":
        dtype = torch.long if _is_integer(first[0]) else torch.float
    if isinstance(first, np.ndarray):
        return torch.from_numpy(np.stack(values)).to(dtype=dtype)
    return torch.tensor(values, dtype=dtype)


def _stack_numpy(values: list[Any], name: str) -> Any:
    first = values[0]
    if name == "label":
        number = first.item() if isinstance(first, np.ndarray) else first
        return np.array(values, dtype=np.int64 if _is_integer(number) else np.float32)
    if isinstance(first, np.ndarray):
        return np.stack(values)
    if name == "label_ids":
        return np.array(values, dtype=np.int64 if _is_integer(first[0]) else np.float32)
    return np.array(values)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer))


@dataclass
class DefaultDataCollator(DataCollatorMixin):
    """As `transformers.DefaultDataCollator`: `default_data_collator` as an object that knows its `return_tensors`."""

    return_tensors: str = "pt"
    """"pt" for tensors, "np" for arrays."""

    def torch_call(self, features: list[Any]) -> Batch:
        """The batch as torch tensors."""
        return default_data_collator(features, "pt")

    def numpy_call(self, features: list[Any]) -> Batch:
        """The batch as numpy arrays."""
        return default_data_collator(features, "np")


@dataclass
class DataCollatorWithPadding:
    """As `transformers.DataCollatorWithPadding`, for any tokenizer or processor with a method `pad`."""

    tokenizer: Any
    """Its `pad(features, padding=, max_length=, pad_to_multiple_of=, return_tensors=)` makes the batch."""
    padding: Any = True
    """True or "longest": to the longest of the batch; "max_length": to `max_length`; False: not at all."""
    max_length: int | None = None
    """Length in tokens for "max_length", by default the longest that the model takes."""
    pad_to_multiple_of: int | None = None
    """Round the length up to a multiple of this."""
    return_tensors: str = "pt"
    """"pt" for tensors, "np" for arrays."""

    def __post_init__(self) -> None:
        if not callable(getattr(self.tokenizer, "pad", None)):
            raise TypeError(
                f"`tokenizer` is a {type(self.tokenizer).__name__}, which has no method `pad`. Pass a tokenizer or "
                "processor that has one, or use `default_data_collator` on samples of equal length."
            )

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        """The padded batch, in which "label" or "label_ids" are called "labels".

        Args:
            features: samples with lists of token ids and whatever else the tokenizer pads.
        """
        batch = pad_quietly(
            self.tokenizer,
            features,
            padding=self.padding,
            max_length=self.max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            return_tensors=self.return_tensors,
        )
        for name in _LABELS:
            if name in batch:
                batch["labels"] = batch[name]
                del batch[name]
        return batch


def pad_quietly(tokenizer: Any, features: Any, **kwargs: Any) -> Any:
    """`tokenizer.pad`, without the advice of fast tokenizers to call them on texts instead."""
    advice = "Asking-to-pad-a-fast-tokenizer"
    given = getattr(tokenizer, "deprecation_warnings", None)
    if given is None:
        return tokenizer.pad(features, **kwargs)
    before = given.get(advice, False)
    given[advice] = True
    try:
        return tokenizer.pad(features, **kwargs)
    finally:
        given[advice] = before


class RemoveColumnsCollator:
    """As `transformers.trainer_utils.RemoveColumnsCollator`, but an error when the model takes none of the columns.

    Samples that are not dicts go to the collator as they are.

    Args:
        data_collator: makes the batch of what is left.
        signature_columns: the columns that the model takes.
        logger: where the dropped columns are named, once; None for silence.
        model_name: name of the model's class, for that message.
        description: which dataset it is, such as "training".
    """

    def __init__(
        self,
        data_collator: Callable[[list[Any]], Any],
        signature_columns: Sequence[str],
        logger: logging.Logger | None = None,
        model_name: str | None = None,
        description: str | None = None,
    ):
        self.data_collator = data_collator
        self.signature_columns = signature_columns
        self.logger = logger
        self.model_name = model_name
        self.description = description
        self.message_logged = False
        self._keep = frozenset(signature_columns)

    def __call__(self, features: list[Any]) -> Any:
        """The batch of the columns that the model takes.

        Args:
            features: the samples.

        Raises:
            ValueError: when a sample has columns, but none that the model takes.
        """
        return self.data_collator([self._reduced(feature) for feature in features])

    def _reduced(self, feature: Any) -> Any:
        if not isinstance(feature, dict):
            return feature
        kept = {name: value for name, value in feature.items() if name in self._keep}
        if not kept and feature:
            raise no_columns_left_error(feature, self.signature_columns, self.model_name, self.description)
        if len(kept) < len(feature) and not self.message_logged and self.logger and self.model_name:
            ignored = [name for name in feature if name not in kept]
            self.logger.info(ignored_columns_message(ignored, self.model_name, self.description))
            self.message_logged = True
        return kept


def ignored_columns_message(ignored: Iterable[str], model_name: str, description: str | None = None) -> str:
    """What to tell the user when columns are dropped because the model does not take them.

    Args:
        ignored: the dropped columns.
        model_name: name of the model's class.
        description: which dataset it is, such as "training".
    """
    return (
        f"Dropped from the {description + ' ' if description else ''}data, because `{model_name}.forward` has no such "
        f"parameter: {', '.join(ignored)}. Set `remove_unused_columns=False` to keep them."
    )


def no_columns_left_error(
    columns: Iterable[str],
    signature_columns: Iterable[str],
    model_name: str | None = None,
    description: str | None = None,
) -> ValueError:
    """The error for data of which the model takes not a single column.

    Args:
        columns: the columns of the data.
        signature_columns: the columns that the model takes.
        model_name: name of the model's class.
        description: which dataset it is, such as "training".
    """
    forward = f"`{model_name}.forward`" if model_name else "The model's forward"
    return ValueError(
        f"No column of the {description + ' ' if description else ''}data is one that the model takes. The data has: "
        f"{', '.join(columns)}. {forward} takes: {', '.join(signature_columns)}. Rename the columns, or set "
        "`remove_unused_columns=False` to pass all of them to the data_collator."
    )
