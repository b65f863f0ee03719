"""The result of a tokenizer: columns, and the position of each token in the text."""

from __future__ import annotations

import logging
import sys
from collections import UserDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .names import INSTALL_TRANSFORMERS, TensorType

if TYPE_CHECKING:
    import tokenizers
    import torch

logger = logging.getLogger(__name__)


class BatchEncoding(UserDict):
    """The columns that a tokenizer returns, with the words and characters of each token.

    Works like `transformers.BatchEncoding`: a dict whose columns are also attributes.
    """

    def __init__(
        self,
        data: dict[str, Any] | None = None,
        encoding: tokenizers.Encoding | Sequence[tokenizers.Encoding] | None = None,
        tensor_type: str | TensorType | None = None,
    ):
        """Store the columns, and convert them if `tensor_type` is passed.

        Args:
            data: the values of each column, by name.
            encoding: the result of the `tokenizers` library for each row.
            tensor_type: "pt" converts the columns to tensors, "np" to arrays.
        """
        super().__init__(data)
        if encoding is not None and not isinstance(encoding, (list, tuple)):
            encoding = cast("list[tokenizers.Encoding]", [encoding])
        self._encodings: Any = encoding
        self.convert_to_tensors(tensor_type)

    def __getitem__(self, item: object) -> Any:
        """Return a column by its name, or the `tokenizers.Encoding` of a row by its number."""
        if isinstance(item, str):
            return self.data[item]
        if self._encodings is not None:
            return self._encodings[item]
        raise KeyError(f"{item!r} is not a column's name, and this encoding has no rows to count.")

    def __getattr__(self, item: str) -> Any:
        try:
            return self.__dict__["data"][item]
        except KeyError:
            raise AttributeError(
                f"{type(self).__name__} has neither an attribute nor a column {item!r}. For all "
                f"methods of transformers' class, {INSTALL_TRANSFORMERS}"
            ) from None

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data, "encodings": self._encodings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.data = state["data"]
        self._encodings = state.get("encodings")

    @property
    def is_fast(self) -> bool:
        """Return whether the positions of tokens in the text are known."""
        return self._encodings is not None

    @property
    def encodings(self) -> list[tokenizers.Encoding] | None:
        """Return the `tokenizers.Encoding` of each row."""
        return self._encodings

    def tokens(self, batch_index: int = 0) -> list[str]:
        """Return the tokens of a row, as text.

        Args:
            batch_index: index of the row.
        """
        return self._row("tokens", batch_index).tokens

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """Return 0 or 1 for each token of a row, the text of the pair that the token is from.

        The value is None for special tokens.

        Args:
            batch_index: index of the row.
        """
        return self._row("sequence_ids", batch_index).sequence_ids

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """Return the number of the word of each token of a row; None for special tokens.

        Args:
            batch_index: index of the row.
        """
        return self._row("word_ids", batch_index).word_ids

    def _row(self, method: str, index: int) -> tokenizers.Encoding:
        """Return the result of the `tokenizers` library for a row, which a method needs."""
        if not self._encodings:
            raise ValueError(
                f"{method}() needs the positions of tokens in the text, which only the result of "
                "a call on text has. Call the tokenizer on the text."
            )
        return self._encodings[index]

    def convert_to_tensors(self, tensor_type: str | TensorType | None = None) -> BatchEncoding:
        """Convert the columns to tensors or arrays, in place.

        Args:
            tensor_type: "pt" or "np"; None changes nothing.

        Raises:
            ValueError: the rows of a column have different lengths.
        """
        if tensor_type is None:
            return self
        # A member of transformers' own enumeration has the same value as ours.
        valid_type = TensorType(getattr(tensor_type, "value", tensor_type))
        for name, values in list(self.items()):
            self[name] = as_kind(values, valid_type, name)
        return self

    def to(self, device: Any, *, non_blocking: bool = False) -> BatchEncoding:
        """Move all tensors to a device, in place.

        A dtype instead of a device is ignored with a warning, because token ids are integers.

        Args:
            device: a torch device, or its name or number.
            non_blocking: True to return before the copies are finished.

        Returns:
            The same object.
        """
        torch = sys.modules.get("torch")
        is_torch_device = torch is not None and isinstance(device, torch.device)
        if not is_torch_device and not isinstance(device, (str, int)):
            logger.warning("%s is not a device: this BatchEncoding is not changed.", device)
            return self
        for name, values in self.data.items():
            if callable(getattr(values, "to", None)):
                self.data[name] = values.to(device=device, non_blocking=non_blocking)
        return self


def as_kind(values: object, kind: TensorType, name: str) -> Any:
    """Convert a column to a tensor or an array; int64 if the column is empty.

    Args:
        values: nested lists; an object that already has the type is returned unchanged.
        kind: the type to convert to.
        name: the name of the column, for the error.

    Raises:
        ValueError: the rows have different lengths, or contain something other than numbers.
    """
    try:
        if kind == TensorType.NUMPY:
            return _to_array(values)
        return _to_tensor(values)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        problem = str(error)
        lengths = _lengths_of_rows(values)
        if len(lengths) > 1:
            problem = f"rows of {', '.join(map(str, sorted(lengths)[:8]))} values"
        raise ValueError(
            f"The column {name!r} cannot be made into one tensor: {problem}. Pass `padding=True`, "
            "or `truncation=True`."
        ) from error


def _lengths_of_rows(values: object) -> set[int]:
    """Return the lengths that occur among the rows of a column."""
    if not isinstance(values, list):
        return set()
    return {len(row) for row in values if isinstance(row, (list, tuple))}


def _to_tensor(values: object) -> torch.Tensor:
    """Convert nested lists to a tensor."""
    import torch

    if isinstance(values, torch.Tensor):
        return values
    # `torch.tensor` is slow for a list of arrays, which it converts number by number.
    if isinstance(values, list) and values and isinstance(values[0], np.ndarray):
        return torch.from_numpy(np.array(values))
    if _is_empty(values):
        return torch.tensor(values, dtype=torch.int64)
    return torch.tensor(values)


def _to_array(values: Any) -> np.ndarray:
    """Convert nested lists to an array."""
    if isinstance(values, np.ndarray):
        return values
    if _is_empty(values):
        return np.asarray(values, dtype=np.int64)
    return np.asarray(values)


def _is_empty(values: object) -> bool:
    """Return whether nested lists contain no values."""
    if not isinstance(values, (list, tuple)):
        return False
    return all(isinstance(value, (list, tuple)) and _is_empty(value) for value in values)


def as_lists(values: Any) -> Any:
    """Convert nested tensors and arrays to lists of numbers.

    Works like `transformers.utils.to_py_obj`.
    """
    if isinstance(values, (int, float, str)) or values is None:
        return values
    if isinstance(values, Mapping):
        return {key: as_lists(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        if all(isinstance(value, (int, float, np.number)) for value in values):
            return list(values)
        return [as_lists(value) for value in values]
    if hasattr(values, "tolist"):
        return values.tolist()
    return values


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
