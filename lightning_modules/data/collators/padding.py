"""Collators that pad samples: for sequences, token classification and multiple choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import (
    LABELS,
    Batch,
    DataCollatorMixin,
    as_integers,
    as_return_type,
    label_name,
    pad_without_fast_tokenizer_warning,
    padded_rows,
    without_columns,
)


@dataclass
class _Padding:
    """Fields and methods of all collators that pad with a tokenizer."""

    tokenizer: Any
    """The tokenizer, whose `pad(features, padding=, max_length=, pad_to_multiple_of=,
    return_tensors=)` makes the batch.
    """
    padding: Any = True
    """True or "longest" pads to the longest sample of the batch, "max_length" to `max_length`;
    False does not pad.
    """
    max_length: int | None = None
    """Number of tokens for "max_length"; by default the maximum that the model accepts."""
    pad_to_multiple_of: int | None = None
    """The length is rounded up to a multiple of this number."""

    def _pad(self, features: list[Any], return_tensors: str) -> Any:
        return pad_without_fast_tokenizer_warning(
            self.tokenizer,
            features,
            padding=self.padding,
            max_length=self.max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            return_tensors=return_tensors,
        )


class _TensorsOrArrays(DataCollatorMixin):
    """Base class of collators that make tensors and arrays with one method, `_batch`."""

    def _batch(self, features: list[Any], return_tensors: str) -> Any:
        """Return the batch, as tensors for "pt" and as arrays for "np"."""
        raise NotImplementedError

    def torch_call(self, features: list[Any]) -> Any:
        """Return the batch as tensors."""
        return self._batch(features, "pt")

    def numpy_call(self, features: list[Any]) -> Any:
        """Return the batch as arrays."""
        return self._batch(features, "np")


@dataclass
class DataCollatorWithPadding(_Padding):
    """Pad the samples of a batch to one length.

    Works like `transformers.DataCollatorWithPadding`, for any tokenizer or processor with a method
    `pad`.
    """

    return_tensors: str = "pt"
    """"pt" for tensors, "np" for arrays."""

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        """Return the padded batch, in which "label" or "label_ids" is renamed to "labels".

        Args:
            features: samples with the columns that the tokenizer pads.
        """
        batch = self._pad(features, self.return_tensors)
        for name in LABELS:
            if name in batch:
                batch["labels"] = batch[name]
                del batch[name]
        return batch


@dataclass
class DataCollatorForTokenClassification(_Padding, _TensorsOrArrays):
    """Pad the samples of a batch, including the labels of their tokens.

    Works like `transformers.DataCollatorForTokenClassification`, for any tokenizer or processor
    with a method `pad`. The labels stay in their column, "label" or "labels", as int64 of shape
    (samples, tokens).

    With `return_tensors="np"` it works as in 5.23 instead of 5.3.0: the column may be called
    "label", and only labels are converted to integers.
    """

    label_pad_token_id: int = -100
    """The value that pads labels, on the tokenizer's padding side; losses ignore -100."""
    return_tensors: str = "pt"
    """"pt" for tensors, "np" for arrays."""

    def _batch(self, features: list[Any], return_tensors: str) -> Any:
        name = label_name(features)
        batch = self._pad(without_columns(features, name), return_tensors)
        if name in features[0]:
            rows = _label_rows(features, name)
            length = batch["input_ids"].shape[1]
            labels = padded_rows(rows, length, self.label_pad_token_id, self.tokenizer)
            batch[name] = as_return_type(labels, return_tensors)
        return batch


@dataclass
class DataCollatorForMultipleChoice(_Padding, _TensorsOrArrays):
    """Pad the choices of all samples of a batch to one length.

    Works like `transformers.DataCollatorForMultipleChoice`, but does not change the samples, can
    also make arrays, and accepts samples without labels.

    Every column of a sample holds one value for each choice, such as a list of token ids. The
    columns of the batch have the shape (samples, choices, tokens); "labels" is int64 of shape
    (samples,).
    """

    return_tensors: str = "pt"
    """"pt" for tensors, "np" for arrays."""

    # Only in this class does transformers call the parameter `examples`; callers may pass it by
    # name.
    def torch_call(self, examples: list[Any]) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - the name in transformers
        """Return the batch as tensors.

        Args:
            examples: the samples.
        """
        return super().torch_call(examples)

    def _batch(self, features: list[Any], return_tensors: str) -> Batch:
        name = label_name(features)
        choices = self._number_of_choices(features)

        # Pad each choice as a separate sequence.
        sequences: list[dict[str, Any]] = []
        for sample in without_columns(features, name):
            for choice in range(choices):
                sequences.append({key: values[choice] for key, values in sample.items()})
        padded = self._pad(sequences, return_tensors)
        batch: Batch = {}
        for key, value in padded.items():
            batch[key] = value.reshape(len(features), choices, -1)

        if name in features[0]:
            labels = np.array(_label_rows(features, name))
            batch["labels"] = as_return_type(labels, return_tensors)
        return batch

    def _number_of_choices(self, features: list[Any]) -> int:
        counts = [len(feature["input_ids"]) for feature in features]
        if len(set(counts)) > 1:
            raise ValueError(
                f"The samples of the batch have different numbers of choices: {counts[:8]}. Give "
                "all samples equally many."
            )
        return counts[0]


def _label_rows(features: list[Any], name: str) -> list[np.ndarray]:
    """Return the labels of each sample."""
    rows: list[np.ndarray] = []
    for index, feature in enumerate(features):
        rows.append(as_integers(feature[name], name, index))
    return rows
