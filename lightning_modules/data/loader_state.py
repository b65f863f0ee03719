"""Convert the `state_dict` of an `EpochLoader`, and provide states for loaders of other classes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ..common.seeding import capture_host_rng, restore_host_rng
from .stateful_parts import (
    drawing_parts,
    loader_parts,
    part_states,
    random_states,
    restore_parts,
    restore_random_states,
)
from .stream_passes import StreamPasses, forget_positions
from .worker_state import WatchedLoader, is_torchdata_loader

_OWN_STATE = "lightrainer"
"""The key under which a `ForeignLoader` adds its own state to the loader's."""


def is_between_epochs(state: Mapping[str, Any]) -> bool:
    """Return whether a `state_dict` was saved between two epochs."""
    return state["ended"] and not state["before"]


def workers_in(state: Mapping[str, Any]) -> int:
    """Return the number of workers when a `state_dict` was saved."""
    workers = state.get("workers")
    if workers is None:
        return 0
    return workers["workers"]


def before_epoch(state: Mapping[str, object], epoch: int) -> dict[str, Any]:
    """Convert the state of a loader to the state before the start of the given epoch."""
    return {**state, "epoch": epoch, "handed_out": 0, "ended": True, "before": []}


def from_epoch_start(state: Mapping[str, Any]) -> dict[str, object]:
    """Convert a state to the start of its epoch, with the same order."""
    state_at_start = before_epoch(state, state["epoch"])

    # "now" has the states for the next epoch.
    states_at_start: Mapping[str, object] = state["start"] or {}
    state_at_start["now"] = states_at_start.get("own")
    state_at_start["workers"] = None
    return state_at_start


def with_other_batches(
    state: dict[str, Any], batches_yielded: int, generators: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Convert a state to batches of another size, with the same order of samples.

    Args:
        state: the state of an `EpochLoader`.
        batches_yielded: number of batches of the new size that were yielded.
        generators: the global generators before the next batch; by default they are not changed.
    """
    # The worker states are invalid, because they were captured after batches of the old size.
    adapted = dict(state)
    adapted["workers"] = None
    if is_between_epochs(state):
        return adapted

    # Without its state, a stream is read again up to the number of batches.
    adapted.pop("stream", None)
    adapted["handed_out"] = batches_yielded
    adapted["ended"] = False
    adapted["before"] = []
    if generators is not None:
        # In the file of a checkpoint, "own" has the generators of other objects.
        adapted["before"] = [{**generators, "own": None}]
    return adapted


def position_at(epoch: int, batches_yielded: int) -> dict[str, Any]:
    """Return the state of a loader if only the number of yielded batches is known."""
    return {
        "epoch": epoch,
        "handed_out": batches_yielded,
        "ended": False,
        "start": None,
        "before": [],
        "renewed": True,
    }


def skip_items(batches: Iterator[object], count: int) -> Iterator[Any]:
    """Return the same iterator with its next `count` items consumed."""
    # An empty slice that starts after the items consumes them without storing them.
    next(itertools.islice(batches, count, count), None)
    return batches


class ReplayLoader:
    """Resume a loader without a state by reading the interrupted epoch again from its start.

    The generators are restored to their states at the start of that epoch.

    Args:
        loader: any iterable.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._watched_loader = WatchedLoader(loader)
        self._workers: dict[str, Any] | None = None
        """States from which persistent workers start in the next iteration."""
        self._stream_passes = StreamPasses(getattr(loader, "dataset", None))
        self._batches_to_skip = 0
        self._states_at_start: dict[str, Any] = {}
        """Generator states at the start of the current iteration."""
        self._state_to_resume: dict[str, Any] | None = None
        """The `state_dict` from which the next iteration resumes."""

    def skip(self, batches: int) -> None:
        """Skip this many batches at the start of the next iteration."""
        self._batches_to_skip = batches

    def __iter__(self) -> Iterator[Any]:
        parts = loader_parts(self.loader)

        # Resume once, from the states at the start of the interrupted iteration.
        state = self._state_to_resume
        self._state_to_resume = None
        if state is not None:
            restore_random_states(state["began"], *parts)
            self._workers = state.get("workers")
        workers = self._workers
        self._workers = None
        self._states_at_start = {
            "began": random_states(*parts),
            "workers": workers or self._watched_loader.state_dict(),
            "stream": self._stream_passes.state(),
        }

        batches = self._stream_passes.begin(partial(self._watched_loader.iterate, workers))
        batches = skip_items(batches, self._batches_to_skip)
        self._batches_to_skip = 0

        # The collator may also have drawn random numbers for evaluations.
        if state is not None:
            restore_parts(state["now"], *drawing_parts(self.loader))
        return batches

    def state_dict(self, unused: int = 0) -> dict[str, Any] | None:
        """Return the states of the loader's parts now, and at the start of the iteration.

        None before the first iteration.

        Args:
            unused: ignored, because batches are read from the start of the epoch.
        """
        if not self._states_at_start:
            return None
        return {
            **self._states_at_start,
            "now": part_states(*loader_parts(self.loader)),
            "workers_now": self._watched_loader.state_dict(),
            "stream_now": self._stream_passes.state(),
        }

    def load_state_dict(self, state: dict[str, Any], *, inside_epoch: bool = False) -> None:
        """Restore the parts of the loader.

        Args:
            state: the result of `state_dict`.
            inside_epoch: whether the next iteration repeats the iteration of the state; by default
                it is the one after that.
        """
        if inside_epoch:
            self._stream_passes.load(state.get("stream"))
            self._state_to_resume = state
            return
        self._stream_passes.load(state.get("stream_now"))
        self._workers = state.get("workers_now")
        restore_parts(state["now"], *loader_parts(self.loader))


class ForeignLoader:
    """Resume a loader of another library that has its own `state_dict`.

    Args:
        loader: a loader with `state_dict` and `load_state_dict`.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._watched_loader = WatchedLoader(loader)
        self._has_ended = False
        """Whether the current iteration has yielded all of its batches."""
        self._parts_to_restore: list[dict[str, Any]] | None = None
        self._workers_to_start: dict[str, Any] | None = None
        """Worker states from which the next iteration starts; see `state_dict`."""
        self._workers_at_start: dict[str, Any] | None = None
        """States of persistent workers at the start of the current iteration."""
        self._is_positioned = False
        """Whether the next iteration starts at the loaded state."""
        self._has_loaded = False
        """Whether a state was loaded, for this iteration or an earlier one."""
        self._batches_read_again = 0
        """Number of batches in the current iteration that torchdata has read again and counted
        twice.
        """
        self._states_at_start: dict[str, Any] = {}
        """Generator states at the start of the current iteration."""

    def __iter__(self) -> Iterator[Any]:
        if not self._is_positioned:
            self._batches_read_again = 0
            self._states_at_start = random_states(*loader_parts(self.loader))
            # Loaders of torchdata do not set the epoch of a stream.
            if self._has_loaded:
                forget_positions(getattr(self.loader, "dataset", None))
        self._is_positioned = False
        workers = self._workers_to_start
        self._workers_to_start = None
        if workers is None and self._watched_loader.is_persistent:
            self._workers_at_start = self._watched_loader.state_dict()
        batches = self._watched_loader.iterate(workers)

        # The loader may have read data to reach its position, which draws random numbers.
        restore_parts(self._parts_to_restore, *drawing_parts(self.loader))
        self._parts_to_restore = None
        self._has_ended = False
        return self._until_end(batches)

    def state_dict(self, unused: int = 0) -> dict[str, Any]:
        """Return the state of the loader, with entries that loaders of torchdata do not save.

        These are whether the iteration has ended, and the generators of dataset, collator and
        workers.

        Args:
            unused: number of batches, yielded last, that were not used and have to be yielded
                again.
        """
        own_state = {
            "ended": self._has_ended,
            "parts": part_states(*drawing_parts(self.loader)),
            "workers": self._watched_loader.state_dict(),
            "workers_at_start": self._workers_at_start,
            "at_start": self._states_at_start,
        }
        state_of_loader = self.loader.state_dict()
        if self._batches_read_again > 0:
            batches = _batches_in(state_of_loader) - self._batches_read_again
            state_of_loader = _with_batches(state_of_loader, batches)
        state = {**state_of_loader, _OWN_STATE: own_state}

        # The loader can only move backwards by reading the epoch again.
        if unused > 0:
            return of_other_batches(state)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` in the next iteration."""
        state_of_loader = dict(state)
        own_state = state_of_loader.pop(_OWN_STATE)
        self._parts_to_restore = own_state["parts"]
        self._workers_to_start = own_state["workers"]
        self._workers_at_start = own_state["workers_at_start"]
        self._states_at_start = own_state["at_start"]
        self._is_positioned = True
        self._has_loaded = True
        self._batches_read_again = 0

        # Workers read the stream from its start, so restore their states of that time.
        if _is_read_again(state):
            self._workers_to_start = self._workers_at_start
            self._batches_read_again = _batches_in(state)
        self.loader.load_state_dict(state_of_loader)

    def restore_parts_of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Restore the generators of dataset and collator; return the state without them."""
        own_state = state[_OWN_STATE]
        restore_parts(own_state["parts"], *drawing_parts(self.loader))
        return {**state, _OWN_STATE: {**own_state, "parts": None}}

    def epoch_after(self, state: Mapping[str, Any], *, was_left: bool) -> Iterator[Any]:
        """Start the iteration after the one of a state.

        Args:
            state: the result of `restore_parts_of`.
            was_left: whether that iteration was stopped before its end.
        """
        generators = capture_host_rng()
        parts = part_states(*drawing_parts(self.loader))
        self.load_state_dict(state)
        self._parts_to_restore = parts
        keeps_workers = self._watched_loader.is_persistent
        if not keeps_workers:
            self._workers_to_start = None
        batches = iter(self)

        # A loader of torchdata at its end starts the next iteration immediately, but has then drawn
        # the seed of its workers twice, unless they are persistent. Restart it with the original
        # generators.
        if has_ended(state) and is_torchdata_loader(self.loader) and not keeps_workers:
            restore_host_rng(generators)
            self._parts_to_restore = parts
            batches = iter(self)

        # A stopped iteration is not continued.
        if was_left and is_torchdata_loader(self.loader):
            batches = iter(())
        for first in batches:
            return itertools.chain([first], batches)

        # Other loaders yield nothing at their end, so iterate over them again.
        restore_host_rng(generators)
        self._parts_to_restore = parts
        return iter(self)

    def read_again(self, state: Mapping[str, Any], batches_done: int) -> Iterator[Any]:
        """Restart the iteration of a state, and skip its first batches.

        Args:
            state: the state, which may be from batches of another size.
            batches_done: number of batches to skip.
        """
        states_at_start = state[_OWN_STATE]["at_start"]
        if states_at_start:
            restore_random_states(states_at_start, *loader_parts(self.loader))
        return skip_items(iter(self), batches_done)

    def _until_end(self, batches: Iterator[object]) -> Iterator[object]:
        """Yield the batches, and record when they end."""
        yield from batches
        self._has_ended = True


def of_other_batches(state: Mapping[str, Any]) -> dict[str, Any]:
    """Mark the state of a `ForeignLoader` as saved with another batch size.

    `is_of_other_batches` returns whether a state is marked.
    """
    return {**state, _OWN_STATE: {**state[_OWN_STATE], "other_batches": True}}


def is_of_other_batches(state: Mapping[str, Any]) -> bool:
    """Return whether a state was marked by `of_other_batches`."""
    return state[_OWN_STATE].get("other_batches", False)


def has_ended(state: Mapping[str, Any]) -> bool:
    """Return whether a `ForeignLoader` had yielded all batches of its iteration."""
    return state[_OWN_STATE]["ended"]


def _is_read_again(state: Mapping[str, Any]) -> bool:
    """Return whether a loader of torchdata has to read a stream again because it has no state."""
    # The states of the workers, or of this process if there are none.
    readers: list[Mapping[str, Any]] = [state]
    if "_snapshot" in state:
        readers = list(state["_snapshot"].get("_worker_snapshots", {}).values())
    for reader in readers:
        # The fetcher only has a state for streams.
        fetcher = reader.get("fetcher_state")
        if fetcher and reader["dataset_state"] is None and fetcher["dataset_iter_state"] is None:
            return True
    return False


def _batches_in(state: Mapping[str, Any]) -> int:
    """Return the number of yielded batches in the state of a torchdata loader."""
    if "_snapshot" in state:
        return state["_snapshot"]["_snapshot_step"]
    return state["_num_yielded"]


def _with_batches(state: Mapping[str, Any], batches: int) -> dict[str, Any]:
    """Return the state of a torchdata loader with another number of yielded batches."""
    if "_snapshot" in state:
        return {**state, "_snapshot": {**state["_snapshot"], "_snapshot_step": batches}}
    return {**state, "_num_yielded": batches}
