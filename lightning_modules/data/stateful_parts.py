"""States of the parts of a loader: dataset, samplers and collator.

Checkpoints hold them. Of each part these are the states of the generators in its own attributes,
such as `generator` of torch's samplers and transformers' collators, and its `state_dict` if it has
`load_state_dict` too. Nothing inside of other attributes is looked at.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from ..common.safe_serialization import UnsafeValueError, to_plain
from ..common.seeding import capture_host_rng, restore_host_rng
from .batch_samplers import ShardedBatchSampler
from .generators import generators_of, restore_generator, warn_of_lost
from .samplers import SharedOrderSampler

_log = logging.getLogger(__name__)

AttributePath = tuple[str | int, ...]
"""Names of the attributes, and indices in lists, that lead from a part to an object."""

_WRAPPING_ATTRIBUTES = ("data_collator", "dataset", "datasets")
"""Attributes that hold what a part wraps, as `dataset` of `torch.utils.data.Subset`."""

_LONGEST_PATH = 8
"""Longest path to a wrapped part; longer ones are those of objects that refer to each other."""

_SAVED_ELSEWHERE = (DataLoader, DistributedSampler, IterableDataset, nn.Module)
"""Classes whose `state_dict` is a position, which loaders restore in their own way, or weights."""


def drawing_parts(loader: Any) -> tuple[Any, Any]:
    """Return the parts that draw while a batch is made: collator and dataset."""
    return getattr(loader, "collate_fn", None), getattr(loader, "dataset", None)


def ordering_parts(loader: Any) -> tuple[Any, Any, Any]:
    """Return the parts that draw the order of an epoch: loader, sampler and batch sampler.

    These are the samplers of the user's script, which ones of this library may wrap.
    """
    batch_sampler = getattr(loader, "batch_sampler", None)
    if isinstance(batch_sampler, ShardedBatchSampler):
        batch_sampler = batch_sampler.batch_sampler
    sampler = getattr(batch_sampler, "sampler", None)
    if sampler is None:
        sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, SharedOrderSampler):
        sampler = sampler.sampler
    return loader, sampler, batch_sampler


class StateOwner(NamedTuple):
    """An object that may have states: a part of a loader, or one that it wraps.

    Attributes:
        root: index of the part.
        path: the attributes that lead from the part to the object.
        value: the object.
        has_state_dict: it has a `state_dict` to save.
    """

    root: int
    path: AttributePath
    value: Any
    has_state_dict: bool


def state_owners(*parts: Any) -> list[StateOwner]:
    """Return parts of a loader, and those that they wrap; None has no state."""
    owners: list[StateOwner] = []
    for root, part in enumerate(parts):
        for path, value in _walk_wrapped(part):
            owners.append(StateOwner(root, path, value, _has_state_dict(value)))
    return owners


def part_states(*parts: Any) -> list[dict[str, Any]]:
    """Return the states of parts, and of those that they wrap; see `states_of`."""
    return states_of(state_owners(*parts))


def states_of(owners: list[StateOwner]) -> list[dict[str, Any]]:
    """Return the states of objects in plain values. Loaders ask for them before each batch.

    Returns:
        for each state the index of the part ("root"), the names of the attributes from there
        ("path"), "kind", "state".
    """
    states: list[dict[str, Any]] = []
    for root, path, owner, has_state_dict in owners:
        for name, generator_state in generators_of(owner):
            states.append({"root": root, "path": [*path, name], **generator_state})

        if has_state_dict:
            state = _state_dict_of(owner)
            if state is not None:
                path_of_state = [*path, "state_dict"]
                states.append(
                    {"root": root, "path": path_of_state, "kind": "state_dict", "state": state}
                )
    return states


def restore_parts(states: list[dict[str, Any]] | None, *parts: Any) -> None:
    """Restore the result of `part_states`; a generator that is still None is made.

    Args:
        states: of `part_states`, also of versions that searched for generators in nested objects;
            a state that has no counterpart is skipped with a warning.
        parts: the same ones, or others made in the same way.
    """
    for stored in states or ():
        path: list[Any] = []
        for step in cast("list[Any]", stored["path"]):
            # Earlier versions wrote a pair for each attribute.
            if isinstance(step, list):
                _, step = cast("list[Any]", step)
            path.append(step)

        part = parts[stored["root"]]
        owners = dict(_walk_wrapped(part))
        owner = owners.get(tuple(path[:-1]))
        if not _restore(owner, path[-1], stored):
            names = [type(part).__name__, *map(str, path)]
            warn_of_lost(".".join(names))


class RandomSources:
    """All that draws random numbers while batches are made.

    These are the global CPU generators, and the generators of parts of loaders.

    Args:
        parts: such as `drawing_parts`.
    """

    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        self._owners = state_owners(*parts)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the generators, and those of the parts as "own"."""
        return {**capture_host_rng(), "own": states_of(self._owners)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        restore_host_rng(state)
        restore_parts(state.get("own"), *self.parts)


def _walk_wrapped(part: Any, path: AttributePath = ()) -> Iterator[tuple[AttributePath, Any]]:
    """Yield a part and those that it wraps, each after the attributes that lead to it."""
    yield path, part
    # The parts of a loader are saved for themselves.
    if isinstance(part, DataLoader) or len(path) >= _LONGEST_PATH:
        return

    attributes: dict[str, Any] = getattr(part, "__dict__", {})
    for name in _WRAPPING_ATTRIBUTES:
        wrapped = attributes.get(name)
        if isinstance(wrapped, list):
            for index, item in enumerate(cast("list[Any]", wrapped)):
                yield from _walk_wrapped(item, (*path, name, index))
        elif wrapped is not None:
            yield from _walk_wrapped(wrapped, (*path, name))


def _has_state_dict(owner: Any) -> bool:
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
        if not _has_state_dict(owner):
            return False
        owner.load_state_dict(copy.deepcopy(stored["state"]))
        return True

    return restore_generator(owner, name, stored)


@functools.cache
def _warn_of_unsaved(name: str, reason: str) -> None:
    _log.warning(
        "The state_dict of %s is not saved because a checkpoint cannot hold it: %s. Return "
        "tensors, arrays, numbers, strings, and lists and dicts of them.",
        name,
        reason,
    )
