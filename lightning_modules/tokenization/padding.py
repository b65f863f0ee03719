"""Padding of tokenized samples, and the arguments `padding`, `truncation` and `max_length`."""

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
    """The padding and truncation of a call, with their length."""

    padding: PaddingStrategy = PaddingStrategy.DO_NOT_PAD
    truncation: TruncationStrategy = TruncationStrategy.DO_NOT_TRUNCATE
    max_length: int | None = None
    """Number of tokens; None if neither needs a length."""

    @property
    def pads(self) -> bool:
        """Return whether anything is padded."""
        return self.padding != PaddingStrategy.DO_NOT_PAD

    @property
    def truncates(self) -> bool:
        """Return whether anything may be truncated."""
        return self.truncation != TruncationStrategy.DO_NOT_TRUNCATE


@dataclass(frozen=True)
class _RowOptions:
    """The options of `pad` that apply to each row."""

    multiple: int | None
    """The length is rounded up to a multiple of this number."""
    side: str
    """The side to pad: "right" or "left"."""
    adds_mask: bool
    """Whether to return an attention mask."""


def lengths_of(
    tokenizer: object,
    padding: object = False,
    truncation: object = None,
    max_length: int | None = None,
    pad_to_multiple_of: int | None = None,
    verbose: bool = True,
) -> Lengths:
    """Interpret the arguments about padding and truncation as the reference does.

    If only `max_length` is passed, texts are truncated to it. The default length is the model's
    maximum.

    Args:
        tokenizer: provides `model_max_length` and `pad_token`.
        padding: True or "longest", "max_length", or False.
        truncation: True or "longest_first", "only_first", "only_second", or False; None truncates
            only if `max_length` is passed.
        max_length: number of tokens, including special tokens.
        pad_to_multiple_of: the length is rounded up to a multiple of this number.
        verbose: whether to warn about a `max_length` that has no effect.

    Raises:
        ValueError: a strategy is unknown, the pad token is missing, or texts would be truncated to
            a length that is not a multiple of `pad_to_multiple_of`.
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
    """Return the strategy for an argument `padding`."""
    if padding is False:
        return PaddingStrategy.DO_NOT_PAD
    if padding is True:
        return PaddingStrategy.LONGEST
    # A member of transformers' own enumeration has the same value as ours.
    return PaddingStrategy(getattr(padding, "value", padding))


def _truncation_strategy(truncation: object) -> TruncationStrategy:
    """Return the strategy for an argument `truncation`."""
    if truncation is False or truncation is None:
        return TruncationStrategy.DO_NOT_TRUNCATE
    if truncation is True:
        return TruncationStrategy.LONGEST_FIRST
    return TruncationStrategy(getattr(truncation, "value", truncation))


def _limited_by_model(tokenizer: Any, lengths: Lengths) -> Lengths:
    """Set the model's maximum length, if padding or truncation needs a length.

    If the model has no maximum length, truncation and padding to it are disabled.
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
    """Raise if the tokenizer cannot pad to these lengths; see `lengths_of`."""
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
    """The method `pad` of a tokenizer."""

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
        """Pad samples to one length, without changing them.

        Works like `PreTrainedTokenizerBase.pad` of transformers.

        "input_ids", "attention_mask", "token_type_ids" and "special_tokens_mask" are padded; other
        columns are not.

        Args:
            encoded_inputs: one sample, a batch, or a list of samples; lists, arrays or tensors.
            padding: True or "longest" pads to the longest row of the batch, "max_length" to
                `max_length`; False does not pad.
            max_length: number of tokens; by default `model_max_length`.
            pad_to_multiple_of: the length is rounded up to a multiple of this number.
            padding_side: "right" or "left"; by default the attribute of this name.
            return_attention_mask: whether to add an attention mask; by default if
                `model_input_names` contains it.
            return_tensors: "pt" or "np"; by default the type of the input.
            verbose: whether to warn about a `max_length` that has no effect.

        Returns:
            The padded columns.

        Raises:
            ValueError: "input_ids" are missing, columns have different lengths, or the pad token is
                missing.
        """
        columns = _to_columns(encoded_inputs)
        name = self.model_input_names[0]
        if name not in columns:
            raise ValueError(
                f"The column {name!r} to pad is missing; the columns are {', '.join(columns)} (see "
                "remove_unused_columns)."
            )

        rows = columns[name]
        # Return an empty batch as lists, because its type is unknown.
        if rows is None or (isinstance(rows, Sized) and len(rows) == 0):
            if return_attention_mask:
                columns["attention_mask"] = []
            return BatchEncoding(columns)

        # Convert arrays and tensors to lists, and convert the padded lists back at the end.
        tensor_type = _tensor_type_of(rows, name)
        if tensor_type is not None:
            columns = {key: as_lists(value) for key, value in columns.items()}
        lengths = lengths_of(self, padding, None, max_length, verbose=verbose)
        if return_attention_mask is None:
            return_attention_mask = "attention_mask" in self.model_input_names
        options = _RowOptions(
            multiple=pad_to_multiple_of,
            side=check_side("padding_side", padding_side or self.padding_side),
            adds_mask=return_attention_mask,
        )
        is_batch = isinstance(columns[name][0], (list, tuple))
        if is_batch:
            padded = self._pad_rows(columns, lengths, options)
        else:
            padded = self._pad_row(columns, lengths, options)
        return BatchEncoding(padded, tensor_type=return_tensors or tensor_type)

    def _pad_rows(
        self, columns: dict[str, Any], lengths: Lengths, options: _RowOptions
    ) -> dict[str, Any]:
        """Return the padded columns of a batch."""
        name = self.model_input_names[0]
        count = len(columns[name])
        for key, values in columns.items():
            if len(values) != count:
                raise ValueError(
                    f"The column {key!r} has {len(values)} rows, but {name!r} has {count}: all "
                    "columns need the same number."
                )

        # Each row is padded separately, so pass the length of the longest one.
        if lengths.padding == PaddingStrategy.LONGEST:
            longest = max(len(row) for row in columns[name])
            lengths = Lengths(PaddingStrategy.MAX_LENGTH, max_length=longest)

        padded_columns: dict[str, list[Any]] = {}
        for index in range(count):
            row = {key: values[index] for key, values in columns.items()}
            for key, values in self._pad_row(row, lengths, options).items():
                padded_columns.setdefault(key, []).append(values)
        return padded_columns

    def _pad_row(
        self, row: dict[str, Any], lengths: Lengths, options: _RowOptions
    ) -> dict[str, Any]:
        """Pad the columns of one row in place, and return the row."""
        name = self.model_input_names[0]
        ids = row[name]
        if options.adds_mask and "attention_mask" not in row:
            row["attention_mask"] = [1] * len(ids)
        if not lengths.pads:
            return row

        # A single sample is its own longest row. For a batch, `_pad_rows` has set the length.
        length = lengths.max_length
        if lengths.padding == PaddingStrategy.LONGEST:
            length = len(ids)
        assert length is not None
        if options.multiple is not None:
            length = math.ceil(length / options.multiple) * options.multiple

        fill_values = {
            "token_type_ids": self.pad_token_type_id,
            "special_tokens_mask": 1,
            name: self.pad_token_id,
        }
        if options.adds_mask:
            fill_values["attention_mask"] = 0

        # A row that is too long stays unchanged, because a list times a negative number is empty.
        for key, fill_value in fill_values.items():
            if key not in row:
                continue
            fill = [fill_value] * (length - len(ids))
            if options.side == "right":
                row[key] = [*row[key], *fill]
            else:
                row[key] = [*fill, *row[key]]
        return row


def _to_columns(encoded: object) -> dict[str, Any]:
    """Return samples, or a batch, as a dict of columns."""
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
    """Return a side, and check that it is "right" or "left".

    Raises:
        ValueError: the side has another value.
    """
    if side not in ("right", "left"):
        raise ValueError(f"`{name}` is {side!r}: pass 'right' or 'left'.")
    return side
