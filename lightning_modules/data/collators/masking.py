"""Choose and replace the tokens that a masked language model predicts.

Random numbers are drawn in the same order and shape as in the reference, so that batches equal its
batches bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .base import special_tokens_rows, to_numpy

if TYPE_CHECKING:
    import torch


class MaskingDraws(NamedTuple):
    """The functions that draw random numbers for one batch, from a generator of torch or numpy."""

    choose: Callable[[float | NDArray[np.float64]], np.ndarray]
    """Takes one probability for all tokens, or one for each, (samples, tokens). Returns a bool
    array of that shape, True for chosen tokens.
    """
    random_tokens: Callable[[np.ndarray], np.ndarray]
    """Takes a bool array, (samples, tokens), and returns a random token for each True in it."""


class WordsOfTokens(NamedTuple):
    """The words that tokens belong to, as arrays of shape (samples, tokens)."""

    numbers: np.ndarray
    """Number of the token's word in its row; -1 for special tokens."""
    begins: np.ndarray
    """True for the first token of a word."""


class Masking:
    """The part of masking that torch and numpy share.

    The attributes are those of `DataCollatorForLanguageModeling`.
    """

    tokenizer: Any
    whole_word_mask: bool
    mlm_probability: float | None
    mask_replace_prob: float
    random_replace_prob: float
    generator: Any

    def _random_share(self) -> float:
        """Return the fraction of random tokens among the labels that are not masked."""
        if self.mask_replace_prob == 1 or self.random_replace_prob == 0:
            return 0.0
        return self.random_replace_prob / (1 - self.mask_replace_prob)

    def _mask(
        self,
        inputs: NDArray[Any],
        special_tokens_mask: object,
        spans: object,
        draws: MaskingDraws,
        mask_id: int,
    ) -> NDArray[Any]:
        """Replace tokens of `inputs`, in place.

        Args:
            inputs: token ids, shape (samples, tokens).
            special_tokens_mask: 1 for tokens that are never masked; None to ask the tokenizer.
            spans: for whole words, the character span of each token.
            draws: the functions that draw random numbers.
            mask_id: the id of the mask token.

        Returns:
            The labels, -100 for tokens that are not predicted.
        """
        labels = np.array(inputs)
        if special_tokens_mask is None:
            special_tokens_mask = special_tokens_rows(self.tokenizer, labels.tolist())

        # Choose the tokens to predict, a bool array (samples, tokens).
        never, words = self._never_drawn(to_numpy(special_tokens_mask), spans)
        probabilities = np.where(never, 0.0, self.mlm_probability or 0.0)
        chosen = draws.choose(probabilities)
        if words is not None:
            chosen = whole_words(words, chosen)
        labels[~chosen] = -100

        # Replace most of them by the mask token.
        masked = draws.choose(self.mask_replace_prob) & chosen
        inputs[masked] = mask_id

        # Replace some by random tokens, and leave the others unchanged. As in the reference, draw
        # no numbers if the fraction is 0.
        random_share = self._random_share()
        if random_share > 0:
            replaced = draws.choose(random_share) & chosen & ~masked
            inputs[replaced] = draws.random_tokens(replaced)
        return labels

    def _never_drawn(
        self, special: np.ndarray, spans: object
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the tokens that are never drawn, and for whole words the word of each token."""
        if not self.whole_word_mask:
            return special.astype(bool), None
        if spans is None:
            raise ValueError(
                "whole_word_mask=True needs a column 'offset_mapping': tokenize with "
                "`return_offsets_mapping=True`, and set `remove_unused_columns=False`."
            )

        # One draw for each word, at its first token, decides for the whole word.
        words = words_of(to_numpy(spans), special)
        return ~words.begins, words.numbers


def words_of(spans: np.ndarray, special: np.ndarray) -> WordsOfTokens:
    """Return the words that tokens belong to.

    A word continues as long as each token begins where the previous one ended.

    Args:
        spans: the start and end (exclusive) of each token in characters, shape (samples, tokens,
            2).
        special: 1 for special tokens, shape (samples, tokens).
    """
    is_special = special.astype(bool)

    # Find the tokens that continue the word of the previous token: (samples, tokens).
    joins = np.zeros_like(is_special)
    begins_at_end_of_previous = spans[:, 1:, 0] == spans[:, :-1, 1]
    joins[:, 1:] = begins_at_end_of_previous & ~is_special[:, :-1]
    # As the reference does, assume that the token before the first one of a row ends at -1.
    joins[:, 0] = spans[:, 0, 0] == -1

    # Number the words of each row from 1.
    begins = ~is_special & ~joins
    numbers = np.where(is_special, -1, np.cumsum(begins, axis=1))
    return WordsOfTokens(numbers, begins)


def whole_words(words: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Extend a choice of tokens to whole words.

    Args:
        words: the number of each token's word, shape (samples, tokens).
        chosen: whether each token is chosen, of the same shape.
    """
    rows: list[np.ndarray] = []
    for words_of_row, chosen_of_row in zip(words, chosen, strict=True):
        is_chosen_word = chosen_of_row & (words_of_row != -1)
        chosen_words = words_of_row[is_chosen_word]
        rows.append(np.isin(words_of_row, chosen_words))
    return np.stack(rows)


class TorchMasking(Masking):
    """Masks tensors, with random numbers from torch."""

    def torch_mask_tokens(
        self, inputs: torch.Tensor, special_tokens_mask: Any = None, offset_mapping: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mask token ids, in place, and return the labels of what was masked.

        Works like `DataCollatorForLanguageModeling.torch_mask_tokens` of transformers.

        Args:
            inputs: token ids, shape (samples, tokens); changed.
            special_tokens_mask: 1 for tokens that are never masked; None to ask the tokenizer.
            offset_mapping: for whole words, the characters of each token, shape (samples, tokens,
                2).

        Returns:
            the inputs of the model, and the labels, -100 where nothing is predicted.
        """
        import torch

        shape = inputs.shape
        generator = self.generator

        def choose(probability: float | NDArray[np.float64]) -> np.ndarray:
            if isinstance(probability, float):
                probabilities = torch.full(shape, probability)
            else:
                probabilities = torch.as_tensor(probability, device="cpu").float()
            drawn = torch.bernoulli(probabilities, generator=generator)
            return drawn.bool().numpy()

        def random_tokens(where: np.ndarray) -> np.ndarray:
            # As in the reference, draw numbers for all tokens, although only some are used.
            count = len(self.tokenizer)
            tokens = torch.randint(count, shape, dtype=torch.long, generator=generator)
            return tokens.numpy()[where]

        mask_id = self.tokenizer.convert_tokens_to_ids(self.tokenizer.mask_token)
        draws = MaskingDraws(choose, random_tokens)
        labels = self._mask(inputs.numpy(), special_tokens_mask, offset_mapping, draws, mask_id)
        return inputs, torch.as_tensor(labels, device="cpu")


class NumpyMasking(Masking):
    """Masks arrays, with random numbers from numpy."""

    def numpy_mask_tokens(
        self, inputs: np.ndarray, special_tokens_mask: Any = None, offset_mapping: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mask token ids, in place, and return the labels of what was masked.

        Works like `DataCollatorForLanguageModeling.numpy_mask_tokens` of transformers.

        Args:
            inputs: token ids, an array of shape (samples, tokens); changed.
            special_tokens_mask: 1 for tokens that are never masked; None to ask the tokenizer.
            offset_mapping: for whole words, the characters of each token, shape (samples, tokens,
                2).

        Returns:
            the inputs of the model, and the labels, -100 where nothing is predicted.
        """
        # Without a seed, draw from numpy's global generator.
        binomial: Callable[..., Any] = np.random.binomial
        integers: Callable[..., Any] = np.random.randint
        if self.generator is not None:
            binomial = self.generator.binomial
            integers = self.generator.integers

        def choose(probability: float | NDArray[np.float64]) -> np.ndarray:
            return binomial(1, probability, size=inputs.shape).astype(bool)

        def random_tokens(where: np.ndarray) -> np.ndarray:
            return integers(low=0, high=len(self.tokenizer), size=int(where.sum()), dtype=np.int64)

        draws = MaskingDraws(choose, random_tokens)
        mask_id = self.tokenizer.mask_token_id
        labels = self._mask(inputs, special_tokens_mask, offset_mapping, draws, mask_id)
        return inputs, labels
