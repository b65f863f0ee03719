"""Names for the variables of a Keras model that are the same in every process.

Keras's own names contain the number of models that the process has created.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_COUNTED = re.compile(r"(.+?)_\d+$")


def stable_names(paths: Iterable[str]) -> list[str]:
    """Number the layers of each parent from 0, in the order of their variables.

    Keras may name the first layer of the first model `sequential/dense`, and that of the second
    model `sequential_1/dense_2`; both become `sequential/dense`. Variables of two layers with the
    same name have the same path; a number is added to the second one.

    Args:
        paths: the paths of the variables, with "/" between their parts.

    Returns:
        A different name for each variable, without dots, which torch does not allow.
    """
    layers = _LayerNames()
    counts: Counter[str] = Counter()
    names: list[str] = []
    for path in paths:
        *parents, variable = path.replace(".", "_").split("/")
        name = "/".join([*layers.rename(tuple(parents)), variable])
        earlier = counts[name]
        counts[name] += 1
        if earlier:
            name = f"{name}#{earlier}"
        names.append(name)
    return names


class _LayerNames:
    """Assigns new names to layers, always the same one for the same path."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], str] = {}
        self._counts: Counter[tuple[str, ...]] = Counter()

    def rename(self, path: tuple[str, ...]) -> list[str]:
        """Return the new names of a layer and of the layers that contain it."""
        names: list[str] = []
        for depth, keras_name in enumerate(path, start=1):
            layer_path = path[:depth]
            if layer_path not in self._names:
                base_name = _COUNTED.sub(r"\1", keras_name)
                self._names[layer_path] = self._number((*names, base_name))
            names.append(self._names[layer_path])
        return names

    def _number(self, path: tuple[str, ...]) -> str:
        """Return the last name of a path, with a number if the parent has used it before."""
        earlier = self._counts[path]
        self._counts[path] += 1
        if earlier:
            return f"{path[-1]}_{earlier}"
        return path[-1]
