"""Find, save and restore the random generators that collators and datasets own."""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

_DEEP, _MANY, _ALL = 5, 16, 1000
"""Limits of the search: depth, items of a container, and objects; beyond them lies data."""

_LIBRARIES = frozenset(["builtins", "datasets", "numpy", "pyarrow", "pandas", "PIL", "tokenizers", "sentencepiece"])
"""Packages whose objects draw from the global generators, or hide their own."""

_GLOBAL = (torch.default_generator, random.random.__self__, np.random.get_state.__self__)

Step = list[Any]
"""One step of a path between objects: ["attribute", name], ["item", key or index], ["cell", index]."""


class Found(NamedTuple):
    """A generator and its path."""

    path: list[Step]
    generator: Any


def own_states(*roots: Any) -> list[dict[str, Any]]:
    """Return the states of all generators that objects own, in plain values, without the global ones.

    Args:
        roots: collators, datasets, functions; attributes, items, partial arguments and closures are searched.
    """
    return [
        {"root": index, "path": found.path, **_state(found.generator)}
        for index, root in enumerate(roots)
        for found in _below(root, [], set())
    ]


def restore_own(states: list[dict[str, Any]] | None, *roots: Any) -> None:
    """Restore the result of `own_states`; create a generator in an attribute that is still None.

    Args:
        states: of `own_states`; generators that are gone, or of another kind, are left out.
        roots: the same objects, or others made in the same way.
    """
    known = [{str(found.path): found.generator for found in _below(root, [], set())} for root in roots if states]
    for stored in states or ():
        generator = known[stored["root"]].get(str(stored["path"]))
        if generator is None:
            generator = _made(roots[stored["root"]], stored)
        if generator is not None and _kind(generator) == stored["kind"]:
            _set(generator, stored["state"])


def drawing_parts(loader: Any) -> tuple[Any, Any]:
    """Return the parts of a loader that may own generators: collator and dataset."""
    return getattr(loader, "collate_fn", None), getattr(loader, "dataset", None)


def _below(thing: Any, path: list[Step], seen: set[int]) -> Iterator[Found]:
    if _kind(thing) is not None:
        if not any(thing is one for one in _GLOBAL) and id(thing) not in seen:
            seen.add(id(thing))
            yield Found(path, thing)
        return
    if len(path) == _DEEP or id(thing) in seen or len(seen) > _ALL:
        return
    parts = _parts(thing)
    if parts:
        seen.add(id(thing))
    for step, part in parts:
        yield from _below(part, [*path, step], seen)


def _parts(thing: Any) -> list[tuple[Step, Any]]:
    """Return the parts of an object, with the steps to them, that may hold a generator of the user."""
    if isinstance(thing, dict):
        items = list(thing.items()) if len(thing) <= _MANY else []
        return [(["item", key], value) for key, value in items if isinstance(key, (str, int))]
    if isinstance(thing, (list, tuple)):
        return [(["item", index], value) for index, value in enumerate(thing)] if len(thing) <= _MANY else []
    if isinstance(thing, functools.partial):
        return [(["attribute", name], getattr(thing, name)) for name in ("func", "args", "keywords")]
    if isinstance(thing, types.MethodType):
        return [(["attribute", "__self__"], thing.__self__)]
    if isinstance(thing, types.FunctionType):
        cells = [cell for cell in thing.__closure__ or () if _is_filled(cell)]
        return [(["cell", index], cell.cell_contents) for index, cell in enumerate(cells)]
    if isinstance(thing, (type, types.ModuleType, nn.Module, torch.Tensor)) or _is_of_library(thing):
        return []
    return [(["attribute", name], value) for name, value in getattr(thing, "__dict__", {}).items()]


def _is_of_library(thing: Any) -> bool:
    module = type(thing).__module__
    root = module.partition(".")[0]
    # Subsets and concatenations of datasets are torch's, too.
    return root in _LIBRARIES or (root == "torch" and not module.startswith("torch.utils.data"))


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - it raises
    except ValueError:
        return False
    return True


def _made(root: Any, stored: dict[str, Any]) -> Any:
    """Create a generator in an attribute that is still None, and return it."""
    *way, (how, name) = stored["path"] or [["", None]]
    holder = root
    for step in way:
        parts = {str(known): part for known, part in _parts(holder)}
        holder = parts.get(str(step))
    if how != "attribute" or holder is None or getattr(holder, name, "") is not None:
        return None
    generator = _MAKERS[stored["kind"]](stored["state"])
    setattr(holder, name, generator)
    return generator


def _kind(thing: Any) -> str | None:
    if isinstance(thing, torch.Generator):
        return "torch"
    if isinstance(thing, np.random.Generator):
        return "numpy"
    if isinstance(thing, np.random.RandomState):
        return "numpy state"
    return "python" if type(thing) is random.Random else None


def _state(generator: Any) -> dict[str, Any]:
    kind = _kind(generator)
    if kind == "torch":
        return {"kind": kind, "state": [str(generator.device), generator.get_state()]}
    if kind == "numpy":
        return {"kind": kind, "state": generator.bit_generator.state}
    return {"kind": kind, "state": generator.get_state() if kind == "numpy state" else generator.getstate()}


def _set(generator: Any, state: Any) -> None:
    kind = _kind(generator)
    if kind == "torch":
        generator.set_state(state[1])
    elif kind == "numpy":
        if generator.bit_generator.state["bit_generator"] == state["bit_generator"]:
            generator.bit_generator.state = state
    elif kind == "numpy state":
        generator.set_state(state)
    else:
        generator.setstate(state)


_MAKERS = {
    "torch": lambda state: torch.Generator(state[0]),
    "numpy": lambda state: np.random.Generator(getattr(np.random, state["bit_generator"])()),
    "numpy state": lambda state: np.random.RandomState(),
    "python": lambda state: random.Random(),
}
