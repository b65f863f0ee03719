"""Pad what has been tokenized before; and what `padding`, `truncation` and `max_length` mean
together.
"""

from __future__ import annotations

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


def lengths_of(
    tokenizer: Any,
    padding: Any = False,
    truncation: Any = None,
    max_length: int | None = None,
    pad_to_multiple_of: int | None = None,
    verbose: bool = True,
) -> Lengths:
    """As the reference reads these arguments: a length alone truncates, none at all is the model's.

    Args:
        tokenizer: has `model_max_length` and `pad_token`.
        padding: True or "longest", "max_length", False.
        truncation: True or "longest_first", "only_first", "only_second", False; None: only where a
            length is given.
        max_length: in tokens, special tokens included.
        pad_to_multiple_of: round the length up to a multiple of this.
        verbose: warn of a length without any effect.

    Raises:
        ValueError: an unknown name; padding without a pad token; a length that is no such multiple.
    """
    if max_length is not None and padding is False and truncation is None:
        truncation = TruncationStrategy.LONGEST_FIRST
    pad = _padding(padding)
    cut = _truncation(truncation)
    if (
        padding is True
        and max_length is not None
        and cut == TruncationStrategy.DO_NOT_TRUNCATE
        and verbose
    ):
        warnings.warn(
            "`max_length` has no effect with `padding=True` and no truncation: pass "
            "`padding='max_length'` to pad to it, or `truncation=True` to cut to it.",
            stacklevel=4,
        )
    if max_length is None:
        pad, cut, max_length = _to_the_models(tokenizer, pad, cut)
    lengths = Lengths(pad, cut, max_length)
    _check(tokenizer, lengths, pad_to_multiple_of)
    return lengths


def _padding(padding: Any) -> PaddingStrategy:
    if padding is False:
        return PaddingStrategy.DO_NOT_PAD
    return (
        PaddingStrategy.LONGEST
        if padding is True
        else PaddingStrategy(getattr(padding, "value", padding))
    )


def _truncation(truncation: Any) -> TruncationStrategy:
    if truncation is False or truncation is None:
        return TruncationStrategy.DO_NOT_TRUNCATE
    if truncation is True:
        return TruncationStrategy.LONGEST_FIRST
    return TruncationStrategy(getattr(truncation, "value", truncation))


def _to_the_models(
    tokenizer: Any, pad: PaddingStrategy, cut: TruncationStrategy
) -> tuple[PaddingStrategy, TruncationStrategy, int | None]:
    """Return the model's length where one is needed; without such a limit there is none to pad
    or cut to.
    """
    if pad != PaddingStrategy.MAX_LENGTH and cut == TruncationStrategy.DO_NOT_TRUNCATE:
        return pad, cut, None
    if tokenizer.model_max_length <= ALMOST_NO_LIMIT:
        return pad, cut, tokenizer.model_max_length
    pad = PaddingStrategy.DO_NOT_PAD if pad == PaddingStrategy.MAX_LENGTH else pad
    return pad, TruncationStrategy.DO_NOT_TRUNCATE, None


def _check(tokenizer: Any, lengths: Lengths, multiple: int | None) -> None:
    if lengths.pads and (
        tokenizer.pad_token is None or tokenizer.pad_token_id is None or tokenizer.pad_token_id < 0
    ):
        raise ValueError(
            "`padding` needs a pad token: `tokenizer.pad_token = tokenizer.eos_token`, for example."
        )
    length = lengths.max_length
    truncates = lengths.truncation != TruncationStrategy.DO_NOT_TRUNCATE
    if (
        lengths.pads
        and truncates
        and multiple is not None
        and length is not None
        and length % multiple
    ):
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
        """As `PreTrainedTokenizerBase.pad`, but what it is given stays as it was.

        "input_ids", "attention_mask", "token_type_ids" and "special_tokens_mask" are padded; other
        columns are not.

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
                f"There is no column {name!r} to pad, but {', '.join(columns)} (see "
                "remove_unused_columns)."
            )
        rows = columns[name]
        if rows is None or (isinstance(rows, Sized) and len(rows) == 0):
            return BatchEncoding(
                {**columns, "attention_mask": []} if return_attention_mask else columns
            )
        kind = return_tensors or _kind_of(rows, name)
        if not _is_plain(rows):
            columns = {key: as_lists(value) for key, value in columns.items()}
        lengths = lengths_of(self, padding, None, max_length, verbose=verbose)
        side = check_side("padding_side", padding_side or self.padding_side)
        options = (pad_to_multiple_of, side, return_attention_mask)
        if not isinstance(columns[name][0], (list, tuple)):
            return BatchEncoding(self._pad_row(columns, lengths, *options), tensor_type=kind)
        return BatchEncoding(self._pad_rows(columns, lengths, *options), tensor_type=kind)

    def _pad_rows(
        self, columns: dict[str, Any], lengths: Lengths, *options: Any
    ) -> dict[str, list[Any]]:
        name = self.model_input_names[0]
        count = len(columns[name])
        for key, values in columns.items():
            if len(values) != count:
                raise ValueError(
                    f"The column {key!r} has {len(values)} rows, but {name!r} has {count}."
                )
        if lengths.padding == PaddingStrategy.LONGEST:
            lengths = Lengths(
                PaddingStrategy.MAX_LENGTH, max_length=max(len(row) for row in columns[name])
            )
        samples = (
            {key: values[index] for key, values in columns.items()} for index in range(count)
        )
        rows = [self._pad_row(sample, lengths, *options) for sample in samples]
        return {key: [row[key] for row in rows] for key in rows[0]}

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
        return {name: [sample[name] for sample in encoded] for name in encoded[0]}
    if isinstance(encoded, Mapping):
        return dict(encoded)
    raise ValueError(
        f"A {type(encoded).__name__} cannot be padded: pass what a call of the tokenizer returned."
    )


def _kind_of(rows: Any, name: str) -> str | None:
    """Return what came in: "pt", "np", or None for lists."""
    first = _first(rows)
    if _is_plain(rows):
        return None
    if is_tensor(first):
        return "pt"
    if isinstance(first, (np.ndarray, np.number)):
        return "np"
    raise ValueError(
        f"The column {name!r} holds {first!r}, a {type(first).__name__}; expected numbers."
    )


def _first(rows: Any) -> Any:
    """Return the first number, or row of numbers, that is no list."""
    if isinstance(rows[0], (list, tuple)):
        return next((row[0] for row in rows if len(row)), None)
    return rows[0]


def _is_plain(rows: Any) -> bool:
    """Tell whether they are lists of plain numbers."""
    first = _first(rows)
    return first is None or isinstance(first, (int, list, tuple))


def check_side(name: str, side: str) -> str:
    """Return a side that is `right` or `left`.

    Raises:
        ValueError: it is neither.
    """
    if side not in ("right", "left"):
        raise ValueError(f"`{name}` is {side!r}; it can be 'right' or 'left'.")
    return side
