"""Pads tokenized samples, and reads the arguments `padding`, `truncation` and `max_length`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from .backend import Backend
from .encoding import BatchEncoding, as_lists, is_tensor
from .names import ALMOST_NO_LIMIT, PaddingStrategy, TensorType, TruncationStrategy


@dataclass(frozen=True)
class Lengths:
    """Padding and truncation of a call, and their length."""

    padding: PaddingStrategy = PaddingStrategy.DO_NOT_PAD
    truncation: TruncationStrategy = TruncationStrategy.DO_NOT_TRUNCATE
    max_length: int | None = None

    @property
    def pads(self) -> bool:
        """Return whether anything is padded."""
        return self.padding != PaddingStrategy.DO_NOT_PAD

    @property
    def truncates(self) -> bool:
        """Return whether anything may be truncated."""
        return self.truncation != TruncationStrategy.DO_NOT_TRUNCATE


def lengths_of(
    tokenizer: object,
    padding: object = False,
    truncation: object = None,
    max_length: int | None = None,
    pad_to_multiple_of: int | None = None,
    verbose: bool = True,
) -> Lengths:
    """Read these arguments as the reference does.

    A length alone truncates; the default length is that of the model.

    Args:
        tokenizer: has `model_max_length` and `pad_token`.
        padding: True or "longest", "max_length", False.
        truncation: True or "longest_first", "only_first", "only_second", False; None truncates only
            if a length is passed.
        max_length: in tokens, including special tokens.
        pad_to_multiple_of: round the length up to a multiple of this.
        verbose: warn of a length without effect.

    Raises:
        ValueError: a name is unknown, a pad token is missing, or the length is not such a multiple.
    """
    if max_length is not None and padding is False and truncation is None:
        truncation = TruncationStrategy.LONGEST_FIRST
    padding_strategy = _padding_strategy(padding)
    truncation_strategy = _truncation_strategy(truncation)

    truncates = truncation_strategy != TruncationStrategy.DO_NOT_TRUNCATE
    if padding is True and max_length is not None and not truncates and verbose:
        warnings.warn(
            "`max_length` has no effect with `padding=True` and no truncation: pass "
            "`padding='max_length'` to pad to it, or `truncation=True` to cut to it.",
            stacklevel=3,
        )

    lengths = Lengths(padding_strategy, truncation_strategy, max_length)
    if max_length is None:
        lengths = _limited_by_model(tokenizer, lengths)
    _check(tokenizer, lengths, pad_to_multiple_of)
    return lengths


def _padding_strategy(padding: object) -> PaddingStrategy:
    if padding is False:
        return PaddingStrategy.DO_NOT_PAD
    if padding is True:
        return PaddingStrategy.LONGEST
    # The members of transformers' enumeration are read by their value.
    return PaddingStrategy(getattr(padding, "value", padding))


def _truncation_strategy(truncation: object) -> TruncationStrategy:
    if truncation is False or truncation is None:
        return TruncationStrategy.DO_NOT_TRUNCATE
    if truncation is True:
        return TruncationStrategy.LONGEST_FIRST
    return TruncationStrategy(getattr(truncation, "value", truncation))


def _limited_by_model(tokenizer: Any, lengths: Lengths) -> Lengths:
    """Return the lengths with the model's maximum length, if padding or truncation needs one.

    If the model has no maximum length, padding to it and truncation are disabled.
    """
    padding = lengths.padding
    needs_length = padding == PaddingStrategy.MAX_LENGTH or lengths.truncates
    if not needs_length:
        return lengths
    if tokenizer.model_max_length <= ALMOST_NO_LIMIT:
        return Lengths(padding, lengths.truncation, tokenizer.model_max_length)
    if padding == PaddingStrategy.MAX_LENGTH:
        padding = PaddingStrategy.DO_NOT_PAD
    return Lengths(padding)


def _check(tokenizer: Any, lengths: Lengths, multiple: int | None) -> None:
    if not lengths.pads:
        return
    pad_token_id = tokenizer.pad_token_id
    if tokenizer.pad_token is None or pad_token_id is None or pad_token_id < 0:
        raise ValueError(
            "`padding` needs a pad token. Set one, such as `tokenizer.pad_token = "
            "tokenizer.eos_token`."
        )

    length = lengths.max_length
    if not lengths.truncates or multiple is None or length is None:
        return
    if length % multiple:
        raise ValueError(
            f"`max_length` ({length}) has to be a multiple of `pad_to_multiple_of` ({multiple})."
        )


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
        """Pad samples to one length; the samples are not changed.

        Works like `PreTrainedTokenizerBase.pad` of transformers.

        "input_ids", "attention_mask", "token_type_ids" and "special_tokens_mask" are padded; other
        columns are not.

        Args:
            encoded_inputs: one sample, a batch, or a list of samples; lists, arrays or tensors.
            padding: True or "longest": to the longest of the batch; "max_length"; False.
            max_length: in tokens; by default `model_max_length`.
            pad_to_multiple_of: round the length up to a multiple of this.
            padding_side: "right" or "left"; by default the attribute.
            return_attention_mask: add one; by default if `model_input_names` has it.
            return_tensors: "pt" or "np"; by default the type of the input.
            verbose: warn of a `max_length` without effect.

        Returns:
            The padded columns.

        Raises:
            ValueError: "input_ids" are missing, columns differ in length, or no pad token.
        """
        columns = _to_columns(encoded_inputs)
        name = self.model_input_names[0]
        if name not in columns:
            raise ValueError(
                f"The column {name!r} to pad is missing; the columns are {', '.join(columns)} (see "
                "remove_unused_columns)."
            )

        rows = columns[name]
        # An empty batch has no number that tells its type.
        if rows is None or (isinstance(rows, Sized) and len(rows) == 0):
            if return_attention_mask:
                columns["attention_mask"] = []
            return BatchEncoding(columns)

        # Pad lists of numbers, and return the type of the input.
        tensor_type = _tensor_type_of(rows, name)
        if tensor_type is not None:
            columns = {key: as_lists(value) for key, value in columns.items()}
        lengths = lengths_of(self, padding, None, max_length, verbose=verbose)
        side = check_side("padding_side", padding_side or self.padding_side)
        options = (pad_to_multiple_of, side, return_attention_mask)
        is_batch = isinstance(columns[name][0], (list, tuple))
        if is_batch:
            padded = self._pad_rows(columns, lengths, *options)
        else:
            padded = self._pad_row(columns, lengths, *options)
        return BatchEncoding(padded, tensor_type=return_tensors or tensor_type)

    def _pad_rows(
        self,
        columns: dict[str, Any],
        lengths: Lengths,
        multiple: int | None,
        side: str,
        mask: bool | None,
    ) -> dict[str, Any]:
        name = self.model_input_names[0]
        count = len(columns[name])
        for key, values in columns.items():
            if len(values) != count:
                raise ValueError(
                    f"The column {key!r} has {len(values)} rows, but {name!r} has {count}: all "
                    "columns need the same number."
                )

        # The rows are padded one by one, all of them to the longest.
        if lengths.padding == PaddingStrategy.LONGEST:
            longest = max(len(row) for row in columns[name])
            lengths = Lengths(PaddingStrategy.MAX_LENGTH, max_length=longest)

        padded_columns: dict[str, list[Any]] = {}
        for index in range(count):
            row = {key: values[index] for key, values in columns.items()}
            for key, values in self._pad_row(row, lengths, multiple, side, mask).items():
                padded_columns.setdefault(key, []).append(values)
        return padded_columns

    def _pad_row(
        self,
        row: dict[str, Any],
        lengths: Lengths,
        multiple: int | None,
        side: str,
        mask: bool | None,
    ) -> dict[str, Any]:
        name = self.model_input_names[0]
        ids = row[name]
        if mask is None:
            mask = "attention_mask" in self.model_input_names
        if mask and "attention_mask" not in row:
            row["attention_mask"] = [1] * len(ids)
        if not lengths.pads:
            return row

        # "longest" only for a sample alone: the rows of a batch come with a length.
        length = lengths.max_length
        if lengths.padding == PaddingStrategy.LONGEST:
            length = len(ids)
        assert length is not None
        if multiple is not None:
            length = math.ceil(length / multiple) * multiple

        fill_values = {
            "token_type_ids": self.pad_token_type_id,
            "special_tokens_mask": 1,
            name: self.pad_token_id,
        }
        if mask:
            fill_values["attention_mask"] = 0

        # Nothing is cut: a row that is too long gets no filling.
        for key, fill_value in fill_values.items():
            if key not in row:
                continue
            fill = [fill_value] * (length - len(ids))
            if side == "right":
                row[key] = [*row[key], *fill]
            else:
                row[key] = [*fill, *row[key]]
        return row


def _to_columns(encoded: object) -> dict[str, Any]:
    if isinstance(encoded, (list, tuple)) and encoded and isinstance(encoded[0], Mapping):
        return {name: [sample[name] for sample in encoded] for name in encoded[0]}
    if isinstance(encoded, Mapping):
        return dict(encoded)
    raise ValueError(
        f"A {type(encoded).__name__} cannot be padded: pass the result of a call of the tokenizer."
    )


def _tensor_type_of(rows: Any, name: str) -> str | None:
    """Return the type of the input: "pt", "np", or None for lists."""
    first = rows[0]
    if isinstance(first, (list, tuple)):
        first = next((row[0] for row in rows if len(row)), None)
    if first is None or isinstance(first, int):
        return None
    if is_tensor(first):
        return "pt"
    if isinstance(first, (np.ndarray, np.number)):
        return "np"
    raise ValueError(
        f"The column {name!r} holds {first!r}, a {type(first).__name__}: pass numbers."
    )


def check_side(name: str, side: str) -> str:
    """Return a side if it is "right" or "left".

    Raises:
        ValueError: it is something else.
    """
    if side not in ("right", "left"):
        raise ValueError(f"`{name}` is {side!r}: pass 'right' or 'left'.")
    return side
