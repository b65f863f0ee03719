"""The `tokenizers.Tokenizer` behind a tokenizer: its vocabulary, decoding, and the call lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .encoding import as_lists
from .names import AddedToken
from .special_tokens import SpecialTokens

if TYPE_CHECKING:
    import tokenizers

# English contractions, which have no space before them in ordinary text.
_CONTRACTIONS = (
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
_REPLACEMENTS = (*((f" {mark}", mark) for mark in ".?!,"), *_CONTRACTIONS)
"""Strings that contain a space, each with its replacement."""


_lock = threading.RLock()


def settings_lock() -> threading.RLock:
    """Return the lock that each call of a tokenizer holds.

    Padding and truncation are settings of a `tokenizers.Tokenizer`, which no other thread may
    change between setting them and the call that uses them.
    """
    return _lock


def _renew_lock() -> None:
    """Replace the lock in a forked process, where the thread that may hold it does not exist."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_lock)


class Backend(SpecialTokens):
    """Converts tokens to ids, and ids to tokens and texts, with a `tokenizers.Tokenizer`."""

    _tokenizer: tokenizers.Tokenizer
    model_input_names: list[str] = ["input_ids", "attention_mask"]
    padding_side: str = "right"
    truncation_side: str = "right"
    clean_up_tokenization_spaces: bool

    @property
    def pad_token_type_id(self) -> int:
        """Return the value that pads `token_type_ids`."""
        return 0

    @property
    def backend_tokenizer(self) -> tokenizers.Tokenizer:
        """Return the `tokenizers.Tokenizer`."""
        return self._tokenizer

    @property
    def is_fast(self) -> bool:
        """Return True, because the tokenizer is based on the `tokenizers` library."""
        return True

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens without added ones; `len(tokenizer)` includes these."""
        return self._tokenizer.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def __bool__(self) -> bool:
        # A tokenizer is true even if it has no tokens and its length is 0.
        return True

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token, including added ones."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    @property
    def vocab(self) -> dict[str, int]:
        """Return the id of each token, including added ones."""
        return self.get_vocab()

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Return the added tokens by their ids."""
        return self._tokenizer.get_added_tokens_decoder()

    @property
    def added_tokens_encoder(self) -> dict[str, int]:
        """Return the ids of the added tokens, in ascending order."""
        return {token.content: index for index, token in sorted(self.added_tokens_decoder.items())}

    def get_added_vocab(self) -> dict[str, int]:
        """Return the ids of the tokens that were added to the vocabulary."""
        return self.added_tokens_encoder

    def _add_tokens(self, new_tokens: list[Any], special_tokens: bool = False) -> int:
        """Add tokens to the vocabulary, and return the number of new ones."""
        with settings_lock():
            if special_tokens:
                return self._tokenizer.add_special_tokens(new_tokens)
            return self._tokenizer.add_tokens(new_tokens)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Return the id of a token, or a list of ids for several tokens.

        Tokens that are not in the vocabulary get the id of `unk_token`.

        Args:
            tokens: a token, or a sequence of tokens.
        """
        if tokens is None or isinstance(tokens, str):
            return self._id_of(tokens)
        return [self._id_of(token) for token in tokens]

    def _id_of(self, token: str | None) -> int | None:
        """Return the id of a token; None if neither it nor `unk_token` is in the vocabulary."""
        if token is None:
            return None
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None and token != self.unk_token:
            return self.unk_token_id
        return token_id

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Return the token of an id, or a list of tokens for several ids; None for an unknown id.

        Args:
            ids: a number, or a list, an array or a tensor of numbers.
            skip_special_tokens: whether special tokens are left out of a list.
        """
        if isinstance(ids, (int, np.integer)) or getattr(ids, "ndim", None) == 0:
            return self._tokenizer.id_to_token(int(ids))
        skipped: set[int] = set()
        if skip_special_tokens:
            skipped = set(self.all_special_ids)
        token_ids = [int(token_id) for token_id in ids]
        return [
            self._tokenizer.id_to_token(token_id)
            for token_id in token_ids
            if token_id not in skipped
        ]

    def decode(
        self,
        token_ids: object,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **kwargs: object,
    ) -> Any:
        """Convert token ids to a text, or to a list of texts for a list of lists.

        Args:
            token_ids: a number, or lists, arrays or tensors of numbers.
            skip_special_tokens: whether special tokens are left out.
            clean_up_tokenization_spaces: whether spaces before punctuation are removed; by default
                the attribute of this name. transformers 5.3.0 ignores the attribute for lists of
                lists.
            kwargs: passed to `_decode` of subclasses.

        Returns:
            A text, or a list of texts.
        """
        if isinstance(token_ids, Mapping):
            token_ids = token_ids["input_ids"]
        ids = as_lists(token_ids)
        if isinstance(ids, list) and ids and isinstance(ids[0], list):
            return [
                self._decode(row, skip_special_tokens, clean_up_tokenization_spaces, **kwargs)
                for row in ids
            ]
        return self._decode(ids, skip_special_tokens, clean_up_tokenization_spaces, **kwargs)

    def batch_decode(
        self,
        sequences: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Convert token ids to a list of texts.

        Args:
            sequences: lists, arrays or tensors of token ids.
            skip_special_tokens: see `decode`.
            clean_up_tokenization_spaces: see `decode`.
            kwargs: see `decode`.
        """
        texts = self.decode(sequences, skip_special_tokens, clean_up_tokenization_spaces, **kwargs)
        if isinstance(texts, str):
            return [texts]
        return texts

    def _decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **kwargs: object,
    ) -> str:
        """Convert the ids of one text; `decode` calls this for each text."""
        if isinstance(token_ids, (int, np.integer)):
            token_ids = [token_ids]
        ids = [int(token_id) for token_id in token_ids]
        text = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        if clean_up_tokenization_spaces is None:
            clean_up_tokenization_spaces = self.clean_up_tokenization_spaces
        if clean_up_tokenization_spaces:
            text = self.clean_up_tokenization(text)
        return text

    @staticmethod
    def clean_up_tokenization(text: str) -> str:
        """Remove the spaces before punctuation and contractions.

        Args:
            text: a decoded text.
        """
        for with_space, without_space in _REPLACEMENTS:
            text = text.replace(with_space, without_space)
        return text

    def get_special_tokens_mask(
        self,
        token_ids_0: list[int],
        token_ids_1: list[int] | None = None,
        already_has_special_tokens: bool = False,
    ) -> list[int]:
        """Return 1 for each special token, and 0 for others.

        Args:
            token_ids_0: token ids, including those of special tokens.
            token_ids_1: not supported; must be None.
            already_has_special_tokens: only True is supported.

        Raises:
            NotImplementedError: another argument is passed.
        """
        if not already_has_special_tokens or token_ids_1 is not None:
            raise NotImplementedError(
                "Pass the joined ids, with their special tokens, as `token_ids_0`."
            )
        special = set(self.all_special_ids)
        return [int(int(token) in special) for token in token_ids_0]
