"""The collator for permutation language models, such as XLNet."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


@dataclass
class DataCollatorForPermutationLanguageModeling(DataCollatorMixin):
    """Hide spans of tokens, to be predicted in a random order, as XLNet is trained.

    Works like `transformers.DataCollatorForPermutationLanguageModeling`, with the same draws.

    Unlike there, no pad token is needed. Spans of tokens are hidden, and predicted in a random
    order. Half of a sequence counts as remembered from the one before, so each half is permuted
    separately, and lengths must be even.
    """

    tokenizer: Any
    """Has `mask_token`, `mask_token_id`, `get_special_tokens_mask`; for padding `pad_token` and
    `pad_token_id`.
    """
    plm_probability: float = 1 / 6
    """Share of the tokens around a span that the span is."""
    max_span_length: int = 5
    """Longest span, in tokens; of numpy's spans one more, as in the reference."""
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
            "input_ids"; "perm_mask", float32 of shape (samples, tokens, tokens), 1 where the first
            may not attend to the second; "target_mapping" of the same shape, the identity;
            "labels", -100 where nothing is hidden.

        Raises:
            ValueError: the number of tokens is odd, or the mask token is missing.
        """
        inputs = torch_collate_batch(_token_ids(examples), self.tokenizer)
        return _as_batch(self.torch_mask_tokens(inputs))

    def numpy_call(self, examples: list[Any]) -> Batch:
        """Return the batch as arrays, see `torch_call`.

        It draws from Python's and numpy's global generators.

        Args:
            examples: mappings with "input_ids", or plain sequences of token ids.
        """
        inputs = numpy_collate_batch(_token_ids(examples), self.tokenizer)
        return _as_batch(self.numpy_mask_tokens(inputs))

    def torch_mask_tokens(
        self, inputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Hide spans of token ids.

        Args:
            inputs: shape (samples, tokens); changed.

        Returns:
            The parts of `torch_call`'s result, in its order.
        """
        import torch

        def draw(low: int, high: int) -> int:
            return int(torch.randint(low, high, (1,)).item())

        def permuted(halves: np.ndarray) -> np.ndarray:
            order = torch.randperm(halves.shape[1]).numpy()
            return halves[:, order]

        # Arrays share the memory of tensors on the CPU, so nothing is copied here.
        tokens, mask, target, labels = self._mask(inputs.numpy(), draw, permuted)
        return (
            torch.as_tensor(tokens, device="cpu"),
            torch.as_tensor(mask, device="cpu"),
            torch.as_tensor(target, device="cpu"),
            torch.as_tensor(labels, device="cpu"),
        )

    def numpy_mask_tokens(
        self, inputs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Hide spans of token ids, in arrays.

        Args:
            inputs: shape (samples, tokens); changed.

        Returns:
            The parts of `torch_call`'s result, in its order.
        """

        def permuted(halves: np.ndarray) -> np.ndarray:
            # numpy shuffles rows, in place: those of the transposed view are the columns.
            np.random.shuffle(np.transpose(halves))
            return halves

        # Python's `randint` includes its upper end, unlike torch's. 5.3.0 and 5.23 ignore that, and
        # the draws here are theirs.
        return self._mask(inputs, random.randint, permuted)

    def _mask(
        self,
        inputs: np.ndarray,
        draw: Callable[[int, int], int],
        permuted: Callable[[np.ndarray], np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Hide spans in place, and return the parts of `torch_call`'s result.

        Args:
            inputs: token ids, shape (samples, tokens).
            draw: `(low, high)` -> a random number.
            permuted: the two halves of the positions, as rows -> both in the same random order.
        """
        count, length = inputs.shape
        self._require_even_length_and_mask(length)
        labels = np.copy(inputs)

        # Hide spans of tokens, except special tokens and padding: bool, (samples, tokens).
        hidden = np.zeros(inputs.shape, dtype=bool)
        for row in hidden:
            for start, end in self._spans(length, draw):
                row[start:end] = True
        special, padding = self._never_hidden(labels)
        hidden &= ~(special | padding)
        inputs[hidden] = self.tokenizer.mask_token_id
        labels[~hidden] = -100

        # A token may not attend to the hidden ones at or after its position in the random order.
        # Those that are neither hidden nor special come before all others.
        mask = np.zeros((count, length, length), dtype=np.float32)
        for index in range(count):
            # The position of each token in the random order; both halves are permuted alike.
            positions = np.arange(length, dtype=np.int64)
            halves = np.reshape(positions, (-1, length // 2))
            order = permuted(halves).flatten()
            is_plain = ~hidden[index] & ~special[index] & ~padding[index]
            order[is_plain] = -1

            # (tokens, tokens): the row is the token that attends, the column the one it attends to.
            is_not_before = order[:, None] <= order[None, :]
            mask[index] = is_not_before & hidden[index]

        # Each token predicts itself: (samples, tokens, tokens).
        identity = np.eye(length, dtype=np.float32)
        target = np.tile(identity, (count, 1, 1))
        return inputs.astype(np.int64), mask, target, labels.astype(np.int64)

    def _spans(self, length: int, draw: Callable[[int, int], int]) -> list[tuple[int, int]]:
        """Return where spans begin and end.

        Contexts follow one another up to the end, and each has a span somewhere in it.
        """
        spans: list[tuple[int, int]] = []
        context_start = 0
        while context_start < length:
            span_size = draw(1, self.max_span_length + 1)
            context_size = int(span_size / self.plm_probability)

            # Somewhere in its context, with room for the whole span.
            start = context_start + draw(0, context_size - span_size + 1)
            spans.append((start, start + span_size))
            context_start += context_size
        return spans

    def _never_hidden(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where the special tokens are, and where the padding is."""
        rows = special_tokens_rows(self.tokenizer, labels.tolist())
        special = np.array(rows, dtype=bool)
        if getattr(self.tokenizer, "pad_token", None) is None:
            return special, np.zeros_like(special)
        return special, np.asarray(labels == self.tokenizer.pad_token_id)

    def _require_even_length_and_mask(self, length: int) -> None:
        """Raise `ValueError` without a mask token, or if two halves would differ in length."""
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


def _as_batch(parts: tuple[object, object, object, object]) -> Batch:
    tokens, mask, target, labels = parts
    return {"input_ids": tokens, "perm_mask": mask, "target_mapping": target, "labels": labels}
