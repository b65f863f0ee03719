"""Collators that pad: sequences, token classification, multiple choice."""

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
    """Fields and steps of all collators that pad with a tokenizer."""

    tokenizer: Any
    """Its `pad(features, padding=, max_length=, pad_to_multiple_of=, return_tensors=)` makes the
    batch.
    """
    padding: Any = True
    """True or "longest": to the longest of the batch; "max_length": to `max_length`; False: not
    at all.
    """
    max_length: int | None = None
    """Length in tokens for "max_length", by default the longest that the model takes."""
    pad_to_multiple_of: int | None = None
    """Round the length up to a multiple of this."""

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
    """Base of collators that make tensors and arrays with one method, `_batch`."""

    def _batch(self, features: list[Any], return_tensors: str) -> Any:
        """Return the batch as `return_tensors` says."""
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
        """Return the padded batch, in which "label" or "label_ids" are called "labels".

        Args:
            features: samples with lists of token ids and whatever else the tokenizer pads.
        """
        batch = self._pad(features, self.return_tensors)
        for name in LABELS:
            if name in batch:
                batch["labels"] = batch[name]
                del batch[name]
        return batch


@dataclass
class DataCollatorForTokenClassification(_Padding, _TensorsOrArrays):
    """Pad the samples of a batch, and their labels of each token.

    Works like `transformers.DataCollatorForTokenClassification`, for any tokenizer or processor
    with a method `pad`. The labels stay in their column, "label" or "labels", as int64 of shape
    (samples, tokens).

    Differs from 5.3.0 with `return_tensors="np"`, as 5.23 does: the column may be called "label",
    and only labels are converted to integers.
    """

    label_pad_token_id: int = -100
    """Fills up labels, on the side on which the tokenizer pads; losses leave -100 out."""
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

    Works like `transformers.DataCollatorForMultipleChoice`, but it leaves the samples unchanged,
    makes arrays too, and accepts samples without labels.

    Every column of a sample holds one value for each choice: lists of token ids and the like. The
    columns of the batch have the shape (samples, choices, tokens); "labels" are int64 of shape
    (samples,).
    """

    return_tensors: str = "pt"
    """"pt" for tensors, "np" for arrays."""

    # transformers calls the parameter `examples` in this class only, and callers may name it.
    def torch_call(self, examples: list[Any]) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - the name in transformers
        """Return the batch as tensors.

        Args:
            examples: the samples.
        """
        return super().torch_call(examples)

    def _batch(self, features: list[Any], return_tensors: str) -> Batch:
        name = label_name(features)
        choices = self._number_of_choices(features)

        # Each choice is padded as a sequence.
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
