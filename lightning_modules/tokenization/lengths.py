"""What `padding`, `truncation` and `max_length` mean together."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from .names import ALMOST_NO_LIMIT, PaddingStrategy, TruncationStrategy


@dataclass(frozen=True)
class Lengths:
    """What is padded, what is cut, and to which length."""

    padding: PaddingStrategy = PaddingStrategy.DO_NOT_PAD
    truncation: TruncationStrategy = TruncationStrategy.DO_NOT_TRUNCATE
    max_length: int | None = None

    @property
    def pads(self) -> bool:
        """Whether anything is padded."""
        return self.padding != PaddingStrategy.DO_NOT_PAD

    @property
    def truncates(self) -> bool:
        """Whether anything is cut."""
        return self.truncation != TruncationStrategy.DO_NOT_TRUNCATE


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
        truncation: True or "longest_first", "only_first", "only_second", False; None: only where a length is given.
        max_length: in tokens, special tokens included.
        pad_to_multiple_of: round the length up to a multiple of this.
        verbose: warn of a length without any effect.

    Raises:
        ValueError: an unknown name; padding without a pad token; a length that is no such multiple.
    """
    if max_length is not None and padding is False and truncation is None:
        truncation = TruncationStrategy.LONGEST_FIRST
    pad, cut = _padding(padding), _truncation(truncation)
    if padding is True and max_length is not None and cut == TruncationStrategy.DO_NOT_TRUNCATE and verbose:
        warnings.warn(
            "`max_length` has no effect with `padding=True` and no truncation: pass `padding='max_length'` to pad to "
            "it, or `truncation=True` to cut to it.",
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
    return PaddingStrategy.LONGEST if padding is True else PaddingStrategy(getattr(padding, "value", padding))


def _truncation(truncation: Any) -> TruncationStrategy:
    if truncation is False or truncation is None:
        return TruncationStrategy.DO_NOT_TRUNCATE
    if truncation is True:
        return TruncationStrategy.LONGEST_FIRST
    return TruncationStrategy(getattr(truncation, "value", truncation))


def _to_the_models(
    tokenizer: Any, pad: PaddingStrategy, cut: TruncationStrategy
) -> tuple[PaddingStrategy, TruncationStrategy, int | None]:
    """The model's length where one is needed; without such a limit there is none to pad or cut to."""
    wanted = pad == PaddingStrategy.MAX_LENGTH or cut != TruncationStrategy.DO_NOT_TRUNCATE
    if not wanted:
        return pad, cut, None
    if tokenizer.model_max_length <= ALMOST_NO_LIMIT:
        return pad, cut, tokenizer.model_max_length
    return (
        PaddingStrategy.DO_NOT_PAD if pad == PaddingStrategy.MAX_LENGTH else pad,
        TruncationStrategy.DO_NOT_TRUNCATE,
        None,
    )


def _check(tokenizer: Any, lengths: Lengths, multiple: int | None) -> None:
    if lengths.pads and (tokenizer.pad_token is None or tokenizer.pad_token_id is None or tokenizer.pad_token_id < 0):
        raise ValueError(
            "`padding` needs a token to pad with, but this tokenizer has no pad token. Set one: `tokenizer.pad_token = "
            "tokenizer.eos_token`, or `tokenizer.add_special_tokens({'pad_token': '[PAD]'})`."
        )
    length = lengths.max_length
    if lengths.pads and lengths.truncates and multiple is not None and length is not None and length % multiple:
        raise ValueError(
            f"Texts are cut to {length} tokens and padded to a multiple of `pad_to_multiple_of` ({multiple}), which "
            f"{length} is not. Pass a `max_length` that is."
        )
