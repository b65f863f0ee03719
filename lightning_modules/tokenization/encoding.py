"""Result of a tokenizer: columns as lists, tensors or arrays, and the place of each token in the
text.
"""

from __future__ import annotations

import logging
import sys
from collections import UserDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .names import INSTALL_TRANSFORMERS, TensorType

if TYPE_CHECKING:
    import tokenizers

logger = logging.getLogger(__name__)


class BatchEncoding(UserDict):
    """As `transformers.BatchEncoding`: a dict of columns that knows the words and characters of
    its tokens.
    """

    def __init__(
        self,
        data: dict[str, Any] | None = None,
        encoding: tokenizers.Encoding | Sequence[tokenizers.Encoding] | None = None,
        tensor_type: str | TensorType | None = None,
        prepend_batch_axis: bool = False,
        n_sequences: int | None = None,
    ):
        """Hold the columns.

        Args:
            data: column to values.
            encoding: what `tokenizers` returned, for each row.
            tensor_type: "pt" or "np" to make tensors or arrays of the columns.
            prepend_batch_axis: the columns are of one row: tensors get an axis in front.
            n_sequences: 1 for texts, 2 for pairs; by default what the encodings say.
        """
        super().__init__(data)
        single = encoding is not None and not isinstance(encoding, (list, tuple))
        self._encodings: Any = [encoding] if single else encoding
        if n_sequences is None and self._encodings:
            n_sequences = self._encodings[0].n_sequences
        self._n_sequences = n_sequences
        self.convert_to_tensors(tensor_type, prepend_batch_axis)

    def __getitem__(self, item: Any) -> Any:
        """Return a column by its name; a row's `tokenizers.Encoding` by its number; without
        encodings, a slice.
        """
        if isinstance(item, str):
            return self.data[item]
        if self._encodings is not None:
            return self._encodings[item]
        if isinstance(item, slice):
            return {name: values[item] for name, values in self.data.items()}
        raise KeyError(
            f"{item!r} is neither a column's name nor a slice, and this encoding has no rows to "
            "count."
        )

    def __getattr__(self, item: str) -> Any:
        try:
            return self.__dict__["data"][item]
        except KeyError:
            raise AttributeError(
                f"{type(self).__name__} has neither an attribute nor a column {item!r}. For all "
                f"methods of that of transformers, {INSTALL_TRANSFORMERS}"
            ) from None

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data, "encodings": self._encodings, "n_sequences": self._n_sequences}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.data = state["data"]
        self._encodings = state.get("encodings")
        self._n_sequences = state.get("n_sequences")

    @property
    def n_sequences(self) -> int | None:
        """1 for texts, 2 for pairs; None where it is not known."""
        return self._n_sequences

    @property
    def is_fast(self) -> bool:
        """Return whether the places of tokens in the text are known."""
        return self._encodings is not None

    @property
    def encodings(self) -> list[tokenizers.Encoding] | None:
        """Return the `tokenizers.Encoding` of each row."""
        return self._encodings

    def tokens(self, batch_index: int = 0) -> list[str]:
        """Return the tokens of a row, as text."""
        return self._row("tokens", batch_index).tokens

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """Return 0 or 1 for each token of a row, the text of the pair that it is from; None for
        special tokens.
        """
        return self._row("sequence_ids", batch_index).sequence_ids

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """Return the number of its word for each token of a row; None for special tokens."""
        return self._row("word_ids", batch_index).word_ids

    def char_to_token(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """Return the token that has a character; `(row, character)`, or `(character)` of the first
        row.

        None where no token has it, such as for white space.
        """
        row = 0
        if char_index is None:
            char_index = batch_or_char_index
        else:
            row = batch_or_char_index
        return self._row("char_to_token", row).char_to_token(char_index, sequence_index)

    def _row(self, method: str, index: int) -> tokenizers.Encoding:
        if not self._encodings:
            raise ValueError(
                f"{method}() asks where tokens came from; only what a call on text returned knows "
                "that."
            )
        return self._encodings[index]

    def convert_to_tensors(
        self, tensor_type: str | TensorType | None = None, prepend_batch_axis: bool = False
    ) -> BatchEncoding:
        """Make tensors or arrays of the columns, in place.

        Args:
            tensor_type: "pt" or "np"; None leaves all as it is.
            prepend_batch_axis: put an axis in front.

        Raises:
            ValueError: a column does not fit into one tensor.
        """
        if tensor_type is None:
            return self
        kind = TensorType(getattr(tensor_type, "value", tensor_type))
        for name, values in list(self.items()):
            self[name] = as_kind([values] if prepend_batch_axis else values, kind, name)
        return self

    def to(self, device: Any, *, non_blocking: bool = False) -> BatchEncoding:
        """Move all tensors to a device, in place; a dtype is refused with a warning: ids are
        whole numbers.
        """
        torch = sys.modules.get("torch")
        if not (
            isinstance(device, (str, int))
            or (torch is not None and isinstance(device, torch.device))
        ):
            logger.warning("%s is no device, so this BatchEncoding stays as it is.", device)
            return self
        for name, values in self.data.items():
            if callable(getattr(values, "to", None)):
                self.data[name] = values.to(device=device, non_blocking=non_blocking)
        return self


def as_kind(values: Any, kind: TensorType, name: str) -> Any:
    """Make a tensor or array of a column; empty ones are int64, arrays of rows of different lengths
    of type object.

    Args:
        values: nested lists, or what is a tensor (an array) already.
        kind: which of both.
        name: of the column, for the error.

    Raises:
        ValueError: its rows have different lengths, or it does not hold numbers.
    """
    make = _array if kind == TensorType.NUMPY else _tensor
    try:
        return make(values)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        lengths = (
            {len(row) for row in values if isinstance(row, (list, tuple))}
            if isinstance(values, list)
            else set()
        )
        rows = (
            f"rows of {', '.join(map(str, sorted(lengths)[:8]))} values"
            if len(lengths) > 1
            else f"{error}"
        )
        raise ValueError(
            f"The column {name!r} cannot be made into one tensor: {rows}. Pass `padding=True`, or "
            "`truncation=True`."
        ) from error


def _tensor(values: Any) -> Any:
    import torch

    if isinstance(values, torch.Tensor):
        return values
    if isinstance(values, list) and values and isinstance(values[0], np.ndarray):
        return torch.from_numpy(np.array(values))
    return torch.tensor(values, dtype=torch.int64 if _is_empty(values) else None)


def _array(values: Any) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    if _is_ragged(values):
        return np.asarray([np.asarray(row) for row in values], dtype=object)
    return np.asarray(values, dtype=np.int64 if _is_empty(values) else None)


def _is_ragged(values: Any) -> bool:
    rows = (list, tuple, np.ndarray)
    if not (isinstance(values, (list, tuple)) and values and isinstance(values[0], rows)):
        return False
    return len({len(row) for row in values}) > 1


def _is_empty(values: Any) -> bool:
    """Tell whether there is not a single number in it."""
    if not isinstance(values, (list, tuple)):
        return False
    return all(isinstance(value, (list, tuple)) and _is_empty(value) for value in values)


def as_lists(values: Any) -> Any:
    """As `transformers.utils.to_py_obj`: tensors and arrays anywhere in it become lists of plain
    numbers.
    """
    if isinstance(values, (int, float, str)) or values is None:
        return values
    if isinstance(values, Mapping):
        return {key: as_lists(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        if all(isinstance(value, (int, float, np.number)) for value in values):
            return list(values)
        return [as_lists(value) for value in values]
    return values.tolist() if hasattr(values, "tolist") else values


def is_tensor(value: Any) -> bool:
    """Tell whether it is a tensor of torch; without loading torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
