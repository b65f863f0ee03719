"""The collator that packs several documents into a row; each document attends only to itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import Batch, DataCollatorMixin, as_integers, as_return_type, check_return_tensors

_LOWEST = {
    "float32": np.finfo(np.float32).min,
    "float16": np.finfo(np.float16).min,
    "bfloat16": -3.3895314e38,
}
"""The number in a mask that hides a score, for each dtype."""


@dataclass
class DataCollatorWithPacking(DataCollatorMixin):
    """Packs the documents of a batch into rows of at most `max_length` tokens, for training.

    Each document is placed into the first row with room for it, starting with the longest; the ends
    of rows are padded. The mask is block-diagonal, so loss and gradients are the same as for
    separate documents. Evaluations count samples, so they need another collator, passed as
    `Trainer(eval_data_collator=)`.

    Args:
        max_length: maximum number of tokens in a row. All rows are as long as the longest of them.
        pad_token_id: the token that pads the ends of rows.
        mask_dtype: dtype of "attention_mask". "float32", "float16" or "bfloat16" make a mask that
            is added to scores, for eager attention and SDPA of transformers; "bool" makes a mask
            that only SDPA accepts, in a quarter of the memory of "float32"; None makes no mask, for
            models that separate documents by their positions, as flash attention does.
        causal: True if a token attends only to itself and the tokens before it.
        return_tensors: "pt" for tensors, "np" for arrays.

    Raises:
        ValueError: `mask_dtype` has another value.
    """

    max_length: int
    pad_token_id: int = 0
    mask_dtype: str | None = "float32"
    causal: bool = True
    return_tensors: str = "pt"

    def __post_init__(self) -> None:
        supported = [*_LOWEST, "bool", None]
        if self.mask_dtype not in supported:
            raise ValueError(
                f"mask_dtype={self.mask_dtype!r} is not supported. Choose from: {supported}."
            )

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Batch:
        """Return the batch of these documents.

        Args:
            features: documents with "input_ids", and with "labels" if they differ from the ids.
            return_tensors: "pt" or "np"; by default the attribute.

        Returns:
            "input_ids", "labels" and "position_ids" of shape (rows, tokens), and "attention_mask"
            of shape (rows, 1, tokens, tokens).

        Raises:
            ValueError: a document is longer than `max_length`, or an id is not a whole number.
        """
        if return_tensors is None:
            return_tensors = self.return_tensors
        check_return_tensors(return_tensors)
        documents: list[np.ndarray] = []
        for index, feature in enumerate(features):
            documents.append(as_integers(feature["input_ids"], "input_ids", index))
        lengths = [len(document) for document in documents]
        rows = self._assign_to_rows(lengths)

        # All rows are as long as the longest one. Fill them with padding, over which the documents
        # are written below.
        longest = 0
        for documents_in_row in rows:
            tokens_in_row = sum(lengths[index] for index in documents_in_row)
            longest = max(longest, tokens_in_row)
        shape = (len(rows), longest)
        ids = np.full(shape, self.pad_token_id)
        labels = np.full(shape, -100)
        positions = np.zeros(shape, np.int64)
        document_numbers = np.zeros(shape, np.int64)

        # Write the documents of each row one after the other; the positions of each start at 0.
        for row, documents_in_row in enumerate(rows):
            start = 0
            for number, index in enumerate(documents_in_row, 1):
                document = documents[index]
                end = start + len(document)
                ids[row, start:end] = document
                positions[row, start:end] = np.arange(len(document))
                document_numbers[row, start:end] = number

                # Mask the first label, because the previous token belongs to another document.
                labels_of_document = features[index].get("labels", document)
                labels[row, start:end] = as_integers(labels_of_document, "labels", index)
                labels[row, start] = -100
                start = end

        arrays = {"input_ids": ids, "labels": labels, "position_ids": positions}
        batch: Batch = {
            name: as_return_type(values, return_tensors) for name, values in arrays.items()
        }
        if self.mask_dtype is not None:
            batch["attention_mask"] = self._mask(document_numbers, return_tensors)
        return batch

    def _assign_to_rows(self, lengths: list[int]) -> list[list[int]]:
        """Return the indices of the documents of each row; empty documents are left out.

        Args:
            lengths: the lengths of the documents.
        """
        # Place the longest documents first; short ones then fill the remaining room.
        rows: list[list[int]] = []
        room: list[int] = []
        longest_first = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
        for index in longest_first:
            length = lengths[index]
            if length == 0:
                continue
            if length > self.max_length:
                raise ValueError(
                    f"Document {index} of the batch has {length} tokens, more than "
                    f"max_length={self.max_length}. Raise it, or truncate or split the document."
                )

            row = _first_with_room(room, length)
            if row is None:
                row = len(rows)
                rows.append([])
                room.append(self.max_length)
            rows[row].append(index)
            room[row] -= length
        return rows

    def _mask(self, document_numbers: np.ndarray, return_tensors: str) -> Any:
        """Return the attention mask that separates documents.

        Args:
            document_numbers: for each token, the number of its document in its row; padding has the
                number 0, like another document.
            return_tensors: "pt" or "np".
        """
        # (rows, 1, tokens, tokens): whether the token of the third dimension attends to that of the
        # fourth. Both have to be in the same document.
        attends = document_numbers[:, None, :, None] == document_numbers[:, None, None, :]
        if self.causal:
            attends &= np.tri(document_numbers.shape[1], dtype=bool)
        if self.mask_dtype in (None, "bool"):
            return as_return_type(attends, return_tensors)

        # The mask is added to the scores: 0 keeps a score, the lowest number of the dtype hides it.
        # Create it in float32, because numpy has no bfloat16.
        hidden = np.float32(_LOWEST[self.mask_dtype])
        values = np.where(attends, np.float32(0), hidden)
        mask = as_return_type(values, return_tensors)
        if return_tensors == "np":
            return mask.astype(self.mask_dtype)
        import torch

        return mask.to(getattr(torch, self.mask_dtype))


def _first_with_room(room: list[int], length: int) -> int | None:
    """Return the index of the first row with room for a document; None if there is none.

    Args:
        room: number of free tokens in each row.
        length: number of tokens of the document.
    """
    for row, free in enumerate(room):
        if free >= length:
            return row
    return None
