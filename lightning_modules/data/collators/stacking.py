"""From sequences of token ids, without any other column, to one tensor or array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["numpy_collate_batch", "torch_collate_batch"]


def torch_collate_batch(examples: Any, tokenizer: Any, pad_to_multiple_of: int | None = None) -> torch.Tensor:
    """As `_torch_collate_batch` in `transformers.data.data_collator`: pads only where lengths differ.

    Args:
        examples: sequences of token ids: lists, arrays or tensors.
        tokenizer: has `pad_token`, `pad_token_id` and `padding_side`.
        pad_to_multiple_of: round the length up to a multiple of this.

    Returns:
        Shape (samples, tokens), of the type of the first tensor; int64 for lists and arrays.

    Raises:
        ValueError: it has to be padded, and there is no token to do it with.
    """
    import torch

    if isinstance(examples[0], (list, tuple, np.ndarray)):
        examples = [torch.tensor(example, dtype=torch.long) for example in examples]
    length, equal = _length([len(example) for example in examples], pad_to_multiple_of)
    if equal:
        return torch.stack(list(examples))
    result = examples[0].new_full((len(examples), length), _pad_token_id(tokenizer))
    for row, example in zip(result, examples, strict=True):
        row[_place(tokenizer, len(example), length)] = example
    return result


def numpy_collate_batch(examples: Any, tokenizer: Any, pad_to_multiple_of: int | None = None) -> np.ndarray:
    """As `_numpy_collate_batch` in `transformers.data.data_collator`: `torch_collate_batch` with arrays."""
    if isinstance(examples[0], (list, tuple)):
        examples = [np.array(example, dtype=np.int64) for example in examples]
    length, equal = _length([len(example) for example in examples], pad_to_multiple_of)
    if equal:
        return np.stack(examples)
    result = np.full((len(examples), length), _pad_token_id(tokenizer), dtype=np.asarray(examples[0]).dtype)
    for row, example in zip(result, examples, strict=True):
        row[_place(tokenizer, len(example), length)] = example
    return result


def _length(lengths: list[int], multiple: int | None) -> tuple[int, bool]:
    """The common length, and whether all have it already."""
    longest = max(lengths)
    length = longest if multiple is None else -(-longest // multiple) * multiple
    return length, set(lengths) == {length}


def _pad_token_id(tokenizer: Any) -> int:
    if getattr(tokenizer, "pad_token", None) is None:
        raise ValueError(
            f"The sequences of the batch differ in length, and the {type(tokenizer).__name__} has no pad token to fill "
            "them up with. Set one: `tokenizer.pad_token = tokenizer.eos_token`, or "
            "`tokenizer.add_special_tokens({'pad_token': '[PAD]'})`."
        )
    return tokenizer.pad_token_id


def _place(tokenizer: Any, size: int, length: int) -> slice:
    right = getattr(tokenizer, "padding_side", "right") == "right"
    return slice(0, size) if right else slice(length - size, length)
