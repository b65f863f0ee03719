"""Save and restore the states of a loader's dataset, samplers and collator.

They are stored in checkpoints. The state of a part consists of the generators in its attributes,
such as `generator` of torch's samplers and transformers' collators, and of its `state_dict` if it
also has `load_state_dict`. Datasets and collators that a part wraps are included; other nested
objects are not.
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
"""Attribute names and indices that lead from a part to a nested object."""

_LONGEST_PATH = 8
"""Maximum length of a path, which would be infinite for objects that refer to each other."""

_SAVED_ELSEWHERE = (DataLoader, DistributedSampler, IterableDataset, nn.Module)
"""Classes whose `state_dict` has weights, or a position, which loaders restore separately."""


def drawing_parts(loader: object) -> tuple[Any, Any]:
    """Return the parts that draw random numbers for each batch: collator and dataset."""
    return getattr(loader, "collate_fn", None), getattr(loader, "dataset", None)


class LoaderParts(NamedTuple):
    """The parts of a loader that draw random numbers; None for missing parts.

    The first two are the `drawing_parts`; the others draw an order. `part_states` numbers the parts
    in this order.
    """

    collate_fn: Any
    dataset: Any
    loader: Any
    sampler: Any
    batch_sampler: Any


def loader_parts(loader: object) -> LoaderParts:
    """Return the parts of a loader.

    Samplers are those of the user, without wrappers of this library.
    """
    # Wrappers of this library do not draw random numbers, so return the wrapped parts.
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
    """Return whether a `RandomSampler` has a generator now, but had none when the states were
    saved.

    Its first order after a resumption was drawn by another generator then.

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
    """Return the states of parts, and of the parts that they wrap, as plain values.

    Loaders call this before each batch.

    Args:
        parts: the parts of a loader; None is ignored.

    Returns:
        A list of states, each with the index of the part ("root"), the attribute path from there
        ("path"), "kind" and "state".
    """
    states: list[dict[str, Any]] = []
    for root, part in enumerate(parts):
        for path, owner in walk_wrapped(part):
            for name, generator_state in generators_of(owner):
                states.append({"root": root, "path": [*path, name], **generator_state})
            if not _has_state_dict(owner):
                continue

            # A state that cannot be stored in a checkpoint must not end the training.
            state = owner.state_dict()
            try:
                to_plain(state)
            except UnsafeValueError as error:
                _warn_of_unsaved(type(owner).__name__, str(error))
                continue
            # Copy it, because it may contain objects that its owner modifies in place.
            stored = {"kind": "state_dict", "state": copy.deepcopy(state)}
            states.append({"root": root, "path": [*path, "state_dict"], **stored})
    return states


def restore_parts(states: list[dict[str, Any]] | None, *parts: Any) -> None:
    """Restore the result of `part_states`; create generators that are still None.

    Args:
        states: the result of `part_states`; states without a counterpart are skipped with a
            warning.
        parts: the same parts in the same order, or others that were created in the same way. If
            the last ones are left out, their states are ignored.
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
                # Load a copy, because the owner may modify it, and the state may be loaded again.
                owner.load_state_dict(copy.deepcopy(stored["state"]))
        if not is_restored:
            names = [type(part).__name__, *map(str, path)]
            warn_of_lost(".".join(names))


def random_states(*parts: object) -> dict[str, Any]:
    """Return the states of all random generators that are used while batches are created.

    These are the global CPU generators, and the result of `part_states` under "own".
    """
    return {**capture_host_rng(), "own": part_states(*parts)}


def restore_random_states(state: Mapping[str, Any], *parts: Any) -> None:
    """Restore the result of `random_states`."""
    restore_host_rng(state)
    restore_parts(state.get("own"), *parts)


def walk_wrapped(part: Any, path: AttributePath = ()) -> Iterator[tuple[AttributePath, Any]]:
    """Yield a part and the parts that it wraps, each with its path.

    Wrapped parts are found in the attributes `data_collator`, `dataset` (as in
    `torch.utils.data.Subset`) and `datasets`.
    """
    yield path, part
    # Lists and functions wrap nothing. The parts of a loader are saved separately.
    attributes: dict[str, Any] = getattr(part, "__dict__", {})
    if not attributes or isinstance(part, DataLoader) or len(path) >= _LONGEST_PATH:
        return

    for name in ("data_collator", "dataset"):
        wrapped = attributes.get(name)
        if wrapped is not None:
            yield from walk_wrapped(wrapped, (*path, name))

    # Several datasets are a list in torch's `ConcatDataset`, and a tuple or a dict in
    # `StackDataset`. Containers in other attributes are not searched, because they may hold
    # samples.
    several = attributes.get("datasets")
    if isinstance(several, dict):
        # Use indices instead of keys, because not every key can be stored in a checkpoint.
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
