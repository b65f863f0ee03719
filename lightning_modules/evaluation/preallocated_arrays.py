"""Concatenate batches into arrays that grow in place, so that no second copy is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

PADDING = -100
"""Padding value of shorter rows, on the right of the second dimension."""
GROWTH = 1.125
"""Growth factor of a full array. The system remaps its memory instead of copying it."""
CHUNK = 2**20
"""Maximum number of bytes moved at a time when rows are extended."""
BATCHWISE_ADVICE = "Set `eval_do_concat_batches=False` to get them batch by batch."


class PreallocatedArray:
    """Concatenates arrays batch by batch in a single buffer, which is never copied.

    The result equals that of transformers' `nested_concat`. Rows are stored contiguously, with the
    length of the longest batch so far. If a longer batch is added, earlier rows keep their length
    until `result` extends them, last rows first. Each value is therefore written at most twice, and
    the buffer is not larger than the result, except for the reserve (`GROWTH`) while it grows.

    After a batch of two rows of length 2 and one of two rows of length 3, the buffer holds these
    values, where equal letters are a row:

        a a b b c c c d d d

    `result` moves row b before row a, and pads both:

        a a - b b - c c c d d d

    Args:
        first: the first batch, which is also written.
        rows: expected number of rows, or None. There may be more or fewer.
    """

    def __init__(self, first: object, rows: int | None = None) -> None:
        batch = _as_rows(first)
        self._shape = batch.shape[1:]
        """Shape of the longest row so far."""
        count = max(rows or 0, len(batch)) * math.prod(self._shape)
        self._flat = np.empty(count, batch.dtype)
        """The buffer, a one-dimensional array."""
        self._rows = 0
        """Number of rows written so far."""
        self._used = 0
        """Number of values written so far."""
        self._pieces = [_Piece(0, 0, self._shape)]
        """Runs of rows with the same length. The last one has rows of `_shape`."""
        self.add(batch)

    def add(self, batch: object) -> None:
        """Write a batch of shape (samples,) or (samples, length, ...).

        The length may differ from batch to batch.

        Raises:
            TypeError: the batch is not an array.
            ValueError: its shape cannot be joined with those of earlier batches.
        """
        rows = _as_rows(batch)

        # Most batches have the same shape and dtype as the previous one.
        if rows.shape[1:] != self._shape or rows.dtype != self._flat.dtype:
            self._make_ready_for(rows)

        # Append rows of the longest length so far, growing the buffer if needed.
        shape = (len(rows), *self._shape)
        used = self._used + math.prod(shape)
        if used > len(self._flat):
            length = max(used, int(GROWTH * len(self._flat)))
            self._flat = _resized(self._flat, length)
        self._write(self._flat[self._used : used].reshape(shape), rows)
        self._rows += len(rows)
        self._used = used

    def result(self) -> np.ndarray:
        """Return all rows as one array. No batch can be added afterwards."""
        shape = (self._rows, *self._shape)

        # Extend shorter rows to the longest length.
        flat = _resized(self._flat, max(self._used, math.prod(shape)))
        if len(self._pieces) > 1:
            self._spread_out(flat)

        # Release the reserve.
        return _resized(flat, math.prod(shape)).reshape(shape)

    def _make_ready_for(self, batch: np.ndarray) -> None:
        """Prepare the buffer for a batch of another shape or dtype.

        Another dtype converts the earlier rows. A longer row starts a new piece.
        """
        shape = batch.shape[1:]
        _require_joinable(self._shape, shape)
        dtype = np.promote_types(self._flat.dtype, batch.dtype)
        if shape == self._shape and dtype != self._flat.dtype:
            self._flat = self._flat[: self._used].astype(dtype)
        elif shape != self._shape and shape[0] > self._shape[0]:
            self._shape = shape
            self._pieces.append(_Piece(self._rows, self._used, shape))

    def _spread_out(self, flat: np.ndarray) -> None:
        """Extend all rows to the length of the longest one, in place, from the last to the first.

        In this order, no row overwrites another one that has not been moved yet.
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

                # Source and target may overlap. NumPy detects that and copies these rows.
                source = flat[start:stop].reshape(last - first, *piece.shape)
                target = flat[first * values_in_row : last * values_in_row]
                self._write(target.reshape(last - first, *self._shape), source)
            end = piece.row

    def _write(self, rows: np.ndarray, batch: np.ndarray) -> None:
        """Write a batch to rows, and pad rows that are longer."""
        if batch.shape == rows.shape:
            rows[...] = batch
            return

        # Use unsafe casting, because NumPy would otherwise reject -100 for bools and unsigned
        # integers.
        width = batch.shape[1]
        rows[:, :width] = batch
        np.copyto(rows[:, width:], PADDING, casting="unsafe")


class _Piece(NamedTuple):
    """Run of rows with the same length."""

    row: int
    """Index of the first row."""
    start: int
    """Index of its first value in the buffer."""
    shape: tuple[int, ...]
    """Shape of each row."""


class PreallocatedTree:
    """Concatenates nested lists, tuples, named tuples and mappings of arrays batch by batch.

    Args:
        first: the first batch, which is written. The others must have its structure.
        rows: expected number of rows; None if unknown.
    """

    def __init__(self, first: Any, rows: int | None = None) -> None:
        self.container_type: type[Any] = type(first)
        self.parts: dict[Any, PreallocatedArray | PreallocatedTree] = {}
        for key in _keys_of(first):
            self.parts[key] = preallocate(first[key], rows)

    def add(self, batch: Any) -> None:
        """Write a batch.

        Raises:
            TypeError: it has another structure than the first batch.
        """
        keys = set(_keys_of(batch)) if _is_nested(batch) else None
        if type(batch) is not self.container_type or keys != set(self.parts):
            raise TypeError(
                f"Predictions cannot be joined: {self.container_type.__name__} of "
                f"{set(self.parts)} and {type(batch).__name__} of {keys}. {BATCHWISE_ADVICE}"
            )
        for key, part in self.parts.items():
            part.add(batch[key])

    def result(self) -> Any:
        """Return the structure of the first batch, with arrays over all samples."""
        results = {key: part.result() for key, part in self.parts.items()}
        make_container: Callable[..., Any] = self.container_type
        if issubclass(self.container_type, Mapping):
            return make_container(results)

        # A named tuple expects separate arguments, a list or a tuple an iterable.
        if hasattr(self.container_type, "_fields"):
            return make_container(*results.values())
        return make_container(results.values())


def _keys_of(batch: Any) -> Iterable[object]:
    """Return the keys of a mapping, or the indices of a list or tuple."""
    if isinstance(batch, Mapping):
        return list(batch)
    return range(len(batch))


def preallocate(first: object, rows: int | None = None) -> PreallocatedArray | PreallocatedTree:
    """Return a growing array or tree that contains the first batch.

    Args:
        first: an array, or nested lists, tuples and mappings of arrays. Later batches must have the
            same structure.
        rows: expected number of rows; None if unknown.
    """
    if _is_nested(first):
        return PreallocatedTree(first, rows)
    return PreallocatedArray(first, rows)


def _resized(flat: np.ndarray, length: int) -> np.ndarray:
    """Resize an array. It is not copied if the system can remap memory."""
    if length != len(flat):
        flat.resize(length, refcheck=False)
    return flat


def _require_joinable(before: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raise if the shapes of rows differ in more than the first dimension."""
    if len(shape) != len(before) or shape[1:] != before[1:]:
        raise ValueError(
            f"Predictions cannot be joined: their shapes are {('samples', *before)} and "
            f"{('samples', *shape)}. {BATCHWISE_ADVICE}"
        )


def _is_nested(value: object) -> bool:
    """Return whether a batch contains other batches."""
    return isinstance(value, (list, tuple, Mapping))


def _as_rows(batch: object) -> np.ndarray:
    """Return an array; a number becomes a row.

    Raises:
        TypeError: the batch is not an array.
    """
    if not isinstance(batch, np.ndarray):
        raise TypeError(
            f"Predictions of type {type(batch).__name__} cannot be joined: expected tensors, or "
            "nested lists, tuples or dicts of tensors, alike in all batches. Leave them out with "
            f"`ignore_keys`. {BATCHWISE_ADVICE}"
        )
    if batch.ndim == 0:
        return batch.reshape(1)
    return batch
