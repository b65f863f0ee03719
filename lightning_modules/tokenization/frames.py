"""Where the special tokens of a model go: read from the post-processor, for ids that are tokens already."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from .backend import Backend


class Piece(NamedTuple):
    """A part of the finished sequence."""

    ids: list[int] | None
    """Special tokens; None: a text."""
    sequence: int
    """Which text, where it is one."""
    type_id: int
    """Its `token_type_ids`."""


class Frames(Backend):
    """Putting special tokens around ids, and telling them from others."""

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """As in transformers 4.x: the ids of a text or pair, with the special tokens that the model expects.

        Raises:
            NotImplementedError: the tokenizer has a post-processor that cannot be read.
        """
        texts = (token_ids_0, token_ids_1 or [])
        pieces = self._pieces(token_ids_1 is not None)
        return [token for piece in pieces for token in (texts[piece.sequence] if piece.ids is None else piece.ids)]

    def create_token_type_ids_from_sequences(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """As in transformers 4.x: for each id of `build_inputs_with_special_tokens` the text that it is from."""
        lengths = (len(token_ids_0), len(token_ids_1 or []))
        return [
            piece.type_id
            for piece in self._pieces(token_ids_1 is not None)
            for _ in range(lengths[piece.sequence] if piece.ids is None else len(piece.ids))
        ]

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """As `PreTrainedTokenizerBase.get_special_tokens_mask`: 1 for special tokens, 0 for others.

        Args:
            token_ids_0: token ids.
            token_ids_1: those of the second text; only without special tokens.
            already_has_special_tokens: they are in `token_ids_0`; otherwise the mask is that of what
                `build_inputs_with_special_tokens` makes.
        """
        if not already_has_special_tokens:
            lengths = (len(token_ids_0), len(token_ids_1 or []))
            return [
                mark
                for piece in self._pieces(token_ids_1 is not None)
                for mark in ([0] * lengths[piece.sequence] if piece.ids is None else [1] * len(piece.ids))
            ]
        if token_ids_1 is not None:
            raise ValueError(
                "`already_has_special_tokens=True` says that the texts are joined, but `token_ids_1` is a second one. "
                "Pass the joined ids as `token_ids_0`."
            )
        special = set(self.all_special_ids)
        return [1 if int(token) in special else 0 for token in token_ids_0]

    def _pieces(self, pair: bool) -> list[Piece]:
        processor = json.loads(self._tokenizer.to_str())["post_processor"]
        return pieces_of(processor, pair) or plain(pair)


def plain(pair: bool) -> list[Piece]:
    """Return the texts one after the other, without special tokens."""
    return [Piece(None, number, number) for number in range(2 if pair else 1)]


def pieces_of(processor: dict[str, Any] | None, pair: bool) -> list[Piece] | None:
    """Return what a post-processor makes of a text or a pair; None where it adds nothing.

    Args:
        processor: as in tokenizer.json.
        pair: there are two texts.

    Raises:
        NotImplementedError: its type is not known.
    """
    kind = None if processor is None else processor["type"]
    if processor is None or kind == "ByteLevel":
        return None
    if kind == "Sequence":
        found = [pieces for each in processor["processors"] if (pieces := pieces_of(each, pair)) is not None]
        if len(found) < 2:
            return found[0] if found else None
    elif kind == "TemplateProcessing":
        return _template(processor, pair)
    elif kind in ("BertProcessing", "RobertaProcessing"):
        return _classified(processor, pair)
    raise NotImplementedError(
        f"Where the special tokens of this tokenizer go cannot be read from its post-processor ({kind}). Call it on "
        "texts instead."
    )


def _template(processor: dict[str, Any], pair: bool) -> list[Piece]:
    pieces = []
    for part in processor["pair" if pair else "single"]:
        ((kind, what),) = part.items()
        if kind == "Sequence":
            pieces.append(Piece(None, "AB".index(what["id"]), what["type_id"]))
        else:
            pieces.append(Piece(processor["special_tokens"][what["id"]]["ids"], 0, what["type_id"]))
    return pieces


def _classified(processor: dict[str, Any], pair: bool) -> list[Piece]:
    """`[CLS] A [SEP] B [SEP]`; RoBERTa's has two `[SEP]` between the texts, and no types."""
    begin, end = [processor["cls"][1]], [processor["sep"][1]]
    pieces = [Piece(begin, 0, 0), Piece(None, 0, 0), Piece(end, 0, 0)]
    if not pair:
        return pieces
    if processor["type"] == "RobertaProcessing":
        return [*pieces, Piece(end, 0, 0), Piece(None, 1, 0), Piece(end, 0, 0)]
    return [*pieces, Piece(None, 1, 1), Piece(end, 0, 1)]
