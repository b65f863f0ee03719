"""Choose and replace the tokens that a masked language model predicts.

The order of the draws, and the shape of each, are the reference's: so are the batches, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .base import special_tokens_rows, to_numpy

if TYPE_CHECKING:
    import torch


class Draws(NamedTuple):
    """Draws of one batch: `choose(chances)` -> whether each token is chosen, `tokens(where)` ->
    random tokens there.
    """

    choose: Callable[[Any], np.ndarray]
    tokens: Callable[[np.ndarray], np.ndarray]


class Masking:
    """Parts shared by torch and numpy masking; the attributes are those of
    `DataCollatorForLanguageModeling`.
    """

    tokenizer: Any
    whole_word_mask: bool
    mlm_probability: float | None
    mask_replace_prob: float
    random_replace_prob: float
    generator: Any

    def _random_share(self) -> float:
        """Return the share of random tokens among the labels that do not become the mask; 0
        draws nothing.
        """
        if self.mask_replace_prob == 1 or self.random_replace_prob == 0:
            return 0.0
        return self.random_replace_prob / (1 - self.mask_replace_prob)

    def _mask(
        self, inputs: np.ndarray, special_tokens_mask: Any, spans: Any, draws: Draws, mask: int
    ) -> np.ndarray:
        """Replace tokens of `inputs`, in place; return the labels, -100 where nothing is
        predicted.
        """
        labels = inputs.copy()
        if special_tokens_mask is None:
            special_tokens_mask = special_tokens_rows(self.tokenizer, labels.tolist())
        never, words = self._never_drawn(to_numpy(special_tokens_mask), spans)
        chosen = draws.choose(np.where(never, 0.0, self.mlm_probability or 0.0))
        if words is not None:
            chosen = whole_words(words, chosen)
        labels[~chosen] = -100
        masked = draws.choose(self.mask_replace_prob) & chosen
        inputs[masked] = mask
        if share := self._random_share():
            other = draws.choose(share) & chosen & ~masked
            inputs[other] = draws.tokens(other)
        return labels

    def _never_drawn(self, special: np.ndarray, spans: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Return tokens that no draw chooses, and with whole words the number of each token's
        word.
        """
        if not self.whole_word_mask:
            return special.astype(bool), None
        if spans is None:
            raise ValueError(
                "`whole_word_mask=True` needs a column 'offset_mapping': tokenize with "
                "`return_offsets_mapping=True`, and set `remove_unused_columns=False`."
            )
        words, begins = words_of(to_numpy(spans), special)
        return ~begins, words


def words_of(spans: np.ndarray, special: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the words that tokens belong to: a word goes on as long as each token begins where the
    one before ended.

    Args:
        spans: first character, and the one after the last, of each token; shape (samples, tokens,
            2).
        special: 1 for special tokens, shape (samples, tokens).

    Returns:
        the number of each token's word, -1 for special tokens; and whether a word begins with the
        token.
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
    return np.stack(
        [np.isin(row, row[some & (row != -1)]) for row, some in zip(words, chosen, strict=True)]
    )


class TorchMasking(Masking):
    """Masks tensors, with draws from torch's generators."""

    def torch_mask_tokens(
        self, inputs: torch.Tensor, special_tokens_mask: Any = None, offset_mapping: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `DataCollatorForLanguageModeling.torch_mask_tokens` of the reference; `inputs` are
        changed.

        Args:
            inputs: token ids, shape (samples, tokens).
            special_tokens_mask: 1 for tokens that are never masked; by default the tokenizer is
                asked.
            offset_mapping: for whole words, the characters of each token, shape (samples, tokens,
                2).

        Returns:
            the inputs of the model, and the labels, -100 where nothing is predicted.
        """
        import torch

        shape, generator = inputs.shape, self.generator

        def choose(chances: Any) -> np.ndarray:
            given = (
                torch.full(shape, chances)
                if isinstance(chances, float)
                else torch.from_numpy(chances).float()
            )
            return torch.bernoulli(given, generator=generator).bool().numpy()

        def tokens(where: np.ndarray) -> np.ndarray:
            drawn = torch.randint(len(self.tokenizer), shape, dtype=torch.long, generator=generator)
            return drawn.numpy()[where]

        mask = self.tokenizer.convert_tokens_to_ids(self.tokenizer.mask_token)
        labels = self._mask(
            inputs.numpy(), special_tokens_mask, offset_mapping, Draws(choose, tokens), mask
        )
        return inputs, torch.from_numpy(labels)


class NumpyMasking(Masking):
    """Masks arrays, with draws from numpy's generators."""

    def numpy_mask_tokens(
        self, inputs: np.ndarray, special_tokens_mask: Any = None, offset_mapping: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `torch_mask_tokens`, but arrays."""
        source = np.random if self.generator is None else self.generator
        integers = np.random.randint if self.generator is None else self.generator.integers

        def choose(chances: Any) -> np.ndarray:
            return source.binomial(1, chances, size=inputs.shape).astype(bool)

        def tokens(where: np.ndarray) -> np.ndarray:
            return integers(low=0, high=len(self.tokenizer), size=int(where.sum()), dtype=np.int64)

        draws, mask = Draws(choose, tokens), self.tokenizer.mask_token_id
        return inputs, self._mask(inputs, special_tokens_mask, offset_mapping, draws, mask)
