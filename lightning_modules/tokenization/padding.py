"""Padding what has been tokenized before."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

import numpy as np

from .backend import Backend
from .encoding import BatchEncoding
from .lengths import Lengths, lengths_of
from .names import PaddingStrategy, TensorType
from .tensors import as_lists, is_tensor


class Padding(Backend):
    """`tokenizer.pad`."""

    def pad(
        self,
        encoded_inputs: Any,
        padding: bool | str | PaddingStrategy = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | TensorType | None = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """As `PreTrainedTokenizerBase.pad`, but what it is given stays as it was.

        "input_ids", "attention_mask", "token_type_ids" and "special_tokens_mask" are padded; other columns are not.

        Args:
            encoded_inputs: one sample, a batch, or a list of samples; lists, arrays or tensors.
            padding: True or "longest": to the longest of the batch; "max_length"; False.
            max_length: in tokens; by default `model_max_length`.
            pad_to_multiple_of: round the length up to a multiple of this.
            padding_side: "right" or "left" in place of the attribute.
            return_attention_mask: add one; by default if `model_input_names` has it.
            return_tensors: "pt" or "np"; by default what came in.
            verbose: warn of a `max_length` without any effect.

        Raises:
            ValueError: there are no "input_ids"; columns differ in length; there is no pad token.
        """
        columns = _columns(encoded_inputs)
        name = self.model_input_names[0]
        if name not in columns:
            raise ValueError(
                f"There is no column {name!r} to pad; there are: {', '.join(columns)}. Give the tokenizer what its "
                "call returned, and let it keep its columns: with a Trainer, see `remove_unused_columns`."
            )
        rows = columns[name]
        if rows is None or (isinstance(rows, Sized) and len(rows) == 0):
            return BatchEncoding({**columns, "attention_mask": []} if return_attention_mask else columns)
        kind = return_tensors or _kind_of(rows, name)
        if not _is_plain(rows):
            columns = {key: as_lists(value) for key, value in columns.items()}
        lengths = lengths_of(self, padding, None, max_length, verbose=verbose)
        side = _check_side(self.padding_side if padding_side is None else padding_side)
        options = (pad_to_multiple_of, side, return_attention_mask)
        if not isinstance(columns[name][0], (list, tuple)):
            return BatchEncoding(self._pad_row(columns, lengths, *options), tensor_type=kind)
        return BatchEncoding(self._pad_rows(columns, lengths, *options), tensor_type=kind)

    def _pad_rows(self, columns: dict[str, Any], lengths: Lengths, *options: Any) -> dict[str, list[Any]]:
        name = self.model_input_names[0]
        count = len(columns[name])
        for key, values in columns.items():
            if len(values) != count:
                raise ValueError(f"The column {key!r} has {len(values)} rows, but {name!r} has {count}.")
        if lengths.padding == PaddingStrategy.LONGEST:
            lengths = Lengths(PaddingStrategy.MAX_LENGTH, max_length=max(len(row) for row in columns[name]))
        rows = [
            self._pad_row({key: values[index] for key, values in columns.items()}, lengths, *options)
            for index in range(count)
        ]
        return {key: [row[key] for row in rows] for key in rows[0]}

    def _pad_row(
        self, row: dict[str, Any], lengths: Lengths, multiple: int | None, side: str, mask: bool | None
    ) -> dict[str, Any]:
        name = self.model_input_names[0]
        ids = row[name]
        if mask is None:
            mask = "attention_mask" in self.model_input_names
        if mask and "attention_mask" not in row:
            row["attention_mask"] = [1] * len(ids)
        if not lengths.pads:
            return row
        length = len(ids) if lengths.padding == PaddingStrategy.LONGEST else lengths.max_length
        assert length is not None
        if multiple is not None:
            length = -(-length // multiple) * multiple
        fills = {
            **({"attention_mask": 0} if mask else {}),
            "token_type_ids": self.pad_token_type_id,
            "special_tokens_mask": 1,
            name: self.pad_token_id,
        }
        for key, fill in fills.items():
            if key in row:
                more = [fill] * (length - len(ids))
                row[key] = [*row[key], *more] if side == "right" else [*more, *row[key]]
        return row


def _columns(encoded: Any) -> dict[str, Any]:
    if isinstance(encoded, (list, tuple)) and encoded and isinstance(encoded[0], Mapping):
        names = list(encoded[0])
        for index, sample in enumerate(encoded):
            for name in names:
                if name not in sample:
                    raise ValueError(f"The column {name!r} is in sample 0 but not in sample {index}.")
        return {name: [sample[name] for sample in encoded] for name in names}
    if isinstance(encoded, Mapping):
        return dict(encoded)
    raise ValueError(
        f"A {type(encoded).__name__} cannot be padded; expected what a call of the tokenizer returned, or a list of it."
    )


def _kind_of(rows: Any, name: str) -> str | None:
    """What came in: "pt", "np", or None for lists."""
    first = _first(rows)
    if _is_plain(rows):
        return None
    if is_tensor(first):
        return "pt"
    if isinstance(first, (np.ndarray, np.number)):
        return "np"
    raise ValueError(f"The column {name!r} holds {first!r}, a {type(first).__name__}; expected numbers.")


def _first(rows: Any) -> Any:
    """The first number, or row of numbers, that is no list."""
    if isinstance(rows[0], (list, tuple)):
        return next((row[0] for row in rows if len(row)), None)
    return rows[0]


def _is_plain(rows: Any) -> bool:
    """Whether they are lists of plain numbers."""
    first = _first(rows)
    return first is None or isinstance(first, (int, list, tuple))


def _check_side(side: str) -> str:
    if side not in ("right", "left"):
        raise ValueError(f"`padding_side` is {side!r}; it can be 'right' or 'left'.")
    return side
