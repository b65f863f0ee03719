"""What the `state_dict` of an `EpochLoader` holds, and the same for a loader without one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import RandomSampler

from .iteration import iterate
from .stateful_parts import RandomSources, drawing_parts, ordering_parts, part_states, restore_parts


def is_between_epochs(state: Mapping[str, Any]) -> bool:
    """Return whether a `state_dict` is that of a loader whose epoch has ended, or has not begun."""
    return state["ended"] and not state["before"]


def before_epoch(state: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Return the state of a loader that has left the epoch of a `state_dict`, and begins another
    one.
    """
    return {**as_written_now(state), "epoch": epoch, "handed_out": 0, "ended": True, "before": []}


def from_epoch_start(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state that keeps the order of its epoch, but is at the beginning of it."""
    state = before_epoch(state, state["epoch"])
    return {**state, "order_now": state.get("order"), "workers": None}


def with_other_batches(
    state: dict[str, Any], handed_out: int, generators: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a state in the same order of the samples, which are put together to other batches.

    Args:
        state: of an `EpochLoader`.
        handed_out: the batches, of the new size, that were handed out.
        generators: the global ones before the next batch is read; by default they stay as they are.
    """
    # Workers hold states after batches of the old size.
    other = {**as_written_now(state), "workers": None}
    if is_between_epochs(state):
        return other
    other.pop("stream", None)
    other["handed_out"] = handed_out
    other["before"] = [] if generators is None else [generators]
    other["ended"] = False
    return other


def position_at(epoch: int, handed_out: int) -> dict[str, Any]:
    """Return the state of a loader of which no more is known than how many batches were handed
    out.
    """
    return {
        "epoch": epoch,
        "handed_out": handed_out,
        "ended": False,
        "start": None,
        "before": [],
        "renewed": True,
    }


def as_written_now(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state as this version writes it, which has the seed of an order among the states
    of the samplers.
    """
    state = dict(state)
    for entry, order in (("seed", "order"), ("next_seed", "order_now")):
        seed = state.pop(entry, None)
        stored: dict[str, Any] = {
            "root": 1,
            "path": ["state_dict"],
            "kind": "state_dict",
            "state": {"seed": seed},
        }
        if isinstance(seed, torch.Tensor):
            stored = {"root": 1, "path": ["generator"], "kind": "torch", "state": ["cpu", seed]}
        if seed is not None:
            state[order] = [*(state.get(order) or ()), stored]
    return state


def has_no_generator(states: list[dict[str, Any]], sampler: Any) -> bool:
    """Return whether a `RandomSampler` has a generator, and had none when the states of its
    loader were saved.
    """
    if not isinstance(sampler, RandomSampler) or sampler.generator is None:
        return False
    return not any(stored["root"] == 1 and stored["path"] == ["generator"] for stored in states)


def skip_items(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Return the same iterator with its next `count` items consumed."""
    next(itertools.islice(batches, count, count), None)
    return batches


class RereadLoader:
    """A loader without a state: an interrupted epoch is read again, from the generators that it
    began with.

    Args:
        loader: any iterable.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._skipped = 0
        self._start: dict[str, Any] = {}
        self._state: dict[str, Any] | None = None

    def skip(self, batches: int) -> None:
        """Skip this many batches at the start of the next iteration."""
        self._skipped = batches

    def __iter__(self) -> Iterator[Any]:
        draws = RandomSources(*drawing_parts(self.loader))
        state = self._state
        self._state = None
        if state is not None:
            self._restore_order(state["generators"])
            # Earlier versions had the states of dataset and collator beside it.
            draws.load_state_dict({"own": state.get("own"), **state["began"]})
        self._start = {
            "began": draws.state_dict(),
            "generators": part_states(*ordering_parts(self.loader)),
        }

        skipped = self._skipped
        self._skipped = 0
        if skipped and hasattr(self.loader, "skip"):
            self.loader.skip(skipped)
            return iterate(self.loader)
        return skip_items(iterate(self.loader), skipped)

    def state_dict(self) -> dict[str, Any] | None:
        """Return the states at the start of the iteration, and those of the loader's parts as they
        are now.

        None before the first iteration.
        """
        if not self._start:
            return None
        return {
            **self._start,
            "generators_now": part_states(*ordering_parts(self.loader)),
            "own_now": part_states(*drawing_parts(self.loader)),
        }

    def load_state_dict(self, state: dict[str, Any], *, inside_epoch: bool = False) -> None:
        """Restore the parts of the loader.

        Args:
            state: from `state_dict`.
            inside_epoch: begin the next iteration as that of the state; by default it is the one
                after that.
        """
        if inside_epoch:
            self._state = state
            return
        self._restore_order(state["generators_now"])
        restore_parts(state.get("own_now"), *drawing_parts(self.loader))

    def _restore_order(self, states: list[Any]) -> None:
        """Restore the states of `ordering_parts`, also as earlier versions wrote them.

        Those wrote a tensor for each torch generator of the loader and its sampler, in this order.
        """
        parts = ordering_parts(self.loader)
        if states and isinstance(states[0], torch.Tensor):
            present = [state for state in part_states(*parts) if state["kind"] == "torch"]
            states = [
                {**state, "state": [state["state"][0], tensor]}
                for state, tensor in zip(present, states, strict=False)
            ]
        restore_parts(states, *parts)
