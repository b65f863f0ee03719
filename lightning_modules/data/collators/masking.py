"""Choose and replace the tokens that a masked language model predicts.

The order of the draws, and the shape of each, are the reference's: so are the batches, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .base import special_tokens_rows, to_numpy

if TYPE_CHECKING:
    import torch


class Masking:
    """Parts shared by torch and numpy masking; the attributes are those of `DataCollatorForLanguageModeling`."""

    tokenizer: Any
    whole_word_mask: bool
    mlm_probability: float | None
    mask_replace_prob: float
    random_replace_prob: float
    generator: Any

    def _random_share(self) -> float:
        """Return the share of random tokens among the labels that do not become the mask; 0 draws nothing."""
        if self.mask_replace_prob == 1 or self.random_replace_prob == 0:
            return 0.0
        return self.random_replace_prob / (1 - self.mask_replace_prob)

    def _special(self, tokens: Any, special_tokens_mask: Any) -> np.ndarray:
        if special_tokens_mask is None:
            special_tokens_mask = special_tokens_rows(self.tokenizer, tokens.tolist())
        return to_numpy(special_tokens_mask)

    def _never_drawn(self, special: np.ndarray, spans: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Return tokens that no draw chooses, and with whole words the number of each token's word."""
        if not self.whole_word_mask:
            return special.astype(bool), None
        if spans is None:
            raise ValueError(
                "`whole_word_mask=True` finds words by the column 'offset_mapping', which the samples do not have. "
                "Tokenize with `return_offsets_mapping=True`, and set `remove_unused_columns=False`."
            )
        words, begins = words_of(to_numpy(spans), special)
        return ~begins, words


def words_of(spans: np.ndarray, special: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the words that tokens belong to: a word goes on as long as each token begins where the one before ended.

    Args:
        spans: first character, and the one after the last, of each token; shape (samples, tokens, 2).
        special: 1 for special tokens, shape (samples, tokens).

    Returns:
        the number of each token's word, -1 for special tokens; and whether a word begins with the token.
    """
    is_special = special.astype(bool)
    joins = np.zeros_like(is_special)
    joins[:, 1:] = (spans[:, 1:, 0] == spans[:, :-1, 1]) & ~is_special[:, :-1]
    # As if a token that ends at -1 came before the first one of a row.
    joins[:, 0] = spans[:, 0, 0] == -1
    begins = ~is_special & ~joins
    return np.where(is_special, -1, np.cumsum(begins, axis=1)), begins


def whole_words(words: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return all tokens of the words of which one token was chosen, shape (samples, tokens)."""
    return np.stack([np.isin(row, row[some & (row != -1)]) for row, some in zip(words, chosen, strict=True)])


class TorchMasking(Masking):
    """Masks tensors, with draws from torch's generators."""

    def torch_mask_tokens(
        self, inputs: torch.Tensor, special_tokens_mask: Any = None, offset_mapping: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `DataCollatorForLanguageModeling.torch_mask_tokens` of the reference; `inputs` are changed.

        Args:
            inputs: token ids, shape (samples, tokens).
            special_tokens_mask: 1 for tokens that are never masked; by default the tokenizer is asked.
            offset_mapping: for whole words, the characters of each token, shape (samples, tokens, 2).

        Returns:
            the inputs of the model, and the labels, -100 where nothing is predicted.
        """
        import torch

        labels = inputs.clone()
        never, words = self._never_drawn(self._special(labels, special_tokens_mask), offset_mapping)
        chances = torch.full(labels.shape, float(self.mlm_probability or 0))
        chosen = self._torch_draw(chances.masked_fill_(torch.from_numpy(never), 0.0))
        if words is not None:
            chosen = torch.from_numpy(whole_words(words, chosen.numpy()))
        labels[~chosen] = -100
        masked = self._torch_draw(torch.full(labels.shape, self.mask_replace_prob)) & chosen
        inputs[masked] = self.tokenizer.convert_tokens_to_ids(self.tokenizer.mask_token)
        if share := self._random_share():
            other = self._torch_draw(torch.full(labels.shape, share)) & chosen & ~masked
            tokens = torch.randint(len(self.tokenizer), labels.shape, dtype=torch.long, generator=self.generator)
            inputs[other] = tokens[other].to(inputs.dtype)
        return inputs, labels

    def _torch_draw(self, chances: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.bernoulli(chances, generator=self.generator).bool()


class NumpyMasking(Masking):
    """Masks arrays, with draws from numpy's generators."""

    def numpy_mask_tokens(
        self, inputs: np.ndarray, special_tokens_mask: Any = None, offset_mapping: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `torch_mask_tokens`, but arrays."""
        labels = np.copy(inputs)
        never, words = self._never_drawn(self._special(labels, special_tokens_mask), offset_mapping)
        chances = np.full(labels.shape, self.mlm_probability)
        chances[never] = 0
        chosen = self._numpy_draw(chances, labels.shape)
        if words is not None:
            chosen = whole_words(words, chosen)
        labels[~chosen] = -100
        masked = self._numpy_draw(self.mask_replace_prob, labels.shape) & chosen
        inputs[masked] = self.tokenizer.mask_token_id
        if share := self._random_share():
            other = self._numpy_draw(share, labels.shape) & chosen & ~masked
            inputs[other] = self._numpy_tokens(int(other.sum()))
        return inputs, labels

    def _numpy_draw(self, chances: Any, shape: tuple[int, ...]) -> np.ndarray:
        source = np.random if self.generator is None else self.generator
        return source.binomial(1, chances, size=shape).astype(bool)

    def _numpy_tokens(self, count: int) -> np.ndarray:
        if self.generator is None:
            return np.random.randint(low=0, high=len(self.tokenizer), size=count, dtype=np.int64)
        return self.generator.integers(low=0, high=len(self.tokenizer), size=count, dtype=np.int64)
