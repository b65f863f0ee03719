"""States of the parts of a loader: dataset, samplers and collator.

Checkpoints hold them. The state of a part consists of the generators in its own attributes, such as
`generator` of torch's samplers and transformers' collators, and of its `state_dict` if it has
`load_state_dict` too. Objects nested in other attributes are not searched.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler

from ..common.safe_serialization import UnsafeValueError, to_plain
from ..common.seeding import capture_host_rng, restore_host_rng
from .batch_samplers import ShardedBatchSampler
from .generators import generators_of, restore_generator, warn_of_lost
from .samplers import SharedOrderSampler

_log = logging.getLogger(__name__)

AttributePath = tuple[str | int, ...]
"""Names of the attributes, and indices in what they hold, from a part to an object."""

_LONGEST_PATH = 8
"""Longest path to a wrapped part. Objects that refer to each other would have endless paths."""

_SAVED_ELSEWHERE = (DataLoader, DistributedSampler, IterableDataset, nn.Module)
"""Classes whose `state_dict` is a position, which loaders restore in their own way, or weights."""


def drawing_parts(loader: object) -> tuple[Any, Any]:
    """Return the parts that draw while a batch is made: collator and dataset."""
    return getattr(loader, "collate_fn", None), getattr(loader, "dataset", None)


class LoaderParts(NamedTuple):
    """The parts of a loader that draw random numbers; None for a part that it does not have.

    The first two are the `drawing_parts`, the others draw an order. `part_states` numbers the parts
    in this order.
    """

    collate_fn: Any
    dataset: Any
    loader: Any
    sampler: Any
    batch_sampler: Any


def loader_parts(loader: object) -> LoaderParts:
    """Return the parts of a loader.

    Its samplers are those of the user's script; wrappers of this library are removed.
    """
    # The wrappers of this library draw nothing themselves: the parts are those inside of them.
    batch_sampler = getattr(loader, "batch_sampler", None)
    if isinstance(batch_sampler, ShardedBatchSampler):
        batch_sampler = batch_sampler.batch_sampler
    sampler = getattr(batch_sampler, "sampler", None)
    if sampler is None:
        sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, SharedOrderSampler):
        sampler = sampler.sampler
    return LoaderParts(*drawing_parts(loader), loader, sampler, batch_sampler)


def has_new_generator(sampler: object, states: list[dict[str, Any]]) -> bool:
    """Return whether a `RandomSampler` has a generator now, and had none when states were saved.

    Args:
        sampler: the sampler of the loader.
        states: the states of the `LoaderParts`.
    """
    if not isinstance(sampler, RandomSampler):
        return False
    if getattr(sampler, "generator", None) is None:
        return False
    root_of_sampler = LoaderParts._fields.index("sampler")
    paths_of_sampler = [stored["path"] for stored in states if stored["root"] == root_of_sampler]
    return ["generator"] not in paths_of_sampler


def part_states(*parts: Any) -> list[dict[str, Any]]:
    """Return the states of parts, and of those that they wrap, in plain values.

    Loaders ask for them before each batch.

    Args:
        parts: parts of a loader; None has no state.

    Returns:
        for each state the index of the part ("root"), the names of the attributes from there
        ("path"), "kind", "state".
    """
    states: list[dict[str, Any]] = []
    for root, part in enumerate(parts):
        for path, owner in walk_wrapped(part):
            for name, generator_state in generators_of(owner):
                states.append({"root": root, "path": [*path, name], **generator_state})
            if not _has_state_dict(owner):
                continue

            # A state that a checkpoint cannot hold must not end the training.
            state = owner.state_dict()
            try:
                to_plain(state)
            except UnsafeValueError as error:
                _warn_of_unsaved(type(owner).__name__, str(error))
                continue
            # Copied, because it may contain objects that its owner changes in place.
            stored = {"kind": "state_dict", "state": copy.deepcopy(state)}
            states.append({"root": root, "path": [*path, "state_dict"], **stored})
    return states


def restore_parts(states: list[dict[str, Any]] | None, *parts: Any) -> None:
    """Restore the result of `part_states`; a generator that is still None is made.

    Args:
        states: the result of `part_states`; a state that has no counterpart is skipped with a
            warning.
        parts: the same ones, or others made in the same way; or only the first of them.
    """
    for stored in states or ():
        if stored["root"] >= len(parts):
            continue
        path: list[Any] = stored["path"]
        part = parts[stored["root"]]
        owners = dict(walk_wrapped(part))
        owner: Any = owners.get(tuple(path[:-1]))
        if stored["kind"] != "state_dict":
            is_restored = restore_generator(owner, path[-1], stored)
        else:
            is_restored = _has_state_dict(owner)
            if is_restored:
                # A copy: the owner may change it, and the state may be loaded again.
                owner.load_state_dict(copy.deepcopy(stored["state"]))
        if not is_restored:
            names = [type(part).__name__, *map(str, path)]
            warn_of_lost(".".join(names))


def random_states(*parts: object) -> dict[str, Any]:
    """Return the states of everything that draws random numbers while batches are made.

    These are the global CPU generators, and under "own" the result of `part_states`.
    """
    return {**capture_host_rng(), "own": part_states(*parts)}


def restore_random_states(state: Mapping[str, Any], *parts: Any) -> None:
    """Restore the result of `random_states`."""
    restore_host_rng(state)
    restore_parts(state.get("own"), *parts)


def walk_wrapped(part: Any, path: AttributePath = ()) -> Iterator[tuple[AttributePath, Any]]:
    """Yield a part and the parts that it wraps, each with the path that leads to it.

    A wrapped part is in an attribute `data_collator`, `dataset` (as in `torch.utils.data.Subset`)
    or `datasets`.
    """
    yield path, part
    # The parts of a loader are saved separately.
    if isinstance(part, DataLoader) or len(path) >= _LONGEST_PATH:
        return

    attributes: dict[str, Any] = getattr(part, "__dict__", {})
    for name in ("data_collator", "dataset"):
        wrapped = attributes.get(name)
        if wrapped is not None:
            yield from walk_wrapped(wrapped, (*path, name))

    # Several datasets: torch has a list in `ConcatDataset`, a tuple or a dict in `StackDataset`.
    # Containers in other attributes may hold the samples themselves.
    several = attributes.get("datasets")
    if isinstance(several, dict):
        # Numbered, since a checkpoint cannot hold every key.
        several = list(cast("dict[Any, Any]", several).values())
    if isinstance(several, (list, tuple)):
        for index, wrapped in enumerate(cast("Sequence[Any]", several)):
            yield from walk_wrapped(wrapped, (*path, "datasets", index))


def _has_state_dict(owner: object) -> bool:
    has_both = hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict")
    return has_both and not isinstance(owner, _SAVED_ELSEWHERE)


@functools.cache
def _warn_of_unsaved(name: str, reason: str) -> None:
    _log.warning(
        "The state_dict of %s is not saved because a checkpoint cannot hold it: %s. Return "
        "tensors, arrays, numbers, strings, and lists and dicts of them.",
        name,
        reason,
    )
