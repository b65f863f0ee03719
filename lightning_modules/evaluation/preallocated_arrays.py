"""Arrays that grow batch by batch in place, so that joining many takes no second copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

PADDING = -100
GROWTH = 1.125
"""Factor by which a full array grows; the system moves its memory, and does not copy it."""
CHUNK = 2**20
"""Bytes that are moved at a time."""
BATCHWISE_ADVICE = "Set `eval_do_concat_batches=False` to get them batch by batch."


class PreallocatedArray:
    """Concatenate arrays batch by batch in a single piece of memory, which is never copied.

    As `nested_concat` of transformers. Rows are stored one after the other, with the length of the
    longest batch so far. If a longer batch is added, earlier rows keep their length until `result`
    moves them apart, the last ones first. So each value is written twice at most, and memory is not
    larger than the result, except for the reserve (`GROWTH`) while it grows.

    Args:
        rows: number of rows expected; None if unknown. More and fewer are accepted.
        padding: fills up shorter rows of the second dimension, on the right.
    """

    def __init__(self, rows: int | None = None, padding: float = PADDING) -> None:
        self.expected = rows or 0
        self.padding = padding
        self._begin()

    def _begin(self) -> None:
        self._flat: np.ndarray | None = None
        """The memory, as an array of one dimension."""
        self._shape: tuple[int, ...] = ()
        """Shape of the longest row so far."""
        self._rows = 0
        """Rows written so far."""
        self._used = 0
        """Values written so far."""
        self._pieces: list[_Piece] = []
        """Rows of one length each; the last one has the length of `_shape`."""

    def add(self, batch: object) -> None:
        """Write a batch of shape (samples,) or (samples, length, ...).

        The length may differ from batch to batch.

        Raises:
            TypeError: it is not an array.
            ValueError: its shape cannot be joined with those before it.
        """
        if not isinstance(batch, np.ndarray):
            raise TypeError(_not_an_array(batch))
        if batch.ndim == 0:
            batch = batch.reshape(1)

        # Most batches have the shape and the dtype of the one before.
        flat = self._flat
        if flat is None or batch.shape[1:] != self._shape or batch.dtype != flat.dtype:
            flat = self._make_ready_for(batch)

        # Make room for rows of the longest length so far, and write them.
        shape = (len(batch), *self._shape)
        used = self._used + math.prod(shape)
        if used > len(flat):
            length = max(used, int(GROWTH * len(flat)))
            flat = _resized(flat, length)
            self._flat = flat
        rows = flat[self._used : used].reshape(shape)
        self._write(rows, batch)
        self._rows += len(batch)
        self._used = used

    def result(self) -> np.ndarray:
        """Return all rows, and forget them: the next batch starts a new array."""
        assert self._flat is not None, "a growing array starts with a batch"
        shape = (self._rows, *self._shape)

        # Rows of several lengths become rows of the longest one, which takes more memory.
        flat = _resized(self._flat, max(self._used, math.prod(shape)))
        if len(self._pieces) > 1:
            self._spread_out(flat)

        # Release the reserve.
        flat = _resized(flat, math.prod(shape))
        self._begin()
        return flat.reshape(shape)

    def _make_ready_for(self, batch: np.ndarray) -> np.ndarray:
        """Prepare the memory for a batch of another shape or dtype, and return it."""
        shape = batch.shape[1:]

        # The first batch decides about the shape of a row, and the dtype.
        if self._flat is None:
            rows = max(self.expected, len(batch))
            self._shape = shape
            self._flat = np.empty(rows * math.prod(shape), batch.dtype)
            self._pieces = [_Piece(0, 0, shape)]
            return self._flat

        # Another dtype converts the rows before it; a longer row starts a new piece.
        _require_joinable(self._shape, shape)
        dtype = np.promote_types(self._flat.dtype, batch.dtype)
        if shape == self._shape and dtype != self._flat.dtype:
            self._flat = self._flat[: self._used].astype(dtype)
        elif shape != self._shape and shape[0] > self._shape[0]:
            self._shape = shape
            self._pieces.append(_Piece(self._rows, self._used, shape))
        return self._flat

    def _spread_out(self, flat: np.ndarray) -> None:
        """Extend all rows to the length of the longest one, in place, from the last to the first.

        In that order no row overwrites another one that has not been moved yet.
        """
        values_in_row = math.prod(self._shape)
        bytes_in_row = values_in_row * flat.itemsize
        rows_at_a_time = max(1, CHUNK // max(1, bytes_in_row))

        # Start with the last piece, whose rows move the farthest, and with its last rows.
        end = self._rows
        for piece in reversed(self._pieces):
            values_before = math.prod(piece.shape)
            for last in range(end, piece.row, -rows_at_a_time):
                first = max(piece.row, last - rows_at_a_time)
                start = piece.start + (first - piece.row) * values_before
                stop = piece.start + (last - piece.row) * values_before

                # Source and target may overlap. numpy detects that, and copies these few rows.
                source = flat[start:stop].reshape(last - first, *piece.shape)
                target = flat[first * values_in_row : last * values_in_row]
                self._write(target.reshape(last - first, *self._shape), source)
            end = piece.row

    def _write(self, rows: np.ndarray, batch: np.ndarray) -> None:
        """Write a batch into rows that may be longer, which are then padded."""
        if batch.shape == rows.shape:
            rows[...] = batch
            return

        # Under its safe casting rules numpy would refuse to pad bools and unsigned integers with
        # -100.
        width = batch.shape[1]
        rows[:, :width] = batch
        np.copyto(rows[:, width:], self.padding, casting="unsafe")


class _Piece(NamedTuple):
    """Rows of one length.

    Attributes:
        row: number of the first one.
        start: index of its first value in the memory.
        shape: of one row.
    """

    row: int
    start: int
    shape: tuple[int, ...]


class PreallocatedTree:
    """Concatenate nested lists, tuples, named tuples and mappings of arrays, batch by batch.

    Args:
        first: the first batch, whose structure the others must have; it is written too.
        rows: number of rows expected.
        padding: see `PreallocatedArray`.
    """

    def __init__(self, first: Any, rows: int | None = None, padding: float = PADDING) -> None:
        self.kind: type[Any] = type(first)
        self.parts: dict[Any, PreallocatedArray | PreallocatedTree] = {}
        for key in _keys_of(first):
            self.parts[key] = growing(first[key], rows, padding)

    def add(self, batch: Any) -> None:
        """Write a batch.

        Raises:
            TypeError: its structure is not that of the first one.
        """
        keys = set(_keys_of(batch)) if _is_nested(batch) else None
        if type(batch) is not self.kind or keys != set(self.parts):
            raise TypeError(
                f"Predictions cannot be joined: {self.kind.__name__} of {set(self.parts)} and "
                f"{type(batch).__name__} of {keys}. {BATCHWISE_ADVICE}"
            )
        for key, part in self.parts.items():
            part.add(batch[key])

    def result(self) -> Any:
        """Return the structure of the first batch, with arrays over all samples."""
        results = {key: part.result() for key, part in self.parts.items()}
        container_class: Callable[..., Any] = self.kind
        if issubclass(self.kind, Mapping):
            return container_class(results)

        # A named tuple takes its values one by one, a list or a tuple all in one.
        if hasattr(self.kind, "_fields"):
            return container_class(*results.values())
        return container_class(results.values())


def _keys_of(batch: Any) -> Iterable[object]:
    """Return the keys of a mapping, or the indices of a list or tuple."""
    if isinstance(batch, Mapping):
        return list(batch)
    return range(len(batch))


def growing(
    first: object, rows: int | None = None, padding: float = PADDING
) -> PreallocatedArray | PreallocatedTree:
    """Return a growing array or tree for batches of the form of the first, which it contains.

    Args:
        first: an array, or nested lists, tuples and mappings of arrays.
        rows: number of rows expected, None if unknown.
        padding: fills up shorter rows of the second dimension, on the right.
    """
    if _is_nested(first):
        return PreallocatedTree(first, rows, padding)
    array = PreallocatedArray(rows, padding)
    array.add(first)
    return array


def _resized(flat: np.ndarray, length: int) -> np.ndarray:
    """Return the array with that length; it is not copied if the system can move memory."""
    if length != len(flat):
        flat.resize(length, refcheck=False)
    return flat


def _require_joinable(before: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if len(shape) != len(before) or shape[1:] != before[1:]:
        raise ValueError(
            f"Predictions cannot be joined: their shapes are {('samples', *before)} and "
            f"{('samples', *shape)}. {BATCHWISE_ADVICE}"
        )


def _is_nested(value: object) -> bool:
    return isinstance(value, (list, tuple, Mapping))


def _not_an_array(batch: object) -> str:
    return (
        f"Predictions of type {type(batch).__name__} cannot be joined: expected tensors, or nested "
        "lists, tuples or dicts of tensors, alike in all batches. Leave them out with "
        f"`ignore_keys`. {BATCHWISE_ADVICE}"
    )
