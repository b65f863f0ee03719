"""The collator that joins all samples of a batch into one long sequence, without padding."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np

from .base import Batch, as_return_type, check_return_tensors, has_fraction
from .default import DefaultDataCollator

# Columns with one value per token, which get a batch dimension.
_INT64_COLUMNS = ("input_ids", "labels", "position_ids")
_TOKEN_COLUMNS = (*_INT64_COLUMNS, "seq_idx")
# Columns that are plain numbers.
_NUMBERS = ("max_length_q", "max_length_k")


@dataclass
class DataCollatorWithFlattening(DefaultDataCollator):
    """Join all samples of a batch into one sequence, without padding.

    Works like `transformers.DataCollatorWithFlattening` of 5.3.0, with the option
    `position_ids_start` of transformers 5.23.

    Empty samples are left out. The model's attention has to separate the samples, using
    `position_ids`, `seq_idx` or the lengths.

    Args:
        args: passed to `DefaultDataCollator`.
        return_position_ids: add "position_ids", each token's position in its sample.
        separator_id: the label of each sample's first token.
        return_flash_attn_kwargs: add "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q" and
            "max_length_k".
        return_seq_idx: add "seq_idx", the index of each token's sample.
        position_ids_start: position of each sample's first token; RoBERTa and similar models start
            at `padding_idx + 1`, mostly 2.
        kwargs: passed to `DefaultDataCollator`.
    """

    def __init__(
        self,
        *args: Any,
        return_position_ids: bool = True,
        separator_id: int = -100,
        return_flash_attn_kwargs: bool = False,
        return_seq_idx: bool = False,
        position_ids_start: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.return_position_ids = return_position_ids
        self.separator_id = separator_id
        self.return_flash_attn_kwargs = return_flash_attn_kwargs
        self.return_seq_idx = return_seq_idx
        self.position_ids_start = position_ids_start

    def __call__(
        self,
        features: list[Any],
        return_tensors: str | None = None,
        separator_id: int | None = None,
    ) -> Batch:
        """Return the batch: sequences of shape (1, all tokens), and the columns that separate the
        samples.

        Args:
            features: samples with "input_ids", and "labels" if they differ from "input_ids".
            return_tensors: "pt" or "np"; by default the attribute.
            separator_id: see the class; by default the attribute.
        """
        if return_tensors is None:
            return_tensors = self.return_tensors
        check_return_tensors(return_tensors)
        if separator_id is None:
            separator_id = self.separator_id
        columns = self._columns(features, separator_id)
        return {name: _column(name, values, return_tensors) for name, values in columns.items()}

    def _columns(self, features: list[Any], separator: int) -> dict[str, list[int] | int]:
        """Return the columns of the batch as lists and numbers."""
        features = [feature for feature in features if len(feature["input_ids"]) > 0]
        if not features:
            raise ValueError(
                "All samples of the batch are empty. Remove them from the dataset, or use larger "
                "batches."
            )
        samples = [_as_list(feature["input_ids"]) for feature in features]
        labels = samples
        # As in transformers, the first sample decides whether the samples have labels.
        if "labels" in features[0]:
            labels = [_as_list(feature["labels"]) for feature in features]
        lengths = [len(sample) for sample in samples]

        # Mask the first label of each sample, because the previous token is from another sample.
        masked_labels = [[separator, *row[1:]] for row in labels]
        columns: dict[str, list[int] | int] = {
            "input_ids": list(chain.from_iterable(samples)),
            "labels": list(chain.from_iterable(masked_labels)),
        }

        # Add the columns with which the model's attention separates the samples.
        if self.return_position_ids:
            first = self.position_ids_start
            positions = [range(first, first + length) for length in lengths]
            columns["position_ids"] = list(chain.from_iterable(positions))
        if self.return_seq_idx:
            columns["seq_idx"] = np.repeat(np.arange(len(lengths)), lengths).tolist()
        if self.return_flash_attn_kwargs:
            boundaries = list(accumulate(lengths, initial=0))
            columns["cu_seq_lens_q"] = boundaries
            columns["cu_seq_lens_k"] = boundaries
            columns["max_length_q"] = max(lengths)
            columns["max_length_k"] = max(lengths)
        return columns


def _as_list(values: Any) -> list[int]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _column(name: str, values: list[int] | int, return_tensors: str) -> object:
    """Return a column as a tensor or array, except the maximum lengths, which are numbers."""
    if name in _NUMBERS:
        return values
    indices = np.asarray(values)
    if name in _TOKEN_COLUMNS:
        indices = indices[None]
    if has_fraction(indices):
        raise ValueError(
            f"{name} of the batch has numbers with a fraction, but indices of tokens are whole "
            "numbers. Convert them to integers."
        )
    # Flash attention requires "cu_seq_lens" and "seq_idx" to be int32.
    dtype = np.int64 if name in _INT64_COLUMNS else np.int32
    return as_return_type(indices.astype(dtype), return_tensors)
