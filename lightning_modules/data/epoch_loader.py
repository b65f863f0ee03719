"""DataLoader with epoch seeding, sharding by process, one batch of lookahead, and a position
that can be restored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..common.nested import find_batch_size
from ..common.safe_serialization import UnsafeValueError
from ..common.seeding import capture_host_rng, restore_host_rng
from .batch_samplers import BatchesAfter
from .iteration import batches_of
from .loader_state import as_written_now, has_no_generator, is_between_epochs, skip_items
from .samplers import IterableShard, shared_in_turn
from .stateful_parts import Draws, drawing_parts, ordering_parts, part_states, restore_parts
from .worker_state import (
    ENDED,
    Fetched,
    ReportingCollate,
    ResumedWorkers,
    WorkerStates,
    is_resumable,
    packed,
    unpacked,
)

_log = logging.getLogger(__name__)

_NOTHING: Any = object()
"""Returned in place of a batch after the last one."""


_UNKNOWN = WorkerStates()


class BatchWatcher(Protocol):
    """Observer of the batches that a loader yields."""

    def handed_out(self, loader: EpochLoader, batch: Any) -> Any:
        """Return the batch to yield; `loader.end_of_loader` says whether it is the last one."""
        ...

    def ended(self, loader: EpochLoader) -> None:
        """Called at the end of an iteration over a loader."""
        ...


class Before(NamedTuple):
    """The state of a loader before it read a batch, from which it reads that batch again."""

    generators: dict[str, Any]
    """The global generators, and the states of collator and dataset ("own")."""
    workers: WorkerStates
    stream: bytes | None
    """State of a resumable stream that is read in this process, packed."""


@dataclass
class Reading:
    """The position of one iteration over a loader.

    Attributes:
        epoch: number of the epoch.
        num_workers: workers that read; a resumed pass over a stream keeps those that it began with.
        files_in_turn: the arguments of `FilesInTurn`, if a resumed pass is read by one.
        batches: gives the batches that are not read yet.
        handed_out: batches yielded so far.
        ahead: the batches that were read after them, one as in the reference, or none at the end;
            each with its `Before`, which is None of a loader that is not tracked.
        used: what was before the batches handed out last: Lightning may hold two that no step was
            taken on.
        draws: the global generators, the collator and the dataset.
        stream: a dataset that is a resumable stream, and read in this process.
        start: the generators at the start of the iteration, from which its order and worker seeds
            can be redrawn; None if it was not tracked then.
        order: the states of the loader's samplers at that time; None likewise.
        draws_seed: the seed of the workers is drawn in this iteration; persistent ones are started
            by the first one.
        workers: the states of the workers after the batches read so far.
        workers_at_start: those at the start.
    """

    epoch: int
    num_workers: int
    files_in_turn: list[int] | None = None
    batches: Iterator[Any] = field(default_factory=lambda: iter(()))
    handed_out: int = 0
    ahead: deque[tuple[Any, Before | None]] = field(default_factory=deque)
    used: deque[Before | None] = field(default_factory=lambda: deque(maxlen=2))
    draws: Draws = field(default_factory=Draws)
    stream: Any = None
    start: dict[str, Any] | None = None
    order: list[dict[str, Any]] | None = None
    draws_seed: bool = True
    workers: WorkerStates = _UNKNOWN
    workers_at_start: WorkerStates = _UNKNOWN

    def befores(self, unused: int) -> list[Before]:
        """Return what was before the batches to read again; nothing if it is unknown for one of
        them.

        Args:
            unused: how many of the batches handed out last are to be handed out again.
        """
        befores = [before for _, before in self.ahead]
        if unused > 0:
            befores = [*list(self.used)[-unused:], *befores]
        if len(befores) < unused:
            return []
        known = [before for before in befores if before is not None]
        return known if len(known) == len(befores) else []


class EpochLoader(DataLoader):
    """As a `DataLoader` prepared by `accelerate`: seeded per epoch, sharded by process, one batch
    ahead.

    It fetches each batch before it yields the previous one. So `end_of_loader` is known while the
    last batch is being processed, and a dataset draws its random numbers at the same points as in
    the reference.

    Args:
        dataset: map-style dataset, or an iterable one that already yields this process's share.
        total: number of samples over all processes, None for a stream.
        samples_per_round: samples that all processes take together in a step.
        drops_last: an incomplete last round is left out.
        files: number of processes among which the files of a stream are shared out; 1 if the
            samples are.
        kwargs: as for `torch.utils.data.DataLoader`.

    Attributes:
        epoch: of the next iteration.
        end_of_loader: the batch handed out last is the last one.
        watcher: sees each batch before it is handed out.
        tracked: the state before each batch is recorded for `state_dict`, from the next batch on.
    """

    reports_states = True
    """Batches of a tracked loader may carry the states of their workers or of their stream."""

    batches_of_round = 1
    """Batches of the batch sampler for each batch that is handed out."""

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
        self.end_of_loader = False
        self.total = total
        self.samples_per_round = samples_per_round
        self.drops_last = drops_last
        self.files = files
        self.watcher: BatchWatcher | None = None
        self.tracked = False
        self._last_batch_size = -1
        self._skipped = 0
        self._reading = Reading(0, self.num_workers)
        self._state: dict[str, Any] | None = None
        """Where the next iteration resumes."""
        self._has_begun_workers = False
        """Persistent workers were started, here or before an interruption."""
        self._saved_of_workers: dict[int, dict[str, Any]] = {}

    @property
    def whole_dataset(self) -> Any:
        """The dataset of all processes; `dataset` may be this process's share of it."""
        return self.dataset.dataset if isinstance(self.dataset, IterableShard) else self.dataset

    @property
    def total_batch_size(self) -> int:
        """As of a loader that `accelerate` prepared: samples that all processes take together in
        a step.
        """
        return self.samples_per_round

    @property
    def total_dataset_length(self) -> int:
        """As of a loader that `accelerate` prepared: samples over all processes; a TypeError for
        a stream.
        """
        return len(self.whole_dataset)

    @property
    def handed_out(self) -> int:
        """Return how many batches of the current epoch were handed out; Lightning reads streams
        one batch ahead.
        """
        return self._reading.handed_out

    @property
    def remainder(self) -> int:
        """Samples in the last, shorter round over all processes; 0 if it is a full one, -1 if
        unknown.

        For a stream it is known when the last batch has been handed out.
        """
        if self.drops_last:
            return -1
        if self.total is not None:
            return self.total % self.samples_per_round
        return (
            getattr(self.dataset, "last_round", self._last_batch_size) if self.end_of_loader else -1
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the batch sampler, its sampler and the dataset, where they have
        `set_epoch`.
        """
        self.epoch = epoch
        for part in (
            self.batch_sampler,
            getattr(self.batch_sampler, "sampler", None),
            self.dataset,
        ):
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)

    def skip(self, batches: int) -> None:
        """Skip this many batches at the start of the next iteration; map-style datasets load
        none of them.
        """
        self._skipped = batches

    # The state, and the way back to it.

    def state_dict(self, unused: int = 0) -> dict[str, Any]:
        """Return the position for `load_state_dict`, in plain values and without any batch.

        Args:
            unused: how many of the batches handed out last were not used, and are to be handed out
                again; at most 2.
        """
        if self._state is not None:
            return self._state

        reading = self._reading
        befores = reading.befores(unused)
        state: dict[str, Any] = {
            "epoch": reading.epoch if reading.handed_out else self.epoch,
            "handed_out": reading.handed_out - unused,
            "ended": not reading.ahead and (bool(befores) or not unused),
            "start": reading.start,
            "order": reading.order,
            "order_now": part_states(*ordering_parts(self)),
            "own_now": part_states(*drawing_parts(self)),
            "before": [before.generators for before in befores],
            "renewed": reading.draws_seed,
            "files": self.files,
        }
        if reading.num_workers > 0:
            workers = befores[0].workers if befores else reading.workers
            state["workers"] = workers.state_dict(reading.num_workers)
            state["workers_at_start"] = reading.workers_at_start.state_dict(reading.num_workers)
        if reading.files_in_turn is not None:
            state["files_in_turn"] = reading.files_in_turn
        if befores and befores[0].stream is not None:
            state["stream"] = unpacked(befores[0].stream)
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, inside_epoch: bool = False) -> None:
        """Resume from a `state_dict` at the next iteration; at the end of an epoch that is the next
        epoch.

        The iteration begins at once when it is asked for, with what had been read ahead, and leaves
        the global generators as they are: what is drawn for that was drawn before the interruption.

        Args:
            state: of a loader that read the same data, in batches of the same size. With "rng" the
                global generators are restored to that.
            inside_epoch: at the end of an epoch, let the next iteration be empty, for a loop that
                is still in it.
        """
        state = as_written_now(state)
        if inside_epoch or not is_between_epochs(state):
            self._state = state
            return

        self._state = None
        restore_parts(state.get("own_now"), *drawing_parts(self))
        self.set_epoch(state["epoch"] + (state["handed_out"] > 0))
        self._restore_order(state.get("order_now"))
        self.had_workers(state.get("workers"))
        if "rng" in state:
            restore_host_rng(state["rng"])

    @property
    def worker_states(self) -> dict[str, Any] | None:
        """Return the states of the persistent workers, for `had_workers`; None if there have
        been none.
        """
        if not self._has_begun_workers:
            return None
        return self._reading.workers.state_dict(self.num_workers)

    def had_workers(self, states: dict[str, Any] | None) -> None:
        """Begin the next iteration as if persistent workers had run before: in their states, with
        no seed drawn.

        Args:
            states: `worker_states`; None, or those of another number of workers, if they are to be
                started anew.
        """
        self.end_workers()
        if self.persistent_workers and states is not None and states["workers"] == self.num_workers:
            self._has_begun_workers = True
            self._reading.workers = WorkerStates.known(states)

    def end_workers(self) -> None:
        """End persistent workers now. Left to the garbage collector, each of them takes torch
        five seconds.
        """
        self._iterator = None
        self._has_begun_workers = False
        self._reading = Reading(self.epoch, self.num_workers)

    # The iteration.

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] - a generator is all that a loop needs
        state = self._state
        self._state = None
        resumed = None if state is None else self._resumed(state)
        return self._hand_out(resumed)

    def _hand_out(self, resumed: Reading | None) -> Iterator[Any]:
        """Yield the batches of an iteration; one that is not resumed begins when its first batch
        is asked for.
        """
        reading = resumed
        if reading is None:
            reading = self._begin(self.epoch, self.num_workers)
            reading.batches = self._open(reading, self._skipped, is_whole=self._skipped == 0)
            self._skipped = 0
            self._fetch(reading)
            if not reading.ahead:  # there is no data
                return

        while reading.ahead:
            # A resumed iteration may have read two batches again.
            if len(reading.ahead) == 1:
                self._fetch(reading)
            batch, before = reading.ahead.popleft()
            reading.used.append(before)
            reading.handed_out += 1
            self.end_of_loader = not reading.ahead
            if self.end_of_loader:
                self._last_batch_size = find_batch_size(batch) or -1
            if self.watcher is not None:
                batch = self.watcher.handed_out(self, batch)
            yield batch

        self.epoch += 1
        if self.watcher is not None:
            self.watcher.ended(self)

    def _begin(
        self, epoch: int, num_workers: int, files_in_turn: list[int] | None = None
    ) -> Reading:
        """Begin an iteration of which nothing is read."""
        self.set_epoch(epoch)
        self.end_of_loader = False
        if self.total is not None:
            self.total = len(cast(Sized, self.dataset))  # which may have grown since the last epoch

        reading = Reading(epoch, num_workers, files_in_turn)
        reading.draws = Draws(*drawing_parts(self))
        if self.tracked:
            reading.start = reading.draws.state_dict()
            reading.order = part_states(*ordering_parts(self))
        if (
            num_workers == 0
            and files_in_turn is None
            and self.reports_states
            and is_resumable(self.dataset)
        ):
            reading.stream = self.dataset

        # Persistent workers keep their states, and the first of them begins again.
        if self._has_begun_workers:
            reading.draws_seed = False
            reading.workers = WorkerStates(self._reading.workers.states)
            reading.workers_at_start = reading.workers
        self._reading = reading
        return reading

    def _fetch(self, reading: Reading) -> None:
        """Read the next batch; nothing is added to `ahead` at the end."""
        before = None
        if self.tracked:
            stream = None if reading.stream is None else _packed_position(reading.stream)
            before = Before(reading.draws.state_dict(), reading.workers, stream)
        batch = next(reading.batches, _NOTHING)
        if batch is _NOTHING:
            return
        if isinstance(batch, Fetched):
            reading.workers = reading.workers.after(batch)
            batch = batch.batch
        reading.ahead.append((batch, before))

    def _restore_order(self, states: list[dict[str, Any]] | None) -> None:
        parts = ordering_parts(self)
        restore_parts(states, *parts)
        _, sampler, _ = parts
        if states is not None and has_no_generator(states, sampler):
            sampler.generator = None  # it drew from the global one, in a single process

    def _resumed(self, state: dict[str, Any]) -> Reading:
        """Begin the iteration of a `state_dict`, and read again what had been read ahead."""
        generators_now = state.get("rng") or capture_host_rng()
        reading = self._begin_again(state)
        if not is_between_epochs(state):
            reading.batches = self._open_at(reading, state)

        # Each batch that had been read ahead, with the generators as they were before it.
        for generators in state["before"]:
            reading.draws.load_state_dict(generators)
            self._fetch(reading)
        # The first batch of a state without generators; or, at the end, that there is no further
        # one.
        if state["ended"] or not state["before"]:
            self._fetch(reading)

        restore_parts(state.get("own_now"), *drawing_parts(self))
        restore_host_rng(generators_now)
        return reading

    def _begin_again(self, state: dict[str, Any]) -> Reading:
        """Begin the iteration of a `state_dict` as it began: the generators, the order, and who
        reads.
        """
        self.end_workers()
        num_workers = self.num_workers
        if isinstance(self.dataset, IterableDataset) and _workers_of(state) != num_workers:
            num_workers = _workers_of(state)
            _log.warning(
                "The stream was read by %s workers, whose batches alternate: they finish this pass "
                "over it, and the next one is read by %s.",
                num_workers,
                self.num_workers,
            )
        reading = self._begin(state["epoch"], num_workers, state.get("files_in_turn"))
        if state["start"] is not None:
            reading.draws.load_state_dict(state["start"])
        self._restore_order(state.get("order"))

        reading.handed_out = state["handed_out"]
        reading.draws_seed = state["renewed"]
        reading.start = state["start"]
        reading.order = state.get("order")
        if _workers_of(state) == num_workers > 0:
            reading.workers = WorkerStates.known(state["workers"])
            reading.workers_at_start = WorkerStates.known(state["workers_at_start"])
        self._has_begun_workers = self.persistent_workers and num_workers == self.num_workers
        return reading

    def _open_at(self, reading: Reading, state: dict[str, Any]) -> Iterator[Any]:
        """Return the batches after those that were handed out.

        Samples of a map-style dataset are not loaded for that. A stream resumes from its state;
        without one it is read again up to its position.
        """
        done = reading.handed_out
        states = reading.workers.states
        is_stream = isinstance(self.dataset, IterableDataset)
        if "stream" in state:
            cast(Any, self.dataset).load_state_dict(state["stream"])
            return self._open(reading)

        # By workers whose states are known.
        if len(states) == reading.num_workers > 0 and (
            not is_stream or _know_position(reading.workers)
        ):
            workers = reading.workers.state_dict(reading.num_workers)
            return self._open(reading, 0 if is_stream else done, workers)

        # By the process itself, or by workers that begin again.
        if not is_stream and not states:
            return self._open(reading, done)

        # From the start of the iteration.
        workers = None
        if reading.num_workers > 0:
            workers = reading.workers_at_start.state_dict(reading.num_workers)
        return skip_items(self._open(reading, 0, workers), done)

    def _open(
        self,
        reading: Reading,
        skipped: int = 0,
        workers: dict[str, Any] | None = None,
        *,
        is_whole: bool = False,
    ) -> Iterator[Any]:
        """Start whoever reads the batches of an iteration.

        Args:
            reading: the iteration.
            skipped: batches to leave out.
            workers: the states in which the workers begin.
            is_whole: it begins with the first batch of an epoch, so that persistent workers are
                started for good.
        """
        replaced: dict[str, Any] = {}
        is_stream = isinstance(self.dataset, IterableDataset)
        if is_whole and self._has_begun_workers and self._iterator is None:
            workers = reading.workers.state_dict(self.num_workers)
        if workers is not None:
            replaced["worker_init_fn"] = ResumedWorkers(workers, self.worker_init_fn)
        if not reading.draws_seed:
            replaced["generator"] = torch.Generator().manual_seed(torch.initial_seed())
        if not is_whole:
            replaced["persistent_workers"] = False
        if reading.num_workers != self.num_workers:
            replaced["num_workers"] = reading.num_workers
            replaced["prefetch_factor"] = self.prefetch_factor or 2
        if reading.files_in_turn is not None:
            replaced["dataset"] = shared_in_turn(self.dataset, *reading.files_in_turn)
            replaced["dataset"].set_epoch(reading.epoch)
        if skipped > 0 and not is_stream:
            replaced["batch_sampler"] = BatchesAfter(
                self.batch_sampler, skipped * self.batches_of_round
            )

        # torch's iterators keep what a loader has while they are made; it lets nobody set some of
        # these attributes.
        attributes = vars(self)
        original = {name: attributes[name] for name in replaced}
        attributes.update(replaced)
        self._saved_of_workers = {} if workers is None else dict(workers["states"])
        try:
            batches = self._batches()
        finally:
            attributes.update(original)
        if is_whole and self.persistent_workers:
            self._has_begun_workers = True
        return skip_items(batches, skipped) if is_stream else batches

    def _batches(self) -> Iterator[Any]:
        """Iterate over the batches of this process; those of a tracked loader carry the states
        of the workers.
        """
        if not (self.tracked and self.reports_states and self.num_workers > 0):
            return batches_of(self)
        size = None if self.batch_sampler is None else self.batch_size
        return batches_of(self, ReportingCollate(self.collate_fn, size, self._saved_of_workers))


def _packed_position(stream: Any) -> bytes | None:
    """Return the state of a resumable stream; None if it has to be read from its start again."""
    try:
        return packed(stream.state_dict())
    except UnsafeValueError:
        return None


def _workers_of(state: Mapping[str, Any]) -> int:
    """Return how many workers read, by a `state_dict`."""
    workers = state.get("workers")
    return 0 if workers is None else workers["workers"]


def _know_position(workers: WorkerStates) -> bool:
    """Return whether the streams in all workers have a state to resume from."""
    return all(
        unpacked(state.get("dataset", packed(ENDED))) != ENDED for state in workers.states.values()
    )
