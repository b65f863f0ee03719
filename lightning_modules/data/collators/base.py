"""The base class and helpers of all collators, and collation of plain token id sequences."""

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
"""A function that turns samples into a batch; works like `transformers.DataCollator`."""

LABELS = ("label", "label_ids")
"""Columns that collators rename to "labels"."""

_ADVICE = "Asking-to-pad-a-fast-tokenizer"
"""The key of the warning in the `deprecation_warnings` of fast tokenizers."""


class DataCollatorMixin:
    """Base class of collators that make tensors with `torch_call`, or arrays with `numpy_call`.

    Works like `transformers.DataCollatorMixin`.

    The attribute `return_tensors` chooses the method: "pt" or "np". A subclass defines the methods
    that it supports.
    """

    return_tensors: str = "pt"

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Any:
        """Return the batch of these samples.

        Args:
            features: the samples.
            return_tensors: "pt" or "np"; by default the attribute.

        Raises:
            ValueError: `return_tensors` has another value.
        """
        if return_tensors is None:
            return_tensors = self.return_tensors
        check_return_tensors(return_tensors)
        if return_tensors == "pt":
            return self.torch_call(features)
        return self.numpy_call(features)

    def torch_call(self, features: list[Any], /) -> Any:
        """Return the batch of these samples as tensors; subclasses override this."""
        raise NotImplementedError(
            f"{type(self).__name__} has no `torch_call`, so it cannot return tensors ('pt')."
        )

    def numpy_call(self, features: list[Any], /) -> Any:
        """Return the batch of these samples as arrays; subclasses override this."""
        raise NotImplementedError(
            f"{type(self).__name__} has no `numpy_call`, so it cannot return arrays ('np')."
        )


def check_return_tensors(return_tensors: str) -> None:
    """Check the value of an argument `return_tensors`.

    Raises:
        ValueError: the value is neither "pt" nor "np".
    """
    if return_tensors not in ("pt", "np"):
        raise ValueError(
            f"return_tensors={return_tensors!r} is not supported: use 'pt' (torch) or 'np' (numpy)."
        )


def pad_without_fast_tokenizer_warning(tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Pad with a tokenizer, without its warning that calling it on texts is faster.

    Some versions of fast tokenizers log this warning, but a collator has token ids and no texts.
    Works like the function of the same name in `transformers.data.data_collator`.

    Args:
        tokenizer: an object with a method `pad`.
        args: positional arguments of `pad`.
        kwargs: keyword arguments of `pad`.
    """
    with _no_advice(tokenizer):
        return tokenizer.pad(*args, **kwargs)


@contextmanager
def _no_advice(tokenizer: object) -> Generator[None]:
    """Mark the tokenizer's warning as already shown while the block runs."""
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
    """Return a mask for each row of token ids: 1 for special tokens, 0 for all others."""
    masks: list[list[int]] = []
    for row in rows:
        masks.append(tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True))
    return masks


def label_name(features: list[Any]) -> str:
    """Return the name of the label column: "label" if the first sample has it, else "labels"."""
    return "label" if "label" in features[0] else "labels"


def without_columns(features: list[Any], *names: str) -> list[dict[str, Any]]:
    """Return the samples without these columns."""
    samples: list[dict[str, Any]] = []
    for feature in features:
        remaining = {key: value for key, value in feature.items() if key not in names}
        samples.append(remaining)
    return samples


def has_fraction(numbers: np.ndarray) -> bool:
    """Return whether casting the numbers to integers would change any of them."""
    if numbers.dtype.kind != "f":
        return False
    are_whole = numbers == np.trunc(numbers)
    return not bool(are_whole.all())


def as_integers(values: Any, name: str, index: int) -> np.ndarray:
    """Return the class or token indices in a column of a sample, as int64.

    Args:
        values: the values of one sample.
        name: the name of the column, for the error.
        index: the index of the sample in the batch, for the error.

    Raises:
        ValueError: a value is not a whole number, so the cast would truncate it.
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
    """Stack sequences of token ids into a tensor, and pad them if their lengths differ.

    Works like `_torch_collate_batch` in `transformers.data.data_collator`.

    Args:
        examples: sequences of token ids as lists, arrays or tensors.
        tokenizer: provides `pad_token`, `pad_token_id` and `padding_side`.
        pad_to_multiple_of: the length is rounded up to a multiple of this number.

    Returns:
        A tensor of shape (samples, tokens). Its dtype is that of the first tensor, or int64 for
        lists and arrays.

    Raises:
        ValueError: sequences have to be padded, but the tokenizer has no pad token.
    """
    import torch

    if isinstance(examples[0], (list, tuple, np.ndarray)):
        examples = [torch.tensor(example, dtype=torch.long) for example in examples]

    # The pad token is only needed if a sequence is padded.
    lengths = [len(example) for example in examples]
    length = _common_length(lengths, pad_to_multiple_of)
    if set(lengths) == {length}:
        return torch.stack(list(examples))

    # The result has the dtype and the device of the first sample.
    padded = examples[0].new_full((len(examples), length), _pad_token_id(tokenizer))
    for row, example in zip(padded, examples, strict=True):
        row[_unpadded_slice(tokenizer, len(example), length)] = example
    return padded


def numpy_collate_batch(
    examples: Any, tokenizer: Any, pad_to_multiple_of: int | None = None
) -> np.ndarray:
    """Stack sequences of token ids into an array, and pad them if their lengths differ.

    Works like `_numpy_collate_batch` in `transformers.data.data_collator`, with the parameters of
    `torch_collate_batch`.
    """
    if isinstance(examples[0], (list, tuple)):
        examples = [np.array(example, dtype=np.int64) for example in examples]

    # The pad token is only needed if a sequence is padded.
    lengths = [len(example) for example in examples]
    length = _common_length(lengths, pad_to_multiple_of)
    if set(lengths) == {length}:
        return np.stack(examples)
    dtype = np.asarray(examples[0]).dtype
    return padded_rows(examples, length, _pad_token_id(tokenizer), tokenizer, dtype)


def padded_rows(
    rows: Any, length: int, fill: int, tokenizer: Any, dtype: DTypeLike = np.int64
) -> np.ndarray:
    """Return rows as one array, padded on the tokenizer's padding side.

    Args:
        rows: arrays or lists of shape (tokens, ...), which differ only in the number of tokens.
        length: number of tokens in each row of the result.
        fill: the value that pads shorter rows.
        tokenizer: provides `padding_side`.
        dtype: the dtype of the result.
    """
    shape_of_token = np.asarray(rows[0]).shape[1:]
    padded = np.full((len(rows), length, *shape_of_token), fill, dtype=dtype)
    for row, values in zip(padded, rows, strict=True):
        row[_unpadded_slice(tokenizer, len(values), length)] = values
    return padded


def as_return_type(values: np.ndarray, return_tensors: str) -> Any:
    """Return the array for "np", or a tensor that shares its memory for "pt"."""
    if return_tensors == "np":
        return values
    import torch

    return torch.as_tensor(values, device="cpu")


def _common_length(lengths: list[int], multiple: int | None) -> int:
    """Return the length to pad to: the longest one, rounded up to a multiple."""
    length = max(lengths)
    if multiple is None:
        return length
    return math.ceil(length / multiple) * multiple


def _pad_token_id(tokenizer: Any) -> int:
    """Return the id of the pad token, and raise if the tokenizer has none."""
    if getattr(tokenizer, "pad_token", None) is None:
        raise ValueError(
            f"Sequences differ in length, and the {type(tokenizer).__name__} has no pad token: set "
            "`tokenizer.pad_token`, for example to `tokenizer.eos_token`."
        )
    return tokenizer.pad_token_id


def _unpadded_slice(tokenizer: object, size: int, length: int) -> slice:
    """Return the slice of a padded row that holds the tokens of the sequence."""
    if getattr(tokenizer, "padding_side", "right") == "right":
        return slice(0, size)
    return slice(length - size, length)
