"""The collator for sequence-to-sequence models, which pads inputs and labels separately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import (
    as_integers,
    as_return_type,
    check_return_tensors,
    pad_without_fast_tokenizer_warning,
    padded_rows,
    without_columns,
)


@dataclass
class DataCollatorForSeq2Seq:
    """Pad the inputs and the labels of a batch separately, because their lengths differ.

    Works like `transformers.DataCollatorForSeq2Seq`, for any tokenizer or processor with a method
    `pad`. Labels are padded on the tokenizer's padding side.
    """

    tokenizer: Any
    """The tokenizer, whose `pad(features, padding=, max_length=, pad_to_multiple_of=,
    return_tensors=)` makes the batch.
    """
    model: Any = None
    """The model. If it has a method `prepare_decoder_input_ids_from_labels(labels=)`, the method
    makes `decoder_input_ids`.
    """
    padding: Any = True
    """True or "longest" pads to the longest sample of the batch, "max_length" to `max_length`;
    False does not pad.
    """
    max_length: int | None = None
    """Number of tokens of inputs and labels with "max_length". By default, inputs are padded to the
    maximum that the model accepts, and labels to the longest of the batch.
    """
    pad_to_multiple_of: int | None = None
    """Lengths are rounded up to a multiple of this number."""
    label_pad_token_id: int = -100
    """The value that pads labels; losses ignore -100."""
    return_tensors: str = "pt"
    """"pt" for tensors, "np" for arrays."""

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Any:
        """Return the padded batch.

        Args:
            features: samples with the columns that the tokenizer pads, and token ids as "label" or
                "labels".
            return_tensors: "pt" or "np"; by default the attribute.

        Returns:
            The result of the tokenizer's `pad`, with the column "labels", int64 of shape (samples,
            length); None if the samples have no labels.

        Raises:
            ValueError: labels cannot be made into one tensor, or are not whole numbers.
        """
        if return_tensors is None:
            return_tensors = self.return_tensors
        check_return_tensors(return_tensors)
        name = "label" if "label" in features[0] else "labels"
        labels = self._labels(features, name)
        batch = pad_without_fast_tokenizer_warning(
            self.tokenizer,
            without_columns(features, name),
            padding=self.padding,
            max_length=self.max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            return_tensors=return_tensors,
        )
        if labels is None:
            batch["labels"] = None
            return batch

        batch["labels"] = as_return_type(labels, return_tensors)
        prepare = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if prepare is not None:
            batch["decoder_input_ids"] = prepare(labels=batch["labels"])
        return batch

    def _labels(self, features: list[Any], name: str) -> np.ndarray | None:
        """Return the padded labels; None if no sample has any."""
        rows = [feature.get(name) for feature in features]
        without_labels = [index for index, row in enumerate(rows) if row is None]
        if len(without_labels) == len(rows):
            return None
        if without_labels:
            raise ValueError(
                f"Sample {without_labels[0]} of the batch has no {name!r}, but others have. Give "
                "all samples labels, or none."
            )
        arrays = [as_integers(row, name, index) for index, row in enumerate(rows)]
        length = self._label_length(arrays, name)
        return padded_rows(arrays, length, self.label_pad_token_id, self.tokenizer)

    def _label_length(self, arrays: list[np.ndarray], name: str) -> int:
        """Return the length to which labels are padded."""
        lengths = [len(array) for array in arrays]
        # `padding` may be a member of transformers' `PaddingStrategy`.
        padding = getattr(self.padding, "value", self.padding)
        if padding is False or padding == "do_not_pad":
            if len(set(lengths)) > 1:
                raise ValueError(
                    f"padding={padding} needs {name!r} of one length, but those of the batch have "
                    f"the lengths {lengths[:8]}. Set padding=True."
                )
            return lengths[0]

        length = max(lengths)
        if padding == "max_length" and self.max_length is not None:
            length = self.max_length
        multiple = self.pad_to_multiple_of or 1
        return -(-length // multiple) * multiple
