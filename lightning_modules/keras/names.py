"""Names for the variables of a Keras model that do not depend on how many models a process made
before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_COUNTED = re.compile(r"(.+?)_\d+$")


def stable_names(paths: Iterable[str]) -> list[str]:
    """Number the layers of each parent anew, in the order in which their variables come.

    Keras calls the second model's first layer `sequential_1/dense_2`, the first one's
    `sequential/dense`: both become `sequential/dense`. Two variables of one path, as two layers of
    one name have, are told apart by a number.

    Args:
        paths: of the variables, with "/" between their parts.

    Returns:
        a name for each, all of them different, without dots, which torch does not allow.
    """
    layers = _Layers()
    taken: dict[str, int] = {}
    names = []
    for path in paths:
        *parents, last = path.replace(".", "_").split("/")
        name = "/".join([*layers.renamed(tuple(parents)), last])
        again = taken[name] = taken.get(name, -1) + 1
        names.append(f"{name}#{again}" if again else name)
    return names


class _Layers:
    """The layers that were named so far."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], str] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def renamed(self, path: tuple[str, ...]) -> list[str]:
        """Return the names of a layer and of all that it is in."""
        parts: list[str] = []
        for depth, part in enumerate(path, start=1):
            if path[:depth] not in self._names:
                self._names[path[:depth]] = self._next(
                    (*parts, found[1] if (found := _COUNTED.match(part)) else part)
                )
            parts.append(self._names[path[:depth]])
        return parts

    def _next(self, kind: tuple[str, ...]) -> str:
        count = self._counts[kind] = self._counts.get(kind, -1) + 1
        return f"{kind[-1]}_{count}" if count else kind[-1]
