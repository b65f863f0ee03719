"""The collator for permutation language models, such as XLNet."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .base import (
    Batch,
    DataCollatorMixin,
    numpy_collate_batch,
    special_tokens_rows,
    torch_collate_batch,
)

if TYPE_CHECKING:
    import torch


class PermutedBatch(NamedTuple):
    """The columns of a batch, as tensors or arrays."""

    input_ids: Any
    """Token ids with hidden spans, shape (samples, tokens)."""
    perm_mask: Any
    """1 if the token of the second dimension may not attend to that of the third, float32 of shape
    (samples, tokens, tokens).
    """
    target_mapping: Any
    """The identity for each sample, float32 of shape (samples, tokens, tokens)."""
    labels: Any
    """The ids of hidden tokens, -100 for all others, shape (samples, tokens)."""


@dataclass
class DataCollatorForPermutationLanguageModeling(DataCollatorMixin):
    """Hide spans of tokens that the model predicts in a random order, to train models like XLNet.

    Works like `transformers.DataCollatorForPermutationLanguageModeling`, and draws the same random
    numbers, but does not need a pad token.

    Half of a sequence is assumed to be reused as memory, as in XLNet. So tokens are permuted only
    within each half, in the same order in both, and lengths must be even.
    """

    tokenizer: Any
    """The tokenizer; provides `mask_token`, `mask_token_id` and `get_special_tokens_mask`, and for
    padding also `pad_token` and `pad_token_id`.
    """
    plm_probability: float = 1 / 6
    """Length of a span divided by the length of its context; each context has one span."""
    max_span_length: int = 5
    """Maximum number of tokens in a span; for arrays one more, as in the reference."""
    return_tensors: str = "pt"
    """"pt" for tensors, "np" for arrays."""

    def __post_init__(self) -> None:
        if not 0 < self.plm_probability <= 1:
            raise ValueError(
                f"`plm_probability` is {self.plm_probability}, but a share lies between 0 and 1."
            )

    def torch_call(self, examples: list[Any]) -> Batch:
        """Return the batch as tensors.

        Args:
            examples: mappings with "input_ids", or plain sequences of token ids.

        Returns:
            the fields of `PermutedBatch`.

        Raises:
            ValueError: the number of tokens is odd, or the mask token is missing.
        """
        inputs = torch_collate_batch(_token_ids(examples), self.tokenizer)
        return PermutedBatch(*self.torch_mask_tokens(inputs))._asdict()

    def numpy_call(self, examples: list[Any]) -> Batch:
        """Return the batch as arrays, see `torch_call`.

        Random numbers are drawn from Python's and numpy's global generators.

        Args:
            examples: mappings with "input_ids", or plain sequences of token ids.
        """
        inputs = numpy_collate_batch(_token_ids(examples), self.tokenizer)
        return PermutedBatch(*self.numpy_mask_tokens(inputs))._asdict()

    def torch_mask_tokens(self, inputs: torch.Tensor) -> PermutedBatch:
        """Hide spans of token ids.

        Args:
            inputs: token ids, shape (samples, tokens); changed in place.
        """
        import torch

        def draw(low: int, high: int) -> int:
            return int(torch.randint(low, high, (1,)).item())

        def permuted(halves: np.ndarray) -> np.ndarray:
            order = torch.randperm(halves.shape[1]).numpy()
            return halves[:, order]

        # Tensors on the CPU and arrays share their memory, so nothing is copied here.
        arrays = self._mask(inputs.numpy(), draw, permuted)
        return PermutedBatch(*(torch.as_tensor(array, device="cpu") for array in arrays))

    def numpy_mask_tokens(self, inputs: np.ndarray) -> PermutedBatch:
        """Hide spans of token ids, in arrays.

        Args:
            inputs: token ids, shape (samples, tokens); changed in place.
        """

        def permuted(halves: np.ndarray) -> np.ndarray:
            # numpy shuffles the rows of an array in place. Shuffle the columns, which are the rows
            # of the transposed view.
            np.random.shuffle(np.transpose(halves))
            return halves

        # Unlike torch's, Python's `randint` includes its upper end. The reference ignores this
        # difference, and the same numbers have to be drawn here.
        return self._mask(inputs, random.randint, permuted)

    def _mask(
        self,
        inputs: np.ndarray,
        draw: Callable[[int, int], int],
        permuted: Callable[[np.ndarray], np.ndarray],
    ) -> PermutedBatch:
        """Hide spans in place, and return the arrays of the batch.

        Args:
            inputs: token ids, shape (samples, tokens).
            draw: draws a random number from `low` to `high`.
            permuted: returns an array, here the two halves of the positions as rows, with its
                columns in a random order.
        """
        count, length = inputs.shape
        self._require_even_length_and_mask(length)
        labels = np.copy(inputs)

        # Hide spans of tokens, except special tokens and padding: a bool array (samples, tokens).
        hidden = np.zeros(inputs.shape, dtype=bool)
        for row in hidden:
            for start, end in self._spans(length, draw):
                row[start:end] = True
        special, padding = self._never_hidden(labels)
        hidden &= ~(special | padding)
        inputs[hidden] = self.tokenizer.mask_token_id
        labels[~hidden] = -100

        # A token may not attend to hidden tokens at or after its own position in the random order.
        # Tokens that are neither hidden nor special come before all others.
        mask = np.zeros((count, length, length), dtype=np.float32)
        for index in range(count):
            # Draw each token's position in the random order. Both halves are permuted alike.
            positions = np.arange(length, dtype=np.int64)
            halves = np.reshape(positions, (-1, length // 2))
            order = permuted(halves).flatten()
            is_plain = ~hidden[index] & ~special[index] & ~padding[index]
            order[is_plain] = -1

            # (tokens, tokens): row i, column j tells whether token i may not attend to token j.
            is_not_before = order[:, None] <= order[None, :]
            mask[index] = is_not_before & hidden[index]

        # Each token predicts itself: (samples, tokens, tokens).
        identity = np.eye(length, dtype=np.float32)
        target = np.tile(identity, (count, 1, 1))
        return PermutedBatch(inputs.astype(np.int64), mask, target, labels.astype(np.int64))

    def _spans(self, length: int, draw: Callable[[int, int], int]) -> list[tuple[int, int]]:
        """Return the start and the end of each span.

        The sequence is divided into contexts, and each context contains one span.
        """
        spans: list[tuple[int, int]] = []
        context_start = 0
        while context_start < length:
            span_size = draw(1, self.max_span_length + 1)
            context_size = int(span_size / self.plm_probability)

            # Draw a start that leaves room for the whole span in its context.
            start = context_start + draw(0, context_size - span_size + 1)
            spans.append((start, start + span_size))
            context_start += context_size
        return spans

    def _never_hidden(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the masks of special tokens and of padding, both bool of (samples, tokens)."""
        rows = special_tokens_rows(self.tokenizer, labels.tolist())
        special = np.array(rows, dtype=bool)
        if getattr(self.tokenizer, "pad_token", None) is None:
            return special, np.zeros_like(special)
        return special, np.asarray(labels == self.tokenizer.pad_token_id)

    def _require_even_length_and_mask(self, length: int) -> None:
        """Raise if the tokenizer has no mask token, or if the number of tokens is odd."""
        if getattr(self.tokenizer, "mask_token", None) is None:
            raise ValueError(
                f"The {type(self.tokenizer).__name__} has no mask token. Set "
                "`tokenizer.mask_token`."
            )
        if length % 2:
            raise ValueError(
                f"The sequences of the batch have {length} tokens: cut or pad them to an even "
                "number."
            )


def _token_ids(features: list[Any]) -> list[object]:
    """Return the token ids of each sample."""
    if isinstance(features[0], Mapping):
        return [feature["input_ids"] for feature in features]
    return features
