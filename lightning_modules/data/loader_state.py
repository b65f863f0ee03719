"""Position of a loader in an epoch, saved so that another process can resume from it.

`Resumption` does it for an `EpochLoader`, `EpochStart` for a loader of any other kind.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from ..common.seeding import capture_host_rng, restore_host_rng
from .samplers import shared_in_turn
from .stateful_parts import drawing_parts, ordering_parts, part_states, restore_parts
from .worker_state import ENDED, ResumedWorkers, next_worker

_log = logging.getLogger(__name__)


class Resumption:
    """Bring a loader to the position of a `state_dict`.

    Args:
        state: of the loader.
        on_ready: see the loader's `load_state_dict`.
    """

    def __init__(self, state: dict[str, Any], on_ready: Callable[[], None] | None) -> None:
        self.state = state
        self.on_ready = on_ready
        self.epoch: int = state["epoch"]

    @property
    def is_exact(self) -> bool:
        """Return whether the states of the generators around the next batch are known."""
        return bool(self.state["before"]) or self.state["ended"]

    def start(self, loader: Any, reading: Any) -> Iterator[Any]:
        """Begin the iteration, and read again what had been read ahead; return the iterator.

        Inside of an epoch the global generators stay as they are: what is drawn here was drawn before the interruption.
        """
        generators_now = capture_host_rng()
        self._restore_start(loader, reading)
        batches = self._remaining(loader, reading)

        # Each batch that had been read ahead, with the generators as they were before it.
        for generators in self.state["before"]:
            restore_generators(generators, loader)
            reading.fetch(batches)
        # The first batch of a state without generators; or, at the end, that there is no further one.
        if self.state["ended"] or not self.state["before"]:
            reading.fetch(batches)

        restore_own_now(self.state, loader)
        if self.is_exact or self.state["handed_out"] > 0:
            restore_host_rng(generators_now)
        if self.on_ready is not None and self.is_exact:
            self.on_ready()
        return batches

    def _restore_start(self, loader: Any, reading: Any) -> None:
        """Restore what is known of the start of the iteration: generators, order, and who reads."""
        state = self.state
        reading.handed_out = state["handed_out"]
        reading.renewed = state["renewed"]
        if state["start"] is not None:
            reading.start = state["start"]
            restore_generators(state["start"], loader)

        if isinstance(loader.dataset, IterableDataset):
            reading.num_workers = self._workers_before
            reading.files_in_turn = state.get("files_in_turn")
            if reading.num_workers != loader.num_workers:
                _log.warning(
                    "The stream was read by %s workers, whose batches alternate: they finish this pass over it, and "
                    "the next one is read by %s.",
                    reading.num_workers,
                    loader.num_workers,
                )
        reading.restore_workers(state)
        loader.order_seed = state["seed"]
        reading.order = state.get("order")
        restore_parts(reading.order, *ordering_parts(loader))

    def _remaining(self, loader: Any, reading: Any) -> Iterator[Any]:
        """Return the batches after those that were handed out; at the end nothing is read to find that out."""
        is_over = self.state["ended"] and not self.state["before"]
        has_to_start_workers = loader.persistent_workers and reading.num_workers == loader.num_workers
        if is_over and not has_to_start_workers:
            return iter(())
        return self._at_position(loader)

    def _at_position(self, loader: Any) -> Iterator[Any]:
        skip = self.state["handed_out"]
        workers = self._workers(loader)
        if isinstance(loader.dataset, IterableDataset):
            return self._in_stream(loader, skip, workers)

        # The workers before the next one get empty batches, since torch asks them in turn.
        blanks = 0
        if workers is not None:
            blanks = next_worker(workers)
        loader.skip(skip, blanks)
        batches = self._resumed(loader, workers)

        # The draws of the sampler belong to the start. With workers their first batches have been drawn by now.
        if loader.num_workers == 0:
            loader.batch_sampler.peek()
        return skip_items(batches, blanks)

    def _in_stream(self, loader: Any, skip: int, workers: dict[str, Any] | None) -> Iterator[Any]:
        """Resume a stream from its state; without one, read it again up to its position.

        The pass is finished by as many workers as began it, since batches of the workers alternate.
        """
        if "stream" in self.state:
            loader.dataset.load_state_dict(self.state["stream"])
            return self._resumed(loader, None)

        if workers is not None and _are_resumable(workers):
            first = next_worker(workers)
            # Persistent workers cannot take each other's places, which they would keep in later epochs.
            if first == 0 or not loader.persistent_workers:
                return self._resumed(loader, workers, first)

        batches = self._resumed(loader, self._workers(loader, "workers_at_start"))
        return skip_items(batches, skip)

    def _resumed(self, loader: Any, workers: dict[str, Any] | None, first: int = 0) -> Iterator[Any]:
        """Return the batches as those who read before the interruption yield them."""
        set_up = None
        if workers is not None:
            set_up = ResumedWorkers(workers, loader.worker_init_fn, first)

        num_workers = None
        if isinstance(loader.dataset, IterableDataset):
            num_workers = self._workers_before

        dataset = None
        if "files_in_turn" in self.state:
            dataset = shared_in_turn(loader.dataset, *self.state["files_in_turn"])
            dataset.set_epoch(self.epoch)

        return loader.batches_resumed(
            set_up, draws_seed=self.state["renewed"], num_workers=num_workers, dataset=dataset
        )

    @property
    def _workers_before(self) -> int:
        """Return how many workers read before the interruption."""
        workers = self.state.get("workers")
        if workers is None:
            return 0
        return workers["workers"]

    def _workers(self, loader: Any, name: str = "workers") -> dict[str, Any] | None:
        """Return the states of the workers; None if other numbers of them read a map-style dataset before and now."""
        state = self.state.get(name)
        if state is None or isinstance(loader.dataset, IterableDataset):
            return state
        if state["workers"] != loader.num_workers:
            return None
        return state


def is_between_epochs(state: dict[str, Any]) -> bool:
    """Return whether a `state_dict` is that of a loader whose epoch has ended, or has not begun."""
    return state["ended"] and not state["before"]


def with_other_batches(
    state: dict[str, Any], handed_out: int, generators: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a state in the same order of the samples, which are put together to other batches.

    Args:
        state: of an `EpochLoader`.
        handed_out: the batches, of the new size, that were handed out.
        generators: the global ones before the next batch is read; by default they stay as they are.
    """
    names = ("epoch", "start", "renewed", "seed", "next_seed", "order", "order_now", "files_in_turn")
    other = {name: state[name] for name in names if name in state}
    other["handed_out"] = handed_out
    other["before"] = []
    if generators is not None:
        other["before"] = [generators]
    other["ended"] = False
    # Workers hold states after batches of the old size.
    other["workers"] = None
    return other


def restore_generators(state: dict[str, Any], loader: Any) -> None:
    """Restore the CPU generators, and the states of the loader's collator and dataset."""
    restore_host_rng(state)
    restore_parts(state.get("own"), *drawing_parts(loader))


def restore_own_now(state: dict[str, Any], loader: Any) -> None:
    """Restore collator and dataset of the loader to their states when a `state_dict` was taken."""
    restore_parts(state.get("own_now"), *drawing_parts(loader))


def _are_resumable(workers: dict[str, Any]) -> bool:
    """Return whether the streams in all workers that produced a batch have a state to resume from."""
    states = [state for _, state in workers["states"]]
    return bool(states) and all(state.get("dataset", ENDED) != ENDED for state in states)


def skip_items(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Return the same iterator with its next `count` items consumed."""
    next(itertools.islice(batches, count, count), None)
    return batches


class EpochStart:
    """Snapshot of what gives an iteration its order and its samples: the global CPU generators and the loader's parts.

    Args:
        loader: has not yet begun the iteration.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.rng = capture_host_rng()
        self.order = part_states(*ordering_parts(loader))
        self.own = part_states(*drawing_parts(loader))

    def state_dict(self) -> dict[str, Any]:
        """Return the states at the start, and those of the loader's parts as they are now."""
        return {
            "began": self.rng,
            "generators": self.order,
            "generators_now": part_states(*ordering_parts(self.loader)),
            "own": self.own,
            "own_now": part_states(*drawing_parts(self.loader)),
        }


def begin_again(loader: Any, state: dict[str, Any]) -> None:
    """Set all generators and parts to the start of the iteration of an `EpochStart.state_dict`."""
    restore_host_rng(state["began"])
    _restore_order(loader, state["generators"])
    restore_parts(state.get("own"), *drawing_parts(loader))


def begin_after(loader: Any, state: dict[str, Any]) -> None:
    """Set the loader's parts to the end of that iteration."""
    _restore_order(loader, state["generators_now"])
    restore_own_now(state, loader)


def _restore_order(loader: Any, states: list[Any]) -> None:
    """Restore the states of `ordering_parts`, also as earlier versions wrote them.

    Those wrote a tensor for each torch generator of the loader and its sampler, in this order.
    """
    if states and isinstance(states[0], torch.Tensor):
        present = [state for state in part_states(*ordering_parts(loader)) if state["kind"] == "torch"]
        states = [
            {**state, "state": [state["state"][0], tensor]} for state, tensor in zip(present, states, strict=False)
        ]
    restore_parts(states, *ordering_parts(loader))
