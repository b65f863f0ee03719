"""States of the parts of a loader that draw random numbers: dataset, collator and samplers, for
checkpoints.

Of each part these are the states of the generators in its own attributes, such as `generator` of
torch's samplers and transformers' collators, and its `state_dict` if it has `load_state_dict` too.
Nothing inside of other attributes is looked at.
"""

from __future__ import annotations

import copy
import functools
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from ..common.safe_serialization import UnsafeValueError, to_plain
from ..common.seeding import capture_host_rng, restore_host_rng
from .batch_samplers import ShardedBatchSampler
from .samplers import SharedOrderSampler

_log = logging.getLogger(__name__)

_WRAPPED = ("data_collator", "dataset", "datasets")
"""Attributes that hold the collator or the datasets that a part wraps, as in
`torch.utils.data.Subset`.
"""

_LONGEST_PATH = 8
"""Names from a part to one that it wraps; longer paths are those of objects that refer to each
other.
"""

_SAVED_ELSEWHERE = (DataLoader, DistributedSampler, IterableDataset, nn.Module)
"""Classes whose `state_dict` is a position, which loaders restore in their own way, or weights."""

_GLOBAL_GENERATORS = (
    torch.default_generator,
    random.random.__self__,
    np.random.get_state.__self__,
)
"""The generators of the process, which `common.seeding` saves."""


class _Kind(NamedTuple):
    """A class of generators, and how its state is read, restored, and given to a new one."""

    type: type
    get: Callable[[Any], Any]
    restore: Callable[[Any, Any], None]
    make: Callable[[Any], Any]


_KINDS = {
    "torch": _Kind(
        torch.Generator,
        lambda generator: [str(generator.device), generator.get_state()],
        lambda generator, state: generator.set_state(state[1]),
        lambda state: torch.Generator(state[0]),
    ),
    "numpy": _Kind(
        np.random.Generator,
        lambda generator: generator.bit_generator.state,
        lambda generator, state: setattr(generator.bit_generator, "state", state),
        lambda state: np.random.Generator(getattr(np.random, state["bit_generator"])()),
    ),
    "numpy state": _Kind(
        np.random.RandomState,
        np.random.RandomState.get_state,
        np.random.RandomState.set_state,
        lambda state: np.random.RandomState(),
    ),
    "python": _Kind(
        random.Random,
        random.Random.getstate,
        random.Random.setstate,
        lambda state: random.Random(),
    ),
}
_KIND_OF_TYPE = {kind.type: name for name, kind in _KINDS.items()}


def drawing_parts(loader: Any) -> tuple[Any, Any]:
    """Return the parts that draw while a batch is made: collator and dataset."""
    return getattr(loader, "collate_fn", None), getattr(loader, "dataset", None)


def ordering_parts(loader: Any) -> tuple[Any, Any, Any]:
    """Return the parts that draw the order of an epoch: the loader itself, its sampler and its
    batch sampler.

    Those of a script, which samplers of this library may be around.
    """
    batch_sampler = getattr(loader, "batch_sampler", None)
    if isinstance(batch_sampler, ShardedBatchSampler):
        batch_sampler = batch_sampler.given
    sampler = getattr(batch_sampler, "sampler", None)
    if sampler is None:
        sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, SharedOrderSampler):
        sampler = sampler.sampler
    return loader, sampler, batch_sampler


class Owner(NamedTuple):
    """An object that may have states: a part of a loader, or one that it wraps.

    Attributes:
        root: index of the part.
        path: names of the attributes that lead from the part to the object.
        value: the object.
        has_state: it has a `state_dict` to save.
    """

    root: int
    path: tuple[str | int, ...]
    value: Any
    has_state: bool


def owners_of(*parts: Any) -> list[Owner]:
    """Return parts of a loader, and those that they wrap; None has no state."""
    owners = []
    for root, part in enumerate(parts):
        for path, value in _with_wrapped(part):
            owners.append(Owner(root, path, value, _has_state(value)))
    return owners


def part_states(*parts: Any) -> list[dict[str, Any]]:
    """Return the states of parts, and of those that they wrap: `owner_states` of `owners_of`."""
    return owner_states(owners_of(*parts))


def owner_states(owners: list[Owner]) -> list[dict[str, Any]]:
    """Return the states of objects in plain values. Loaders ask for them before each batch.

    Returns:
        for each state the index of the part ("root"), the names of the attributes from there
        ("path"), "kind", "state".
    """
    states: list[dict[str, Any]] = []
    for root, path, owner, has_state in owners:
        for name, value in getattr(owner, "__dict__", {}).items():
            kind = _KIND_OF_TYPE.get(type(value))
            if kind is None or any(value is generator for generator in _GLOBAL_GENERATORS):
                continue
            state = _KINDS[kind].get(value)
            states.append({"root": root, "path": [*path, name], "kind": kind, "state": state})

        state = _state_dict_of(owner) if has_state else None
        if state is not None:
            states.append(
                {"root": root, "path": [*path, "state_dict"], "kind": "state_dict", "state": state}
            )
    return states


def restore_parts(states: list[dict[str, Any]] | None, *parts: Any) -> None:
    """Restore the result of `part_states`; a generator that is still None is made.

    Args:
        states: of `part_states`, also of versions that searched for generators in nested objects;
            what has no counterpart is left out with a warning.
        parts: the same ones, or others made in the same way.
    """
    for stored in states or ():
        path = []
        for step in stored["path"]:
            # Earlier versions wrote a pair for each attribute.
            path.append(step[1] if isinstance(step, list) else step)

        part = parts[stored["root"]]
        owner = dict(_with_wrapped(part)).get(tuple(path[:-1]))
        if not _restore(owner, path[-1], stored):
            _warn_of_lost(".".join(map(str, [type(part).__name__, *path])))


class RandomSources:
    """All that draws random numbers while batches are made: the global CPU generators, and parts of
    loaders.

    Args:
        parts: such as `drawing_parts`.
    """

    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        self._owners = owners_of(*parts)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the generators, and those of the parts as "own"."""
        return {**capture_host_rng(), "own": owner_states(self._owners)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        restore_host_rng(state)
        restore_parts(state.get("own"), *self.parts)


def _with_wrapped(
    part: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield a part and those that it wraps, each after the names of the attributes that lead to
    it.
    """
    yield path, part
    # The parts of a loader are saved for themselves.
    if isinstance(part, DataLoader) or len(path) >= _LONGEST_PATH:
        return

    attributes = getattr(part, "__dict__", {})
    for name in _WRAPPED:
        wrapped = attributes.get(name)
        if isinstance(wrapped, list):
            for index, item in enumerate(wrapped):
                yield from _with_wrapped(item, (*path, name, index))
        elif wrapped is not None:
            yield from _with_wrapped(wrapped, (*path, name))


def _has_state(owner: Any) -> bool:
    has_both = hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict")
    return has_both and not isinstance(owner, _SAVED_ELSEWHERE)


def _state_dict_of(owner: Any) -> dict[str, Any] | None:
    """Return a copy of the `state_dict`; None for one that a checkpoint cannot hold."""
    state = owner.state_dict()
    try:
        to_plain(state)
    except UnsafeValueError as error:
        _warn_of_unsaved(type(owner).__name__, str(error))
        return None
    return copy.deepcopy(state)


def _restore(owner: Any, name: str, stored: dict[str, Any]) -> bool:
    """Restore one state, if its owner still has a counterpart for it; return whether it has."""
    if stored["kind"] == "state_dict":
        if not _has_state(owner):
            return False
        owner.load_state_dict(copy.deepcopy(stored["state"]))
        return True

    attributes = getattr(owner, "__dict__", {})
    if name not in attributes:
        return False
    kind = _KINDS[stored["kind"]]
    if attributes[name] is None:
        setattr(owner, name, kind.make(stored["state"]))
    generator = getattr(owner, name)
    if type(generator) is not kind.type:
        return False
    try:
        kind.restore(generator, stored["state"])
    except ValueError:  # of another algorithm
        return False
    return True


@functools.cache
def _warn_of_lost(name: str) -> None:
    _log.warning(
        "%s is in the checkpoint, but cannot be restored: it is missing now, or of another kind. "
        "It may draw other numbers than without the interruption. Restored are generators in "
        "attributes, and `state_dict` with `load_state_dict`, of dataset, samplers and collator.",
        name,
    )


@functools.cache
def _warn_of_unsaved(name: str, reason: str) -> None:
    _log.warning(
        "The state_dict of %s is not saved, as it holds what a checkpoint cannot: %s. Return "
        "tensors, arrays, numbers, strings, and lists and dicts of them.",
        name,
        reason,
    )
