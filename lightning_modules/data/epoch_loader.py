"""DataLoader with epoch seeding, sharding by process, and one batch of lookahead."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sized
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch.utils.data import DataLoader

from ..common.nested import find_batch_size
from ..common.safe_serialization import UnsafeValueError
from ..common.seeding import capture_host_rng, restore_host_rng
from .batch_samplers import SkippingBatchSampler
from .iteration import batches_of
from .loader_state import Resumption, is_between_epochs, restore_own_now
from .samplers import IterableShard, SharedOrderSampler
from .stateful_parts import Owner, drawing_parts, ordering_parts, owner_states, owners_of, part_states, restore_parts
from .worker_state import (
    Fetched,
    ReportingCollate,
    WorkerStates,
    is_resumable,
    packed,
    unpacked,
)


class BatchWatcher(Protocol):
    """Observer of the batches that a loader yields."""

    def handed_out(self, loader: EpochLoader, batch: Any) -> Any:
        """Return the batch to yield; `loader.end_of_loader` says whether it is the last one."""
        ...

    def ended(self, loader: EpochLoader) -> None:
        """Called at the end of an iteration over a loader."""
        ...


_NOTHING: Any = object()
"""Returned in place of a batch after the last one."""


class Before(NamedTuple):
    """The state of a loader before it read a batch, from which it reads that batch again."""

    generators: dict[str, Any]
    """The global generators, and the states of collator and dataset ("own")."""
    workers: WorkerStates
    stream: bytes | None
    """State of a resumable stream that is read in this process, packed."""


class Read(NamedTuple):
    """A batch that was read."""

    batch: Any
    before: Before | None
    """None if the loader is not tracked."""


class Reading:
    """Progress of one iteration of a loader.

    Attributes:
        epoch: number of the epoch.
        handed_out: batches yielded so far.
        ahead: what was read after them: one batch, as in the reference, or none at the end.
        num_workers: workers that read; a resumed pass over a stream keeps those that it began with.
        files_in_turn: the arguments of `FilesInTurn`, if a resumed pass is read by one.
        tracked: the state before each batch is recorded for a checkpoint.
        start: the generators at the start of the iteration, from which its order and worker seeds can be redrawn; None
            if it was not tracked then.
        order: the states of the loader's samplers at that time; None likewise.
        renewed: whether workers were started, and their seed drawn; persistent ones are started by the first iteration.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.handed_out = 0
        self.tracked = False
        self.ahead: deque[Read] = deque()
        self.num_workers = 0
        self.files_in_turn: list[int] | None = None
        self.start: dict[str, Any] | None = None
        self.order: list[dict[str, Any]] | None = None
        self.renewed = True
        self._used: deque[Before | None] = deque(maxlen=2)
        """The states before the batches handed out last: Lightning may hold two that no step was taken on."""
        self._draws: list[Owner] = []
        """The collator and the dataset, and what they wrap."""
        self._stream: Any = None
        """A resumable stream."""
        self._workers = WorkerStates()
        self._workers_at_start = WorkerStates()

    def next_epoch(self, loader: EpochLoader, *, tracked: bool) -> Reading:
        """Return the reading of the next iteration.

        Args:
            loader: the loader; its persistent workers keep their states.
            tracked: record the states before each batch for a checkpoint.
        """
        made = Reading()
        made.epoch = loader.epoch
        made.tracked = tracked
        made.num_workers = loader.num_workers
        made._draws = owners_of(*drawing_parts(loader))
        if tracked:
            made.start = made._generators()
            made.order = part_states(*ordering_parts(loader))
        if loader.reports_states and is_resumable(loader.dataset):
            made._stream = loader.dataset
        if loader.persistent_workers and self.num_workers in (0, loader.num_workers):
            made._workers = WorkerStates(self._workers.states)  # the first worker begins again
            made._workers_at_start = made._workers
            made.renewed = self.start is None
        return made

    def restore_workers(self, state: dict[str, Any]) -> None:
        """Restore the states of the workers from a `state_dict` with as many."""
        self._workers = self._restored(state.get("workers"), self._workers)
        self._workers_at_start = self._restored(state.get("workers_at_start"), self._workers_at_start)

    def _restored(self, state: dict[str, Any] | None, otherwise: WorkerStates) -> WorkerStates:
        if state is None or state["workers"] != self.num_workers:
            return otherwise
        return WorkerStates.known(state)

    def fetch(self, batches: Iterator[Any]) -> None:
        """Read the next batch; nothing is added to `ahead` at the end."""
        before = self._before() if self.tracked else None
        batch = next(batches, _NOTHING)
        if batch is _NOTHING:
            return
        if isinstance(batch, Fetched):
            self._workers = self._workers.after(batch)
            batch = batch.batch
        self.ahead.append(Read(batch, before))

    def hand_out(self) -> Any:
        """Return the next batch of those read."""
        read = self.ahead.popleft()
        self._used.append(read.before)
        self.handed_out += 1
        return read.batch

    def worker_states(self) -> dict[str, Any]:
        """Return the states of the workers after the batches read so far."""
        return self._workers.state_dict(self.num_workers)

    def state_dict(self, loader: EpochLoader, unused: int) -> dict[str, Any]:
        """Return the position, as the loader's `state_dict`: no batch is in it, but the states to read it again."""
        befores = self._befores(unused)
        first = befores[0] if befores else None
        state: dict[str, Any] = {
            "epoch": self.epoch if self.handed_out else loader.epoch,
            "handed_out": self.handed_out - unused,
            "start": self.start,
            "renewed": self.renewed,
            "files": loader.files,
            "seed": loader.order_seed,
            "next_seed": loader.next_order_seed,
            "order": self.order,
            "order_now": part_states(*ordering_parts(loader)),
            "own_now": part_states(*drawing_parts(loader)),
            "before": [before.generators for before in befores],
            "ended": not self.ahead and (bool(befores) or not unused),
        }
        if self.num_workers > 0:
            workers = self._workers if first is None else first.workers
            state["workers"] = workers.state_dict(self.num_workers)
            state["workers_at_start"] = self._workers_at_start.state_dict(self.num_workers)
        if self.files_in_turn is not None:
            state["files_in_turn"] = self.files_in_turn
        if first is not None and first.stream is not None:
            state["stream"] = unpacked(first.stream)
        return state

    def _befores(self, unused: int) -> list[Before]:
        """Return the states before the batches that are to be read again; none if one of them is unknown."""
        befores = [read.before for read in self.ahead]
        if unused:
            befores = [*list(self._used)[-unused:], *befores]
        if len(befores) < unused or None in befores:
            return []
        return [before for before in befores if before is not None]

    def _before(self) -> Before:
        return Before(self._generators(), self._workers, self._stream_state())

    def _generators(self) -> dict[str, Any]:
        return {**capture_host_rng(), "own": owner_states(self._draws)}

    def _stream_state(self) -> bytes | None:
        if self._stream is None or self.num_workers > 0 or self.files_in_turn is not None:
            return None
        try:
            return packed(self._stream.state_dict())
        except UnsafeValueError:  # the stream has to be read from its start again
            return None


class EpochLoader(DataLoader):
    """As a `DataLoader` prepared by `accelerate`: seeded per epoch, sharded by process, one batch ahead.

    It fetches each batch before it yields the previous one. So `end_of_loader` is known while the last batch is being
    processed, and a dataset draws its random numbers at the same points as in the reference.

    Args:
        dataset: map-style dataset, or an iterable one that already yields this process's share.
        total: number of samples over all processes, None for a stream.
        samples_per_round: samples that all processes take together in a step.
        drops_last: an incomplete last round is left out.
        files: number of processes among which the files of a stream are shared out; 1 if the samples are.
        kwargs: as for `torch.utils.data.DataLoader`.
    """

    reports_states = True
    """Batches of a tracked loader may carry the states of their workers or of their stream."""

    def __init__(
        self,
        dataset: Any,
        *,
        total: int | None,
        samples_per_round: int,
        drops_last: bool = False,
        files: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset, **kwargs)
        self.epoch = 0
        self.skip_batches = 0
        self._keeps_generators = False
        self.end_of_loader = False
        self.total = total
        self.samples_per_round = samples_per_round
        self.drops_last = drops_last
        self.files = files
        self._last_batch_size = -1
        self.watcher: BatchWatcher | None = None
        self.tracked = False
        self._reading = Reading()
        self._resumption: Resumption | None = None
        self._left: dict[int, dict[str, Any]] = {}

    @property
    def whole_dataset(self) -> Any:
        """The dataset of all processes; `dataset` may be this process's share of it."""
        return self.dataset.dataset if isinstance(self.dataset, IterableShard) else self.dataset

    @property
    def total_batch_size(self) -> int:
        """As of a loader that `accelerate` prepared: samples that all processes take together in a step."""
        return self.samples_per_round

    @property
    def total_dataset_length(self) -> int:
        """As of a loader that `accelerate` prepared: samples over all processes; a TypeError for a stream."""
        return len(self.whole_dataset)

    @property
    def handed_out(self) -> int:
        """Return how many batches of the current epoch were handed out; Lightning reads streams one batch ahead."""
        return self._reading.handed_out

    @property
    def remainder(self) -> int:
        """Samples in the last, shorter round over all processes; 0 if it is a full one, -1 if unknown.

        For a stream it is known when the last batch has been handed out.
        """
        if self.drops_last:
            return -1
        if self.total is not None:
            return self.total % self.samples_per_round
        return getattr(self.dataset, "last_round", self._last_batch_size) if self.end_of_loader else -1

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the batch sampler, its sampler and the dataset, where they have `set_epoch`."""
        self.epoch = epoch
        for part in (self.batch_sampler, getattr(self.batch_sampler, "sampler", None), self.dataset):
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)

    def skip(self, batches: int, blanks: int = 0, *, keep_generators: bool = False) -> None:
        """Skip batches at the start of the next iteration; map-style datasets load none of them.

        Args:
            batches: how many.
            blanks: see `SkippingBatchSampler.blanks`.
            keep_generators: leave the global generators as they are when the first batch is handed out: what is drawn
                until then was drawn before the interruption.
        """
        self._keeps_generators = keep_generators
        if isinstance(self.batch_sampler, SkippingBatchSampler):
            self.batch_sampler.skip, self.batch_sampler.blanks = batches, blanks
        else:
            self.skip_batches = batches

    @property
    def order_seed(self) -> Any:
        """Return the seed of this iteration's order; None if the global generator gives it."""
        return getattr(getattr(self.batch_sampler, "sampler", None), "seed", None)

    @order_seed.setter
    def order_seed(self, seed: Any) -> None:
        batches: Any = self.batch_sampler
        sampler: Any = getattr(batches, "sampler", None)
        if isinstance(seed, torch.Tensor) and getattr(sampler, "generator", seed) is None:
            # Saved with several processes, which draw the order from a generator of its own.
            sampler.generator = torch.Generator()
            sampler = batches.sampler = SharedOrderSampler(sampler)
        if seed is not None and self.order_seed is not None:
            sampler.seed = seed
        elif isinstance(sampler, SharedOrderSampler):  # saved with one process, which draws from the global generator
            sampler.sampler.generator = None

    @property
    def next_order_seed(self) -> Any:
        """Return the seed of the next iteration's order."""
        return getattr(getattr(self.batch_sampler, "sampler", None), "next_seed", self.order_seed)

    def track(self) -> None:
        """Record the state for `state_dict`, from the next batch on."""
        self.tracked = True
        self._reading.tracked = True

    def state_dict(self, unused: int = 0) -> dict[str, Any]:
        """Return the position of the iteration for `load_state_dict`, in plain values and without any batch.

        Args:
            unused: how many of the batches handed out last were not used, and are to be handed out again; at most 2.
        """
        return self._reading.state_dict(self, unused)

    def load_state_dict(self, state: dict[str, Any], on_ready: Callable[[], None] | None = None) -> bool:
        """Resume from a `state_dict` at the next iteration; at the end of an epoch that is the next epoch.

        Args:
            state: of a loader that read the same data, in batches of the same size.
            on_ready: called when nothing more has to be drawn or read to get there.

        Returns:
            whether `on_ready` will be called; it is not at the start of an epoch, nor if the state does not determine
            the next batch.
        """
        if not is_between_epochs(state):
            return self.resume(state, on_ready)
        self.set_epoch(state["epoch"] + (state["handed_out"] > 0))
        self.begin_epoch_after(state)
        return False

    def resume(self, state: dict[str, Any], on_ready: Callable[[], None] | None = None) -> bool:
        """As `load_state_dict`, but at the end of an epoch the next iteration is empty."""
        self._resumption = Resumption(state, on_ready)
        return self._resumption.is_exact

    @property
    def has_workers(self) -> bool:
        """Return whether persistent workers have been started, so that their seed has been drawn."""
        return self.persistent_workers and self._iterator is not None

    def end_workers(self) -> None:
        """End persistent workers now. Left to the garbage collector, each of them takes torch five seconds."""
        self._iterator = None

    @property
    def worker_states(self) -> dict[str, Any] | None:
        """Return the states of the persistent workers, for `had_workers`; None without such workers."""
        return self._reading.worker_states() if self.has_workers else None

    def had_workers(self, states: dict[str, Any] | None) -> None:
        """Start as if persistent workers had run before: draw no seed for them, and restore their states.

        Args:
            states: `worker_states`.
        """
        if not self.persistent_workers or states is None or states["workers"] != self.num_workers:
            return
        states = {**states, "last": None}
        begun = {
            "epoch": self.epoch,
            "handed_out": 0,
            "start": None,
            "renewed": False,
            "seed": self.order_seed,
            "before": [],
            "ended": False,
            "workers": states,
            "workers_at_start": states,
        }
        self._resumption = Resumption(begun, None)

    def begin_epoch_after(self, state: dict[str, Any]) -> None:
        """Start the next epoch as after one that ended in this `state_dict`, with persistent workers restored."""
        self.order_seed = state["next_seed"]
        restore_parts(state.get("order_now"), *ordering_parts(self))
        self.had_workers(state.get("workers"))
        restore_own_now(state, self)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] - a generator is all that a loop needs
        resumption, self._resumption = self._resumption, None
        self.set_epoch(self.epoch if resumption is None else resumption.epoch)
        self.end_of_loader = False
        if self.total is not None:
            self.total = len(cast(Sized, self.dataset))  # which may have grown since the last epoch
        kept_generators = capture_host_rng() if self._keeps_generators else None
        self._keeps_generators = False
        reading = self._reading = self._reading.next_epoch(self, tracked=self.tracked)
        batches = self._start(reading) if resumption is None else resumption.start(self, reading)
        if not reading.ahead and resumption is None:  # there is no data; a resumed epoch may be at its end
            return

        while reading.ahead:
            # A resumed iteration may have read two batches again.
            if len(reading.ahead) == 1:
                reading.fetch(batches)
            if kept_generators is not None:
                restore_host_rng(kept_generators)
                kept_generators = None
            self.end_of_loader = len(reading.ahead) == 1
            batch = reading.hand_out()
            if self.end_of_loader:
                self._last_batch_size = find_batch_size(batch) or -1
            if self.watcher is not None:
                batch = self.watcher.handed_out(self, batch)
            yield batch

        self.epoch += 1
        if self.watcher is not None:
            self.watcher.ended(self)

    def _start(self, reading: Reading) -> Iterator[Any]:
        skip, self.skip_batches = self.skip_batches, 0
        batches = itertools.islice(self._batches(), skip, None)
        reading.fetch(batches)
        return batches

    def _batches(self) -> Iterator[Any]:
        """Iterate over the batches of this process; those of a tracked loader carry the states of the workers."""
        if not (self.tracked and self.reports_states and self.num_workers > 0):
            return batches_of(self)
        size = None if self.batch_sampler is None else self.batch_size
        return batches_of(self, ReportingCollate(self.collate_fn, size, self._left))

    def batches_resumed(
        self,
        worker_init_fn: Callable[[int], None] | None,
        *,
        draws_seed: bool = True,
        num_workers: int | None = None,
        dataset: Any = None,
    ) -> Iterator[Any]:
        """Return the batches as an interrupted iteration yielded them.

        Args:
            worker_init_fn: sets the workers up in place of the loader's own.
            draws_seed: whether the seed of the workers was drawn from the global generator in this epoch.
            num_workers: how many workers read, in place of the loader's own number.
            dataset: what is read, in place of the loader's dataset.
        """
        replaced: dict[str, Any] = {}
        if worker_init_fn is not None:
            replaced["worker_init_fn"] = worker_init_fn
        if not draws_seed:
            replaced["generator"] = torch.Generator()
        if num_workers is not None and num_workers != self.num_workers:
            replaced |= {"num_workers": num_workers, "persistent_workers": False}
            replaced["prefetch_factor"] = self.prefetch_factor or 2
        if dataset is not None:
            replaced["dataset"] = dataset
        attributes = vars(self)  # torch lets nobody set some of them
        given = {name: attributes[name] for name in replaced}
        attributes.update(replaced)
        self._left = getattr(worker_init_fn, "states", {})
        try:
            return self._batches()
        finally:
            attributes.update(given)
            self._left = {}
