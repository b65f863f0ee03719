"""Base class and helpers of all collators, and batches of plain sequences of token ids."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:
    import torch


Batch = dict[str, Any]

DataCollator = Callable[[list[Any]], dict[str, Any]]
"""A function that makes a batch of samples; as `transformers.DataCollator`."""

LABELS = ("label", "label_ids")
"""Columns that collators rename to "labels"."""

_ADVICE = "Asking-to-pad-a-fast-tokenizer"


class DataCollatorMixin:
    """Base of collators that make tensors or arrays, by `torch_call` or `numpy_call`.

    Works like `transformers.DataCollatorMixin`.

    `return_tensors` decides which. A subclass has an attribute of that name, "pt" or "np", and the
    methods for those that it supports.
    """

    return_tensors: str = "pt"

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Any:
        """Return the batch of these samples.

        Args:
            features: the samples.
            return_tensors: "pt" or "np" in place of the attribute.

        Raises:
            ValueError: for any other `return_tensors`.
        """
        if return_tensors is None:
            return_tensors = self.return_tensors
        check_return_tensors(return_tensors)
        if return_tensors == "pt":
            return self.torch_call(features)
        return self.numpy_call(features)

    def torch_call(self, features: list[Any], /) -> Any:
        """Make the batch of torch tensors; to be overridden."""
        raise NotImplementedError(
            f"{type(self).__name__} has no `torch_call`, so it cannot return tensors ('pt')."
        )

    def numpy_call(self, features: list[Any], /) -> Any:
        """Make the batch of numpy arrays; to be overridden."""
        raise NotImplementedError(
            f"{type(self).__name__} has no `numpy_call`, so it cannot return arrays ('np')."
        )


def check_return_tensors(return_tensors: str) -> None:
    """Check `return_tensors`.

    Raises:
        ValueError: it is neither "pt" nor "np".
    """
    if return_tensors not in ("pt", "np"):
        raise ValueError(
            f"return_tensors={return_tensors!r} is not supported: use 'pt' (torch) or 'np' (numpy)."
        )


def pad_without_fast_tokenizer_warning(tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Pad without a warning; as the function of that name in `transformers.data.data_collator`.

    Fast tokenizers of some versions warn that calling them on texts is faster than padding, but a
    collator gets token ids.

    Args:
        tokenizer: anything with a method `pad`.
        args: for `pad`.
        kwargs: for `pad`.
    """
    with _no_advice(tokenizer):
        return tokenizer.pad(*args, **kwargs)


@contextmanager
def _no_advice(tokenizer: object) -> Generator[None]:
    """Mark the warning as already shown, within the block."""
    shown_warnings = getattr(tokenizer, "deprecation_warnings", None)
    if shown_warnings is None:
        yield
        return
    was_shown = shown_warnings.get(_ADVICE, False)
    shown_warnings[_ADVICE] = True
    try:
        yield
    finally:
        shown_warnings[_ADVICE] = was_shown


def special_tokens_rows(tokenizer: Any, rows: list[list[int]]) -> list[list[int]]:
    """Mark the special tokens of each row: 1 for them, 0 for all others."""
    masks: list[list[int]] = []
    for row in rows:
        masks.append(tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True))
    return masks


def label_name(features: list[Any]) -> str:
    """Return the column of labels: "label" if the first sample has it, otherwise "labels"."""
    return "label" if "label" in features[0] else "labels"


def without_columns(features: list[Any], *names: str) -> list[dict[str, Any]]:
    """Return the samples without these columns."""
    samples: list[dict[str, Any]] = []
    for feature in features:
        remaining = {key: value for key, value in feature.items() if key not in names}
        samples.append(remaining)
    return samples


def has_fraction(numbers: np.ndarray) -> bool:
    """Return whether any of the numbers would change when cast to an integer."""
    if numbers.dtype.kind != "f":
        return False
    are_whole = numbers == np.trunc(numbers)
    return not bool(are_whole.all())


def whole_numbers(values: Any, name: str, index: int) -> np.ndarray:
    """Return labels that are indices of classes or tokens, int64.

    Args:
        values: the values of one sample.
        name: the column of the values, for the error.
        index: the index of the sample in the batch, for the error.

    Raises:
        ValueError: one of them has a fraction, which would be cut off.
    """
    plain_values = values
    if hasattr(values, "detach"):
        plain_values = values.detach().cpu()
    numbers = np.asarray(plain_values)
    if has_fraction(numbers):
        raise ValueError(
            f"Sample {index} of the batch has {name}={values!r:.80}, but indices of classes or "
            "tokens are whole numbers. To predict numbers use `default_data_collator` or "
            "`DataCollatorWithPadding`."
        )
    return numbers.astype(np.int64)


def to_numpy(values: Any) -> np.ndarray:
    """Convert a tensor, an array or nested lists to an array.

    Works like `transformers.data.data_collator.to_numpy`. The tensor may be on any device.
    """
    if isinstance(values, np.ndarray):
        return cast("NDArray[Any]", values)
    if hasattr(values, "detach"):
        return values.detach().cpu().numpy()
    return np.array(values)


def torch_collate_batch(
    examples: Any, tokenizer: Any, pad_to_multiple_of: int | None = None
) -> torch.Tensor:
    """Make a tensor of token ids, padded only where lengths differ.

    Works like `_torch_collate_batch` in `transformers.data.data_collator`.

    Args:
        examples: sequences of token ids: lists, arrays or tensors.
        tokenizer: has `pad_token`, `pad_token_id` and `padding_side`.
        pad_to_multiple_of: round the length up to a multiple of this.

    Returns:
        Shape (samples, tokens), of the type of the first tensor; int64 for lists and arrays.

    Raises:
        ValueError: it has to be padded, and the tokenizer has no pad token.
    """
    import torch

    if isinstance(examples[0], (list, tuple, np.ndarray)):
        examples = [torch.tensor(example, dtype=torch.long) for example in examples]

    # Without padding no pad token is needed.
    lengths = [len(example) for example in examples]
    length, all_have_it = _common_length(lengths, pad_to_multiple_of)
    if all_have_it:
        return torch.stack(list(examples))

    # Of the dtype and the device of the first sample: (samples, tokens).
    padded = examples[0].new_full((len(examples), length), _pad_token_id(tokenizer))
    for row, example in zip(padded, examples, strict=True):
        row[_unpadded_slice(tokenizer, len(example), length)] = example
    return padded


def numpy_collate_batch(
    examples: Any, tokenizer: Any, pad_to_multiple_of: int | None = None
) -> np.ndarray:
    """Make an array of token ids, padded only where lengths differ, see `torch_collate_batch`.

    Works like `_numpy_collate_batch` in `transformers.data.data_collator`.
    """
    if isinstance(examples[0], (list, tuple)):
        examples = [np.array(example, dtype=np.int64) for example in examples]

    # Without padding no pad token is needed.
    lengths = [len(example) for example in examples]
    length, all_have_it = _common_length(lengths, pad_to_multiple_of)
    if all_have_it:
        return np.stack(examples)
    dtype = np.asarray(examples[0]).dtype
    return padded_rows(examples, length, _pad_token_id(tokenizer), tokenizer, dtype)


def padded_rows(
    rows: Any, length: int, fill: int, tokenizer: Any, dtype: DTypeLike = np.int64
) -> np.ndarray:
    """Return rows as one array, filled up on the side on which the tokenizer pads.

    Args:
        rows: arrays or lists of shape (tokens, ...); the shape of a token is that of the first.
        length: tokens in each row of the result.
        fill: the value that fills up shorter rows.
        tokenizer: has `padding_side`.
        dtype: the dtype of the result.
    """
    shape_of_token = np.asarray(rows[0]).shape[1:]
    padded = np.full((len(rows), length, *shape_of_token), fill, dtype=dtype)
    for row, values in zip(padded, rows, strict=True):
        row[_unpadded_slice(tokenizer, len(values), length)] = values
    return padded


def as_return_type(values: np.ndarray, return_tensors: str) -> Any:
    """Return an array as `return_tensors` says: itself, or a tensor of its memory."""
    if return_tensors == "np":
        return values
    import torch

    return torch.as_tensor(values, device="cpu")


def _common_length(lengths: list[int], multiple: int | None) -> tuple[int, bool]:
    """Return the length to pad to, and whether all have it already."""
    length = max(lengths)
    if multiple is not None:
        count = math.ceil(length / multiple)
        length = count * multiple
    return length, set(lengths) == {length}


def _pad_token_id(tokenizer: Any) -> int:
    if getattr(tokenizer, "pad_token", None) is None:
        raise ValueError(
            f"Sequences differ in length, and the {type(tokenizer).__name__} has no pad token: set "
            "`tokenizer.pad_token`, for example to `tokenizer.eos_token`."
        )
    return tokenizer.pad_token_id


def _unpadded_slice(tokenizer: object, size: int, length: int) -> slice:
    """Return where the tokens of a sequence are in its padded row."""
    if getattr(tokenizer, "padding_side", "right") == "right":
        return slice(0, size)
    return slice(length - size, length)
