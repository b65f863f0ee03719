"""Lengths of samples that are found out once for each dataset."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

_KEPT_ALIVE = 4


class _Entry(NamedTuple):
    samples: int
    lengths: Any


class LengthCache:
    """What was measured, by dataset: the object itself, and how many samples it had then.

    A dataset that nobody else holds any more is forgotten. Those that Python cannot watch, such as lists, are held
    here, the last few of them.
    """

    def __init__(self) -> None:
        self._watched: dict[tuple[int, Any], tuple[weakref.ref[Any], _Entry]] = {}
        self._held: OrderedDict[tuple[int, Any], tuple[Any, _Entry]] = OrderedDict()

    def get(self, dataset: Any, key: Any, measure: Callable[[], Any]) -> Any:
        """The lengths of a dataset, measured if they are not known yet.

        Args:
            dataset: has a length.
            key: what else the lengths depend on, such as the name of a column.
            measure: finds them out.
        """
        name = (id(dataset), key)
        found = self._watched.get(name) or self._held.get(name)
        if found is not None and found[1].samples == len(dataset):
            return found[1].lengths
        entry = _Entry(len(dataset), measure())
        try:
            self._watched[name] = weakref.ref(dataset, lambda _: self._watched.pop(name, None)), entry
        except TypeError:
            self._hold(name, dataset, entry)
        return entry.lengths

    def _hold(self, name: tuple[int, Any], dataset: Any, entry: _Entry) -> None:
        self._held[name] = dataset, entry
        self._held.move_to_end(name)
        while len(self._held) > _KEPT_ALIVE:
            self._held.popitem(last=False)
