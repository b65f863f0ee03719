"""From token ids back to text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .backend import Backend
from .tensors import as_lists

# What English texts have no space before.
_CONTRACTIONS = ((" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"))
_JOINED = (*((f" {mark}", mark) for mark in ".?!,"), *_CONTRACTIONS)


class Decoding(Backend):
    """`decode` and what belongs to it."""

    clean_up_tokenization_spaces: bool

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """As `PreTrainedTokenizerFast.decode`: a text, or a list of texts for a list of lists.

        Args:
            token_ids: a number, or lists, arrays or tensors of them.
            skip_special_tokens: leave them out.
            clean_up_tokenization_spaces: take away spaces before marks; by default the attribute. Lists of lists too,
                where 5.3.0 forgets the attribute.
            kwargs: for subclasses.
        """
        if isinstance(token_ids, Mapping):
            token_ids = token_ids["input_ids"]
        ids = as_lists(token_ids)
        if isinstance(ids, list) and ids and isinstance(ids[0], list):
            return [self._decode(row, skip_special_tokens, clean_up_tokenization_spaces, **kwargs) for row in ids]
        return self._decode(ids, skip_special_tokens, clean_up_tokenization_spaces, **kwargs)

    def batch_decode(
        self,
        sequences: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """As `PreTrainedTokenizerFast.batch_decode`: `decode`, and always a list."""
        texts = self.decode(sequences, skip_special_tokens, clean_up_tokenization_spaces, **kwargs)
        return [texts] if isinstance(texts, str) else texts

    def _decode(self, token_ids: Any, skip: bool = False, clean_up: bool | None = None, **kwargs: Any) -> str:
        ids = [int(token_ids)] if isinstance(token_ids, (int, np.integer)) else [int(each) for each in token_ids]
        text = self._tokenizer.decode(ids, skip_special_tokens=skip)
        cleans = self.clean_up_tokenization_spaces if clean_up is None else clean_up
        return self.clean_up_tokenization(text) if cleans else text

    @staticmethod
    def clean_up_tokenization(text: str) -> str:
        """Take away the spaces that words and marks were joined with."""
        for apart, joined in _JOINED:
            text = text.replace(apart, joined)
        return text

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """The text of tokens, as the decoder joins them."""
        decoder = self._tokenizer.decoder
        return " ".join(tokens) if decoder is None else decoder.decode(tokens)
