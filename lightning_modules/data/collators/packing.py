"""The collator that packs several documents into a row, each of which attends to itself alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import Batch, DataCollatorMixin, as_kind, check_kind, whole_numbers

_LOWEST = {
    "float32": np.finfo(np.float32).min,
    "float16": np.finfo(np.float16).min,
    "bfloat16": -3.3895314e38,
}
"""The number that masks, by the dtype of the mask."""


@dataclass
class DataCollatorWithPacking(DataCollatorMixin):
    """Packs the documents of a batch into rows of at most `max_length` tokens, for training.

    The longest come first, each into the first row with room for it; what is left at the ends of
    rows is padding. The mask is block-diagonal: loss and gradients are those of each document
    alone. An evaluation, which counts samples, takes another collator,
    `Trainer(eval_data_collator=)`.

    Args:
        max_length: of a row, in tokens; rows are as long as the longest of them.
        pad_token_id: the token at the ends of rows.
        mask_dtype: of "attention_mask": "float32", "float16" or "bfloat16" for one that is added to
            scores, as eager attention and SDPA of transformers take it; "bool", for SDPA alone, in
            a quarter of the memory; None for no mask, where the model tells documents apart by
            their positions, as with flash attention.
        causal: a token attends to those before it only.
        return_tensors: "pt" for tensors, "np" for arrays.

    Raises:
        ValueError: `mask_dtype` is none of these.
    """

    max_length: int
    pad_token_id: int = 0
    mask_dtype: str | None = "float32"
    causal: bool = True
    return_tensors: str = "pt"

    def __post_init__(self) -> None:
        if self.mask_dtype not in (known := [*_LOWEST, "bool", None]):
            raise ValueError(f"mask_dtype={self.mask_dtype!r} is not known. Choose from: {known}.")

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Batch:
        """Return "input_ids", "labels" and "position_ids", shape (rows, tokens); the mask, (rows,
        1, tokens, tokens).

        Args:
            features: documents with "input_ids", and "labels" if they are not the same; those of
                first tokens, which nothing before them could predict, become -100.
            return_tensors: "pt" or "np" in place of the attribute.

        Raises:
            ValueError: a document is longer than `max_length`, or an id is no whole number.
        """
        kind = self.return_tensors if return_tensors is None else return_tensors
        check_kind(kind)
        documents = [
            whole_numbers(each["input_ids"], "input_ids", index)
            for index, each in enumerate(features)
        ]
        rows = self._packed(list(map(len, documents)))
        shape = (
            len(rows),
            max((sum(len(documents[index]) for index in row) for row in rows), default=0),
        )
        ids, labels = np.full(shape, self.pad_token_id), np.full(shape, -100)
        positions, numbers = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, members in enumerate(rows):
            start = 0
            for number, index in enumerate(members, 1):
                part = row, slice(start, start := start + len(documents[index]))
                ids[part], positions[part], numbers[part] = (
                    documents[index],
                    range(len(documents[index])),
                    number,
                )
                labels[part] = whole_numbers(
                    features[index].get("labels", documents[index]), "labels", index
                )
                labels[row, part[1].start] = -100
        batch = {"input_ids": ids, "labels": labels, "position_ids": positions}
        made = {name: as_kind(values, kind) for name, values in batch.items()}
        return (
            made
            if self.mask_dtype is None
            else {**made, "attention_mask": self._mask(numbers, kind)}
        )

    def _packed(self, lengths: list[int]) -> list[list[int]]:
        """Return the documents of each row; empty ones are in none."""
        rows: list[list[int]] = []
        room: list[int] = []
        for index in sorted(np.flatnonzero(lengths).tolist(), key=lambda index: -lengths[index]):
            if lengths[index] > self.max_length:
                said = (
                    f"Document {index} of the batch has {lengths[index]} tokens, more than "
                    "max_length="
                )
                raise ValueError(
                    f"{said}{self.max_length}. Raise it, or truncate or split the document."
                )
            row = next((row for row, free in enumerate(room) if free >= lengths[index]), len(rows))
            if row == len(rows):
                rows.append([])
                room.append(self.max_length)
            rows[row].append(index)
            room[row] -= lengths[index]
        return rows

    def _mask(self, numbers: np.ndarray, kind: str) -> Any:
        """Return the mask of rows in which each token has the number of its document; padding is
        one as well.
        """
        seen = numbers[:, None, :, None] == numbers[:, None, None, :]
        if self.causal:
            seen &= np.tri(numbers.shape[1], dtype=bool)
        if self.mask_dtype in (None, "bool"):
            return as_kind(seen, kind)
        mask = as_kind(np.where(seen, np.float32(0), np.float32(_LOWEST[self.mask_dtype])), kind)
        if kind == "np":
            return mask.astype(self.mask_dtype)
        import torch

        return mask.to(getattr(torch, self.mask_dtype))
