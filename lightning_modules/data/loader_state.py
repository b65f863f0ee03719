"""How far a loader has read an epoch, kept so that another process can go on from there.

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
from .rng_discovery import own_states, restore_own, what_draws
from .worker_state import ENDED, Fetched, ResumedWorkers, WorkerStates, next_worker

NOTHING: Any = object()
"""What is read after the last batch."""


class ReadLoader(Protocol):
    """What is asked of a loader to know, and to find again, how far it was read."""

    dataset: Any
    collate_fn: Any
    batch_sampler: Any
    num_workers: int
    persistent_workers: bool
    worker_init_fn: Any

    @property
    def order_seed(self) -> Any:
        """What gives the order of this iteration."""
        ...

    @order_seed.setter
    def order_seed(self, seed: Any) -> None: ...

    @property
    def next_order_seed(self) -> Any:
        """What gives the order of the next one."""
        ...

    @property
    def stream_state(self) -> Any:
        """Where a stream that can tell is."""
        ...

    def skip(self, batches: int, blanks: int = 0) -> None:
        """Pass over batches at the start of the next iteration."""
        ...

    def batches_resumed(
        self, worker_init_fn: Callable[[int], None] | None, *, draws_seed: bool = True
    ) -> Iterator[Any]:
        """Iterate over the batches, as an interrupted iteration gave them."""
        ...


class Reading:
    """What one iteration of a loader has read so far.

    Attributes:
        handed_out: batches that the training has got.
        ahead: the batch that was read after them, `NOTHING` if there is none.
        before_ahead: the generators before that, if such batches cannot be in a checkpoint and have to be read again.
        start: the generators when the iteration began: they give its order, and the seeds of its workers, once more.
        renewed: whether the workers began with it, and their seed was drawn; persistent ones began with the first.
    """

    def __init__(self) -> None:
        self.handed_out = 0
        self.ahead: Any = NOTHING
        self.before_ahead: dict[str, Any] | None = None
        self.start: dict[str, Any] | None = None
        self.renewed = True
        self._draws: tuple[Any, ...] = ()
        """What may have generators of its own."""
        self._plain: bool | None = None
        self._workers, self._workers_before, self._workers_at_start = WorkerStates(), WorkerStates(), WorkerStates()

    def next_epoch(self, loader: ReadLoader, *, tracked: bool) -> Reading:
        """That of the next iteration.

        Args:
            loader: what is read; persistent workers go on as they are.
            tracked: whether a checkpoint may want to know.
        """
        made = Reading()
        made._draws = what_draws(loader)
        made.start = made._generators() if tracked else None
        if loader.persistent_workers:
            made._workers = self._workers.between_epochs()
            made._workers_at_start = made._workers.copy()
            made.renewed = self.start is None
        return made

    def _generators(self) -> dict[str, Any]:
        return {**capture_host_rng(), "own": own_states(*self._draws)}

    def take_up(self, state: dict[str, Any]) -> None:
        """Know of the workers what a `state_dict` knew of them."""
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
        """Return how the workers were left by what has been read."""
        return self._workers.state_dict(loader.num_workers)

    def state_dict(self, loader: ReadLoader) -> dict[str, Any]:
        """See the loader's `state_dict`."""
        state: dict[str, Any] = {"handed_out": self.handed_out, "start": self.start, "renewed": self.renewed}
        state |= {"seed": loader.order_seed, "next_seed": loader.next_order_seed}
        state["own_now"] = own_states(*what_draws(loader))
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
    """Brings a loader to where a `state_dict` says it stood.

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
        """Whether the state holds the batch that had been read ahead, so that it need not be read again."""
        return bool(self.state.get("ahead"))

    @property
    def was_read(self) -> bool:
        """Whether there was no next batch any more."""
        return "ahead" in self.state and self.state["ahead"] is None

    @property
    def is_exact(self) -> bool:
        """Whether it is known where the generators stood around that batch."""
        return self.knows_next or self.was_read or self.state.get("before_ahead") is not None

    def start(self, loader: ReadLoader, reading: Reading) -> tuple[Iterator[Any], Any]:
        """Begin the iteration; returns its iterator, and the first batch to hand out."""
        reading.handed_out = self.state["handed_out"]
        if self.state["start"] is not None:
            reading.start = self.state["start"]
            restore_generators(self.state["start"], loader)
        reading.renewed = self.state["renewed"]
        reading.take_up(self.state)
        loader.order_seed = self.state["seed"]
        over = self.was_read and not loader.persistent_workers  # those have to be brought to where they were
        batches = iter(()) if over else self._at_position(loader)
        restore_own(self.state.get("own_now"), *what_draws(loader))
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
        loader.batch_sampler.peek()  # what the sampler draws belongs to the start
        return _after(batches, blanks)

    def _in_stream(self, loader: ReadLoader, skip: int, workers: dict[str, Any] | None) -> Iterator[Any]:
        """Go on in a stream: from its state if it has one; any other is read again, up to where it was."""
        if "dataset" in self.state:
            if self.state["dataset"] == ENDED:
                return iter(())
            loader.dataset.load_state_dict(self.state["dataset"])
            return self._resumed(loader, None)
        if workers is not None and _go_on(workers) and not (loader.persistent_workers and next_worker(workers)):
            return self._resumed(loader, workers, next_worker(workers))
        return _after(self._resumed(loader, self._workers(loader, "workers_at_start")), skip)

    def _resumed(self, loader: ReadLoader, workers: dict[str, Any] | None, first: int = 0) -> Iterator[Any]:
        set_up = None if workers is None else ResumedWorkers(workers, loader.worker_init_fn, first)
        return loader.batches_resumed(set_up, draws_seed=self.state["renewed"])

    def _workers(self, loader: ReadLoader, name: str = "workers") -> dict[str, Any] | None:
        state = self.state.get(name)
        return None if state is None or state["workers"] != loader.num_workers else state


def restore_generators(state: dict[str, Any], loader: ReadLoader) -> None:
    """Put the generators on the CPU where they were, and those that the loader's collator and dataset have."""
    restore_host_rng(state)
    restore_own(state.get("own"), *what_draws(loader))


def go_on_after(state: dict[str, Any], loader: ReadLoader) -> None:
    """Put those of collator and dataset where a `state_dict` of the loader left them."""
    restore_own(state.get("own_now"), *what_draws(loader))


def _go_on(workers: dict[str, Any]) -> bool:
    """Tell whether the streams in all workers that gave a batch can go on from a state."""
    states = [state for _, state in workers["states"]]
    return bool(states) and all(state.get("dataset", ENDED) != ENDED for state in states)


def _after(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Return the same iterator, after so many items."""
    next(itertools.islice(batches, count, count), None)
    return batches


class EpochStart:
    """The generators that give an iteration its order: the global ones on the CPU, and those of the loader.

    Args:
        loader: has not yet begun the iteration. A `generator` of its own, or of its sampler, is a `torch.Generator`.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.rng = capture_host_rng()
        self.generators = _states(loader)
        self.own = own_states(*what_draws(loader))

    def state_dict(self) -> dict[str, Any]:
        """Return the generators as they were, and the loader's own as they are now."""
        own = {"own": self.own, "own_now": own_states(*what_draws(self.loader))}
        return {"began": self.rng, "generators": self.generators, "generators_now": _states(self.loader), **own}


def begin_again(loader: Any, state: dict[str, Any]) -> None:
    """Put all generators where they were when the iteration of a `EpochStart.state_dict` began."""
    restore_host_rng(state["began"])
    _set(loader, state["generators"])
    restore_own(state.get("own"), *what_draws(loader))


def begin_after(loader: Any, state: dict[str, Any]) -> None:
    """Put the loader's own generators where that iteration left them."""
    _set(loader, state["generators_now"])
    restore_own(state.get("own_now"), *what_draws(loader))


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
