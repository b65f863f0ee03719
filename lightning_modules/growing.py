"""Arrays that grow batch by batch in one place, so that joining many of them takes no second copy of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

PADDING = -100
GROWTH = 1.125  # what a growing array may be too large by; the memory is moved by the system, not copied
APART = "Set `eval_do_concat_batches=False` to get them batch by batch."


class GrowingArray:
    """As `nested_concat` over arrays, but each value is written once, to where it stays.

    A wider batch begins a new array, in which room for the rows before it is left; they move there at the end. Memory
    that has not been written to is none, so the most that is ever used is what the result takes.

    Args:
        rows: how many rows are expected; None if that is unknown. More and fewer are fine.
        padding: fills up shorter rows of the second dimension, on the right.
    """

    def __init__(self, rows: int | None = None, padding: float = PADDING) -> None:
        self.expected = rows or 0
        self.padding = padding
        self._rows = 0
        self._array: np.ndarray | None = None
        self._narrower: list[tuple[int, np.ndarray]] = []
        """First row, and an array whose rows from there on are not yet in `_array`."""

    def add(self, batch: Any) -> None:
        """Write a batch: shape (samples,) or (samples, length, ...); the length may differ from batch to batch.

        Raises:
            TypeError: it is no array, or an array where structures were before.
            ValueError: its shape cannot be joined with those before it.
        """
        if not isinstance(batch, np.ndarray):
            raise TypeError(_not_an_array(batch))
        batch = np.atleast_1d(batch)
        array = self._room_for(batch)
        rows = slice(self._rows, self._rows + len(batch))
        self._write(array[rows], batch)
        self._rows = rows.stop

    def result(self) -> np.ndarray:
        """All rows, handed over: the next batch begins a new array."""
        array, rows = self._array, self._rows
        assert array is not None, "a growing array begins with a batch"
        while self._narrower:
            first, narrower = self._narrower.pop()
            self._write(array[first : len(narrower)], narrower[first:])
            del narrower  # before the next one is copied
        self._array, self._rows = None, 0
        return _resized(array, rows)

    def _room_for(self, batch: np.ndarray) -> np.ndarray:
        array, needed = self._array, self._rows + len(batch)
        if array is None:
            self._array = _new(max(self.expected, needed), needed, batch.shape[1:], batch.dtype)
            return self._array
        _require_joinable(array.shape, batch.shape)
        rest, dtype = array.shape[1:], array.dtype
        if batch.shape[1:] == rest:
            dtype = np.promote_types(dtype, batch.dtype)
        elif batch.shape[1] > array.shape[1]:
            rest = batch.shape[1:]
        if (rest, dtype) != (array.shape[1:], array.dtype):
            self._put_aside(array)
            array = _new(max(len(array), needed), needed, rest, dtype)
        elif needed > len(array):
            array = _resized(array, max(needed, int(GROWTH * len(array))))
        self._array = array
        return array

    def _put_aside(self, array: np.ndarray) -> None:
        first = len(self._narrower[-1][1]) if self._narrower else 0
        self._narrower.append((first, _resized(array, self._rows)))

    def _write(self, rows: np.ndarray, batch: np.ndarray) -> None:
        if rows.ndim == 1 or batch.shape[1] == rows.shape[1]:
            rows[...] = batch
            return
        width = batch.shape[1]
        rows[:, :width] = batch
        np.copyto(rows[:, width:], self.padding, casting="unsafe")


class GrowingTree:
    """As `nested_concat` over nested lists, tuples (named ones too) and mappings of arrays.

    Args:
        first: the first batch, whose structure the others must have; it is written too.
        rows: how many rows are expected.
        padding: see `GrowingArray`.
    """

    def __init__(self, first: Any, rows: int | None = None, padding: float = PADDING) -> None:
        self.kind = type(first)
        keys = list(first) if isinstance(first, Mapping) else range(len(first))
        self.parts = {key: growing(first[key], rows, padding) for key in keys}

    def add(self, batch: Any) -> None:
        """Write a batch.

        Raises:
            TypeError: its structure is not that of the first one.
        """
        keys = (set(batch) if isinstance(batch, Mapping) else set(range(len(batch)))) if _is_nested(batch) else None
        if type(batch) is not self.kind or keys != set(self.parts):
            raise TypeError(
                f"Predictions of a batch cannot be joined with those before it: it has {_described(batch)}, the first "
                f"one a {self.kind.__name__} of {_listed(self.parts)}. {APART}"
            )
        for key, part in self.parts.items():
            part.add(batch[key])

    def result(self) -> Any:
        """The structure of the first batch, with arrays over all samples."""
        results = {key: part.result() for key, part in self.parts.items()}
        if issubclass(self.kind, Mapping):
            return self.kind(results)  # type: ignore[call-arg]
        if hasattr(self.kind, "_fields"):
            return self.kind(*results.values())
        return self.kind(results.values())


def growing(first: Any, rows: int | None = None, padding: float = PADDING) -> GrowingArray | GrowingTree:
    """What all batches are written to that are like the first, which is written already.

    Args:
        first: an array, or nested lists, tuples and mappings of arrays.
        rows: how many rows are expected, None if that is unknown.
        padding: fills up shorter rows of the second dimension, on the right.
    """
    if _is_nested(first):
        return GrowingTree(first, rows, padding)
    array = GrowingArray(rows, padding)
    array.add(first)
    return array


def _new(rows: int, needed: int, rest: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    try:
        return np.empty((rows, *rest), dtype)
    except MemoryError:  # what was expected need not come
        return np.empty((needed, *rest), dtype)


def _resized(array: np.ndarray, rows: int) -> np.ndarray:
    """The array with so many rows; a larger one is not copied either where the system can move memory."""
    if rows != len(array):
        array.resize((rows, *array.shape[1:]), refcheck=False)
    return array


def _require_joinable(before: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if len(shape) != len(before) or shape[2:] != before[2:]:
        raise ValueError(
            f"Predictions of shape {shape} cannot be joined with those before, of shape {('...', *before[1:])}: only "
            f"the first two dimensions may differ. {APART}"
        )


def _is_nested(value: Any) -> bool:
    return isinstance(value, (list, tuple, Mapping))


def _described(batch: Any) -> str:
    parts = f" of {_listed(batch)}" if _is_nested(batch) else ""
    return f"a {type(batch).__name__}{parts}"


def _listed(parts: Any) -> str:
    named = isinstance(parts, Mapping) and not all(isinstance(key, int) for key in parts)
    return ", ".join(map(str, parts)) if named else str(len(parts))


def _not_an_array(batch: Any) -> str:
    what = _described(batch) if _is_nested(batch) else f"type {type(batch).__name__}"
    return (
        f"Predictions of {what} cannot be joined: expected tensors, or nested lists, tuples or dicts of tensors, alike "
        f"in all batches. Leave them out with `ignore_keys`. {APART}"
    )
