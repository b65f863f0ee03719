"""Position of a loader in an epoch, saved so that another process can resume from it.

`Reading` and `Resumption` do it for an `EpochLoader`, `EpochStart` for a loader of any other kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import IterableDataset

from ..common.safe_serialization import UnsafeValueError, from_plain, is_plain, to_plain
from ..common.seeding import capture_host_rng, restore_host_rng
from .rng_discovery import drawing_parts, own_states, restore_own
from .worker_state import ENDED, Fetched, ResumedWorkers, WorkerStates, next_worker

NOTHING: Any = object()
"""Returned in place of a batch after the last one."""


class ReadLoader(Protocol):
    """Members of a loader needed to record and restore its position."""

    dataset: Any
    collate_fn: Any
    batch_sampler: Any
    num_workers: int
    persistent_workers: bool
    worker_init_fn: Any

    @property
    def order_seed(self) -> Any:
        """Return the seed of this iteration's order."""
        ...

    @order_seed.setter
    def order_seed(self, seed: Any) -> None: ...

    @property
    def next_order_seed(self) -> Any:
        """Return the seed of the next iteration's order."""
        ...

    @property
    def stream_state(self) -> Any:
        """Return the state of a resumable stream."""
        ...

    def skip(self, batches: int, blanks: int = 0) -> None:
        """Skip batches at the start of the next iteration."""
        ...

    def batches_resumed(
        self, worker_init_fn: Callable[[int], None] | None, *, draws_seed: bool = True
    ) -> Iterator[Any]:
        """Iterate over the batches as an interrupted iteration yielded them."""
        ...


class Reading:
    """Progress of one iteration of a loader.

    Attributes:
        handed_out: batches yielded so far.
        ahead: the batch that was read after them, `NOTHING` if there is none.
        before_ahead: the generators before `ahead`, if such batches cannot be saved and have to be read again.
        start: the generators at the start of the iteration, from which its order and worker seeds can be redrawn.
        renewed: whether workers were started, and their seed drawn; persistent ones are started by the first iteration.
    """

    def __init__(self) -> None:
        self.handed_out = 0
        self.ahead: Any = NOTHING
        self.before_ahead: dict[str, Any] | None = None
        self.start: dict[str, Any] | None = None
        self.renewed = True
        self._draws: tuple[Any, ...] = ()
        """Objects that may have generators of their own."""
        self._plain: bool | None = None
        self._workers, self._workers_before, self._workers_at_start = WorkerStates(), WorkerStates(), WorkerStates()

    def next_epoch(self, loader: ReadLoader, *, tracked: bool) -> Reading:
        """Return the reading of the next iteration.

        Args:
            loader: the loader; its persistent workers keep their states.
            tracked: record the generators for a checkpoint.
        """
        made = Reading()
        made._draws = drawing_parts(loader)
        made.start = made._generators() if tracked else None
        if loader.persistent_workers:
            made._workers = self._workers.between_epochs()
            made._workers_at_start = made._workers.copy()
            made.renewed = self.start is None
        return made

    def _generators(self) -> dict[str, Any]:
        return {**capture_host_rng(), "own": own_states(*self._draws)}

    def restore_workers(self, state: dict[str, Any]) -> None:
        """Restore the states of the workers from a `state_dict`."""
        for name, key in (("_workers", "workers"), ("_workers_at_start", "workers_at_start")):
            if state.get(key) is not None:
                setattr(self, name, WorkerStates.known(state[key]))

    def fetch(self, batches: Iterator[Any]) -> Any:
        """Return the next batch, or `NOTHING`."""
        if self.start is not None and not self._plain:
            self.before_ahead = self._generators()
        item = next(batches, NOTHING)
        if isinstance(item, Fetched):
            self._workers_before = self._workers.copy()
            item = self._workers.take(item)
        if self._plain is None and item is not NOTHING:
            self._plain = is_plain(item)
        self.ahead = item
        return item

    def worker_states(self, loader: ReadLoader) -> dict[str, Any]:
        """Return the states of the workers after the batches read so far."""
        return self._workers.state_dict(loader.num_workers)

    def state_dict(self, loader: ReadLoader) -> dict[str, Any]:
        """Return the position, as the loader's `state_dict`."""
        state: dict[str, Any] = {"handed_out": self.handed_out, "start": self.start, "renewed": self.renewed}
        state |= {"seed": loader.order_seed, "next_seed": loader.next_order_seed}
        state["own_now"] = own_states(*drawing_parts(loader))
        workers = self._workers
        try:
            state["ahead"] = None if self.ahead is NOTHING else [to_plain(self.ahead)]
        except UnsafeValueError:
            workers = self._workers_before
            state["before_ahead"] = self.before_ahead
        if loader.num_workers > 0:
            now, first = workers, self._workers_at_start
            return {
                **state,
                "workers": now.state_dict(loader.num_workers),
                "workers_at_start": first.state_dict(loader.num_workers),
            }
        stream = loader.stream_state
        if stream is not None and "ahead" in state and is_plain(stream):
            state["dataset"] = stream
        return state


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
    def knows_next(self) -> bool:
        """Return whether the state holds the batch that was read ahead."""
        return bool(self.state.get("ahead"))

    @property
    def was_read(self) -> bool:
        """Return whether the loader was at its end."""
        return "ahead" in self.state and self.state["ahead"] is None

    @property
    def is_exact(self) -> bool:
        """Return whether the states of the generators around the next batch are known."""
        return self.knows_next or self.was_read or self.state.get("before_ahead") is not None

    def start(self, loader: ReadLoader, reading: Reading) -> tuple[Iterator[Any], Any]:
        """Begin the iteration; return its iterator and the first batch to yield."""
        reading.handed_out = self.state["handed_out"]
        if self.state["start"] is not None:
            reading.start = self.state["start"]
            restore_generators(self.state["start"], loader)
        reading.renewed = self.state["renewed"]
        reading.restore_workers(self.state)
        loader.order_seed = self.state["seed"]
        over = self.was_read and not loader.persistent_workers  # persistent ones have to be restored even then
        batches = iter(()) if over else self._at_position(loader)
        restore_own(self.state.get("own_now"), *drawing_parts(loader))
        if self.knows_next:
            reading.ahead = from_plain(self.state["ahead"][0])
        else:
            if self.state.get("before_ahead") is not None:
                restore_generators(self.state["before_ahead"], loader)
            reading.fetch(batches)
        if self.on_ready is not None and self.is_exact:
            self.on_ready()
        return batches, reading.ahead

    def _at_position(self, loader: ReadLoader) -> Iterator[Any]:
        skip = self.state["handed_out"] + self.knows_next
        workers = self._workers(loader)
        if isinstance(loader.dataset, IterableDataset):
            return self._in_stream(loader, skip, workers)
        blanks = 0 if workers is None else next_worker(workers)
        loader.skip(skip, blanks)
        batches = self._resumed(loader, workers)
        if loader.num_workers == 0:  # otherwise their first batches have been drawn
            loader.batch_sampler.peek()  # the draws of the sampler belong to the start
        return skip_items(batches, blanks)

    def _in_stream(self, loader: ReadLoader, skip: int, workers: dict[str, Any] | None) -> Iterator[Any]:
        """Resume a stream from its state; without one, read it again up to its position."""
        if "dataset" in self.state:
            if self.state["dataset"] == ENDED:
                return iter(())
            loader.dataset.load_state_dict(self.state["dataset"])
            return self._resumed(loader, None)
        if workers is not None and _are_resumable(workers) and not (loader.persistent_workers and next_worker(workers)):
            return self._resumed(loader, workers, next_worker(workers))
        return skip_items(self._resumed(loader, self._workers(loader, "workers_at_start")), skip)

    def _resumed(self, loader: ReadLoader, workers: dict[str, Any] | None, first: int = 0) -> Iterator[Any]:
        set_up = None if workers is None else ResumedWorkers(workers, loader.worker_init_fn, first)
        return loader.batches_resumed(set_up, draws_seed=self.state["renewed"])

    def _workers(self, loader: ReadLoader, name: str = "workers") -> dict[str, Any] | None:
        state = self.state.get(name)
        return None if state is None or state["workers"] != loader.num_workers else state


def restore_generators(state: dict[str, Any], loader: ReadLoader) -> None:
    """Restore the CPU generators, and those of the loader's collator and dataset."""
    restore_host_rng(state)
    restore_own(state.get("own"), *drawing_parts(loader))


def go_on_after(state: dict[str, Any], loader: ReadLoader) -> None:
    """Set the generators of collator and dataset to their states at the end of a `state_dict`."""
    restore_own(state.get("own_now"), *drawing_parts(loader))


def _are_resumable(workers: dict[str, Any]) -> bool:
    """Return whether the streams in all workers that produced a batch have a state to resume from."""
    states = [state for _, state in workers["states"]]
    return bool(states) and all(state.get("dataset", ENDED) != ENDED for state in states)


def skip_items(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Return the same iterator with its next `count` items consumed."""
    next(itertools.islice(batches, count, count), None)
    return batches


class EpochStart:
    """Snapshot of the generators that give an iteration its order: the global CPU ones and those of the loader.

    Args:
        loader: has not yet begun the iteration. A `generator` of its own, or of its sampler, is a `torch.Generator`.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.rng = capture_host_rng()
        self.generators = _states(loader)
        self.own = own_states(*drawing_parts(loader))

    def state_dict(self) -> dict[str, Any]:
        """Return the generators at the start, and the loader's own as they are now."""
        own = {"own": self.own, "own_now": own_states(*drawing_parts(self.loader))}
        return {"began": self.rng, "generators": self.generators, "generators_now": _states(self.loader), **own}


def begin_again(loader: Any, state: dict[str, Any]) -> None:
    """Set all generators to the start of the iteration of an `EpochStart.state_dict`."""
    restore_host_rng(state["began"])
    _set(loader, state["generators"])
    restore_own(state.get("own"), *drawing_parts(loader))


def begin_after(loader: Any, state: dict[str, Any]) -> None:
    """Set the loader's own generators to the end of that iteration."""
    _set(loader, state["generators_now"])
    restore_own(state.get("own_now"), *drawing_parts(loader))


def _own(loader: Any) -> list[torch.Generator]:
    """Return each generator once: a DataLoader shares its own with the sampler that it makes."""
    sampler = getattr(loader, "sampler", None)
    found = [getattr(part, "generator", None) for part in (loader, sampler)]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def _states(loader: Any) -> list[torch.Tensor]:
    return [generator.get_state() for generator in _own(loader)]


def _set(loader: Any, states: list[torch.Tensor]) -> None:
    for generator, state in zip(_own(loader), states, strict=False):
        generator.set_state(state)
