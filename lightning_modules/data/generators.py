"""Capture and restore the random generators of the process and those in attributes of objects.

Generators of torch, NumPy and Python in attributes are supported, such as `self.generator` of a
sampler or a module. Nested objects are not searched.
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from ..common.safe_serialization import from_plain, to_plain
from ..common.seeding import capture_rng_state, restore_rng_state

_log = logging.getLogger(__name__)

_IN_ATTRIBUTES = "own"
"""Key of the generators in attributes in a state; transformers ignores it."""

_GLOBAL_GENERATORS = (
    torch.default_generator,
    # The functions of these two modules are methods of a hidden global generator.
    random.random.__self__,
    np.random.get_state.__self__,
)
"""The generators of the process, which `common.seeding` saves."""


class _GeneratorKind(NamedTuple):
    """A class of generators, and functions that handle its state.

    Attributes:
        type: the class.
        get_state: returns the state of a generator as plain values.
        set_state: restores such a state.
        make: creates a generator that is compatible with a state.
    """

    type: type
    get_state: Callable[[Any], Any]
    set_state: Callable[[Any, Any], None]
    make: Callable[[Any], Any]


def _get_torch_state(generator: torch.Generator) -> list[str | torch.Tensor]:
    return [str(generator.device), generator.get_state()]


def _set_torch_state(generator: torch.Generator, state: list[Any]) -> None:
    generator.set_state(state[1])


def _make_torch_generator(state: list[Any]) -> torch.Generator:
    return torch.Generator(state[0])


def _get_numpy_state(generator: np.random.Generator) -> object:
    return generator.bit_generator.state


def _set_numpy_state(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state


def _make_numpy_generator(state: dict[str, Any]) -> np.random.Generator:
    algorithm = getattr(np.random, state["bit_generator"])
    return np.random.Generator(algorithm())


def _make_numpy_random_state(state: object) -> np.random.RandomState:
    return np.random.RandomState()


def _make_python_random(state: object) -> random.Random:
    return random.Random()


_GENERATOR_KINDS = {
    "torch": _GeneratorKind(
        torch.Generator, _get_torch_state, _set_torch_state, _make_torch_generator
    ),
    "numpy": _GeneratorKind(
        np.random.Generator, _get_numpy_state, _set_numpy_state, _make_numpy_generator
    ),
    "numpy state": _GeneratorKind(
        np.random.RandomState,
        np.random.RandomState.get_state,
        np.random.RandomState.set_state,
        _make_numpy_random_state,
    ),
    "python": _GeneratorKind(
        random.Random, random.Random.getstate, random.Random.setstate, _make_python_random
    ),
}
"""The names of the kinds of generators in checkpoints."""

_KIND_OF_TYPE = {kind.type: name for name, kind in _GENERATOR_KINDS.items()}


def capture_generators(objects: Mapping[str, object], *, distributed: bool) -> dict[str, Any]:
    """Return the states of the generators of this process and of those in attributes of objects.

    Args:
        objects: objects by name that may draw random numbers in a step, such as modules of a model.
        distributed: whether several processes train; see `capture_rng_state`.

    Returns:
        plain values for `restore_generators`.
    """
    state = capture_rng_state(distributed)
    in_attributes: list[dict[str, Any]] = []
    for object_name, owner in objects.items():
        for name, generator_state in generators_of(owner):
            entry = {"object": object_name, "attribute": name}
            in_attributes.append({**entry, **generator_state})
    if in_attributes:
        state[_IN_ATTRIBUTES] = to_plain(in_attributes)
    return state


def restore_generators(
    state: Mapping[str, Any], objects: Mapping[str, object], *, distributed: bool
) -> None:
    """Restore the result of `capture_generators`, or a state written by transformers.

    If an attribute is still None, its generator is created. A generator without a counterpart is
    skipped with a warning.

    Args:
        state: the result of `capture_generators`, or the contents of a file of transformers.
        objects: the same objects, or others with the same names.
        distributed: whether several processes train; see `capture_rng_state`.
    """
    restore_rng_state(state, distributed)
    in_attributes: list[dict[str, Any]] = from_plain(state.get(_IN_ATTRIBUTES, []))
    for stored in in_attributes:
        owner = objects.get(stored["object"])
        name = stored["attribute"]
        if not restore_generator(owner, name, stored):
            warn_of_lost(f"{stored['object']}.{name}")


def generators_of(owner: object) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the generators in attributes of an object, with their kind and state."""
    attributes: dict[str, Any] = getattr(owner, "__dict__", {})
    for name, value in attributes.items():
        kind = _KIND_OF_TYPE.get(cast("type[object]", type(value)))
        # `common.seeding` saves the global generators.
        if kind is None or any(value is generator for generator in _GLOBAL_GENERATORS):
            continue
        yield name, {"kind": kind, "state": _GENERATOR_KINDS[kind].get_state(value)}


def restore_generator(owner: object, name: str, stored: Mapping[str, Any]) -> bool:
    """Restore the generator in an attribute; return whether it has a counterpart there.

    Args:
        owner: the object with the attribute.
        name: the name of the attribute.
        stored: its "kind" and "state", as `generators_of` yields them.
    """
    # An attribute may still be None if its owner creates the generator at the first draw.
    attributes: dict[str, Any] = getattr(owner, "__dict__", {})
    if name not in attributes:
        return False
    kind = _GENERATOR_KINDS[stored["kind"]]
    state = stored["state"]

    # numpy raises ValueError for the state of another algorithm, torch RuntimeError for that of
    # another device, including devices that do not exist here.
    try:
        if attributes[name] is None:
            setattr(owner, name, kind.make(state))
        generator = getattr(owner, name)
        if type(generator) is not kind.type:
            return False
        kind.set_state(generator, state)
    except (ValueError, RuntimeError):
        return False
    return True


@functools.cache
def warn_of_lost(name: str) -> None:
    """Warn, once per name, that a state cannot be restored."""
    _log.warning(
        "%s is in the checkpoint, but cannot be restored: it is missing now, or of another kind. "
        "The resumed run may draw other numbers than an uninterrupted one. Generators in "
        "attributes of dataset, samplers, collator, model, optimizer and Trainer are restored, and "
        "the `state_dict` of the first three if they have `load_state_dict`.",
        name,
    )
