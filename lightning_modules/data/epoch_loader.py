"""DataLoader that is seeded per epoch, sharded over processes, and can resume from its position."""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..common.nested import count_rows
from ..common.seeding import capture_host_rng, restore_host_rng
from .batch_samplers import SkipBatchSampler, samples_in_epoch
from .iteration import batches_of, replaced_attributes
from .loader_state import (
    is_between_epochs,
    skip_items,
    workers_in,
)
from .samplers import IterableShard, interleave_shards
from .stateful_parts import (
    drawing_parts,
    has_new_generator,
    loader_parts,
    part_states,
    random_states,
    restore_parts,
    restore_random_states,
)
from .stream_passes import StreamPasses
from .worker_state import (
    ENDED,
    DatasetInEpoch,
    ReportingCollate,
    ResumedWorkers,
    WorkerBatch,
    WorkerStates,
    is_resumable,
    packed_position,
    unpacked,
)

_log = logging.getLogger(__name__)

_NO_BATCH: Any = object()
"""Marks the end of the batches."""

_NO_WORKER_STATES = WorkerStates({})
"""Used if no worker has sent a batch yet, or if the states of all workers are unknown."""


class BatchWatcher(Protocol):
    """Observer of the batches that a loader yields."""

    def on_batch(self, loader: EpochLoader, batch: object) -> Any:
        """Return the batch to yield; `loader.end_of_loader` is True for the last one."""
        ...

    def on_end(self, loader: EpochLoader) -> None:
        """Handle the end of an iteration over a loader."""
        ...


class StateBeforeBatch(NamedTuple):
    """The state of a loader before it read a batch, from which it can read the same batch again.

    Attributes:
        generators: the global generators, and the states of collator and dataset ("own").
        workers: the states of the workers.
        stream: the packed state of a resumable stream that is read in this process.
    """

    generators: dict[str, Any]
    workers: WorkerStates
    stream: bytes | None


@dataclass
class IterationPosition:
    """The position of one iteration over a loader.

    Attributes:
        epoch: number of the epoch.
        num_workers: number of workers that read. A resumed pass over a stream keeps the number with
            which it started.
        files_in_turn: the arguments of `InterleavedShards`, if one reads a resumed pass.
        unread: iterator over the batches that have not been read.
        batches_yielded: number of batches yielded so far.
        prefetched: the prefetched batches, each with the state before it: one batch as in the
            reference, none at the end. The state is None if the loader is not tracked.
        before_yielded: the states before the last two yielded batches, because Lightning may hold
            two batches that no step has used yet.
        resumable_stream: the dataset, if it is a resumable stream that is read in this process.
        start_states: the states of the generators and of all parts of the loader at the start of
            the iteration, from which its order and worker seeds can be redrawn; None if it was not
            tracked then.
        stream_at_start: the state of a stream at the start of the iteration, if it is read in this
            process.
        draws_worker_seed: whether this iteration draws the seed of the workers. Persistent workers
            are only seeded by the iteration that starts them.
        worker_states: the states of the workers after the batches read so far.
        worker_states_at_start: the states of the workers at the start of the iteration.
    """

    epoch: int
    num_workers: int
    files_in_turn: list[int] | None = None
    unread: Iterator[Any] = field(default_factory=lambda: iter(()))
    batches_yielded: int = 0
    prefetched: deque[tuple[Any, StateBeforeBatch | None]] = field(
        default_factory=deque[tuple[Any, StateBeforeBatch | None]]
    )
    before_yielded: deque[StateBeforeBatch | None] = field(default_factory=lambda: deque(maxlen=2))
    resumable_stream: Any = None
    start_states: dict[str, Any] | None = None
    stream_at_start: Any = None
    draws_worker_seed: bool = True
    worker_states: WorkerStates = _NO_WORKER_STATES
    worker_states_at_start: WorkerStates = _NO_WORKER_STATES


class EpochLoader(DataLoader[Any]):
    """DataLoader that is seeded per epoch, sharded over the processes, and prefetches one batch.

    Works like a `DataLoader` prepared by `accelerate`.

    It fetches each batch before it yields the previous one. This way `end_of_loader` is known while
    the last batch is processed, and a dataset draws its random numbers at the same points as in the
    reference.

    Args:
        dataset: a map-style dataset, or an iterable one that is already sharded.
        total: number of samples over all processes; None for a stream.
        samples_per_round: number of samples per round, over all processes.
        drops_last: whether an incomplete last round is dropped.
        files: number of processes over which the files of a stream are divided; 1 if its samples
            are divided.
        kwargs: arguments of `torch.utils.data.DataLoader`.

    Attributes:
        epoch: the epoch of the next iteration.
        end_of_loader: whether the last yielded batch is the last one of the epoch.
        watcher: receives each batch before it is yielded.
        tracked: whether the state before each batch is recorded for `state_dict`, from the next
            batch on.
    """

    # Untyped in torch.
    dataset: Any
    batch_sampler: Any
    collate_fn: Callable[[Any], Any]
    generator: torch.Generator | None

    reports_states = True
    """Whether batches of a tracked loader may carry the states of their workers or of their stream.
    """

    batches_of_round = 1
    """Number of batches of the batch sampler per yielded batch."""

    ends_with_stream = False
    """Whether `len` includes all batches of a stream, for a loop that stops after that number."""

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
        # torch leaves the types of some parameters open.
        super().__init__(dataset, **kwargs)  # pyright: ignore[reportUnknownMemberType] - untyped in torch
        self.epoch = 0
        self.end_of_loader = False
        self.total = total
        self.samples_per_round = samples_per_round
        self.drops_last = drops_last
        self.files = files
        self.watcher: BatchWatcher | None = None
        self.tracked = False
        self._last_batch_size = -1
        self._batches_to_skip = 0
        self._position = IterationPosition(0, self.num_workers)
        self._state_to_resume: dict[str, Any] | None = None
        """The `state_dict` from which the next iteration resumes."""
        self._has_started_workers = False
        """Whether persistent workers were started, here or before an interruption."""
        self._resumed_worker_states: dict[int, dict[str, Any]] = {}
        """State from which each worker resumes in the iteration being started, by worker index."""
        # `full_dataset` is not used, because subclasses override it.
        stream = dataset.dataset if isinstance(dataset, IterableShard) else dataset
        self._stream_passes = StreamPasses(stream)
        self._dataset_in_epoch: DatasetInEpoch | None = None
        """The wrapper through which persistent workers read the dataset."""

    def __len__(self) -> int:
        """Return the number of batches; at most that many if `ends_with_stream`."""
        batches = super().__len__()
        # Each worker ends with an incomplete batch, of which torch only counts one.
        if self.ends_with_stream and self.num_workers > 0:
            batches += self.num_workers - 1
        return batches

    @property
    def full_dataset(self) -> Any:
        """The dataset of all processes; `dataset` may be the shard of this process."""
        if isinstance(self.dataset, IterableShard):
            return self.dataset.dataset
        return self.dataset

    @property
    def total_batch_size(self) -> int:
        """Number of samples per round, over all processes."""
        return self.samples_per_round

    @property
    def total_dataset_length(self) -> int:
        """Number of samples over all processes.

        Raises:
            TypeError: the dataset is a stream.
        """
        return len(self.full_dataset)

    @property
    def batches_yielded(self) -> int:
        """Return the number of batches yielded in the current epoch.

        Lightning prefetches one batch of a stream, so it may be one more than the number of batches
        used.
        """
        return self._position.batches_yielded

    @property
    def remainder(self) -> int:
        """Number of samples in an incomplete last round, over all processes.

        It is 0 if the last round is complete, and -1 if the number is unknown. For a stream it is
        known after the last batch was yielded.
        """
        if self.drops_last:
            return -1
        if self.total is not None:
            return self.total % self.samples_per_round
        if not self.end_of_loader:
            return -1
        return getattr(self.dataset, "last_round", self._last_batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the batch sampler, the sampler and the dataset.

        Objects without a method `set_epoch` are skipped.
        """
        self.epoch = epoch
        sampler = getattr(self.batch_sampler, "sampler", None)
        for part in (self.batch_sampler, sampler, self.dataset):
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)

    def skip(self, batches: int) -> None:
        """Skip this number of batches at the start of the next iteration.

        Samples of a map-style dataset are not loaded for skipped batches.
        """
        self._batches_to_skip = batches

    # Save the position, and resume from it.

    def state_dict(self, unused: int = 0) -> dict[str, Any]:
        """Return the position for `load_state_dict`, as plain values and without batches.

        Args:
            unused: number of batches, yielded last, that were not used and have to be yielded
                again. The generator states before them are known for at most 2 batches.
        """
        if self._state_to_resume is not None:
            return self._state_to_resume

        # Before its first iteration, the epoch of a loader is the one set by `set_epoch`.
        position = self._position
        epoch = self.epoch
        if position.batches_yielded > 0:
            epoch = position.epoch

        # Batches that were read but not used are read again when resuming. If the state before one
        # of them is unknown, they are treated as unread.
        recorded = [state for _, state in position.prefetched]
        if unused > 0:
            recorded = [*list(position.before_yielded)[-unused:], *recorded]
        states_before = [state for state in recorded if state is not None]
        if len(states_before) < max(len(recorded), unused):
            states_before = []
        knows_unused = unused == 0 or bool(states_before)
        state: dict[str, Any] = {
            "epoch": epoch,
            "handed_out": position.batches_yielded - unused,
            "ended": not position.prefetched and knows_unused,
            "start": position.start_states,
            "now": part_states(*loader_parts(self)),
            "before": [state.generators for state in states_before],
            "renewed": position.draws_worker_seed,
            "files": self.files,
        }
        # If workers read a stream, its states are part of the worker states.
        if position.num_workers == 0:
            state["stream_at_start"] = position.stream_at_start
            state["stream_now"] = self._stream_passes.state()

        # Workers and streams resume before the first batch that is read again.
        num_workers = position.num_workers
        if num_workers > 0:
            workers = position.worker_states
            if states_before:
                workers = states_before[0].workers
            state["workers"] = workers.state_dict(num_workers)
            state["workers_at_start"] = position.worker_states_at_start.state_dict(num_workers)
        if position.files_in_turn is not None:
            state["files_in_turn"] = position.files_in_turn
        if states_before and states_before[0].stream is not None:
            state["stream"] = unpacked(states_before[0].stream)
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, inside_epoch: bool = False) -> None:
        """Resume from a `state_dict` in the next iteration.

        A state from the end of an epoch resumes at the next epoch. `iter` starts the resumed
        iteration immediately, and reads the prefetched batches again. This does not change the
        global generators, because these draws happened before the interruption.

        Args:
            state: the state of a loader with the same data and batch size. If it has an entry
                "rng", the global generators are restored from it.
            inside_epoch: whether the next iteration is empty if the state is from the end of an
                epoch, for a loop that is still in that epoch.
        """
        state = dict(state)

        # The order of an interrupted epoch is redrawn when its iteration starts.
        if inside_epoch or not is_between_epochs(state):
            self._state_to_resume = state
            return

        self._state_to_resume = None
        # If no batch was yielded, the epoch has not started.
        epoch = state["epoch"]
        if state["handed_out"] > 0:
            epoch += 1
        self._stream_passes.load(state.get("stream_now"))
        self.set_epoch(epoch)
        self._restore_parts(state.get("now"))
        self.restore_workers(state.get("workers"))
        if "rng" in state:
            restore_host_rng(state["rng"])

    @property
    def worker_states(self) -> dict[str, Any] | None:
        """Return the states of the persistent workers; None if none were started."""
        if not self._has_started_workers:
            return None
        return self._position.worker_states.state_dict(self.num_workers)

    def restore_workers(self, states: dict[str, Any] | None) -> None:
        """Start the next iteration as if persistent workers had run before.

        New workers start from these states, and no seed is drawn for them.

        Args:
            states: the result of `worker_states`. Workers start from scratch if it is None, or
                contains the states of another number of workers.
        """
        self.shut_down_workers()
        if not self.persistent_workers or states is None:
            return
        if states["workers"] == self.num_workers:
            self._has_started_workers = True
            self._position.worker_states = WorkerStates.known(states)

    def shut_down_workers(self) -> None:
        """Shut down persistent workers now.

        If they are left to the garbage collector, torch waits five seconds for each of them.
        """
        self._iterator = None
        self._has_started_workers = False
        self._position = IterationPosition(self.epoch, self.num_workers)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the current iteration, which cannot be copied; a copy starts a new one."""
        position = IterationPosition(self.epoch, self.num_workers)
        return {**vars(self), "_iterator": None, "_position": position}

    # The iteration.

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] - a generator is all that a loop needs
        state = self._state_to_resume
        self._state_to_resume = None
        # Resume now instead of at the first batch, because the caller restores its generators in
        # between.
        position = None
        if state is not None:
            position = self._resume(state)
        return self._yield_batches(position)

    def _yield_batches(self, position: IterationPosition | None) -> Iterator[Any]:
        """Yield the batches of an iteration.

        Args:
            position: the position of a resumed iteration; None for a new one, which starts when its
                first batch is requested.
        """
        if position is None:
            position = self._begin(self.epoch, self.num_workers)
            skipped = self._batches_to_skip
            self._batches_to_skip = 0
            position.unread = self._stream_passes.begin(
                functools.partial(self._open, position, skipped, is_whole=skipped == 0)
            )
            self._prefetch(position)
            # As in accelerate, an empty iteration does not count as an epoch.
            if not position.prefetched:
                return

        while position.prefetched:
            # Read the next batch first, to determine whether this is the last one. A resumed
            # iteration may already have read two batches.
            if len(position.prefetched) == 1:
                self._prefetch(position)
            batch, state_before = position.prefetched.popleft()
            position.before_yielded.append(state_before)
            position.batches_yielded += 1

            self.end_of_loader = not position.prefetched
            if self.end_of_loader:
                self._last_batch_size = count_rows(batch) or -1
            if self.watcher is not None:
                batch = self.watcher.on_batch(self, batch)
            yield batch

        self.epoch += 1
        if self.watcher is not None:
            self.watcher.on_end(self)

    def _begin(
        self, epoch: int, num_workers: int, files_in_turn: list[int] | None = None
    ) -> IterationPosition:
        """Return the position at the start of an iteration, before anything is read."""
        self.set_epoch(epoch)
        self.end_of_loader = False
        if self.total is not None:
            # The length of dataset and sampler may have changed since the last epoch.
            self.total = samples_in_epoch(self.dataset, self.batch_sampler)

        position = IterationPosition(epoch, num_workers, files_in_turn)
        if self.tracked:
            position.start_states = random_states(*loader_parts(self))
            if num_workers == 0:
                position.stream_at_start = self._stream_passes.state()
        is_read_here = num_workers == 0 and files_in_turn is None and self.reports_states
        if is_read_here and is_resumable(self.dataset):
            position.resumable_stream = self.dataset

        # Persistent workers keep their states, but each iteration starts with worker 0.
        if self._has_started_workers:
            position.draws_worker_seed = False
            position.worker_states = WorkerStates(self._position.worker_states.states)
            position.worker_states_at_start = position.worker_states
        self._position = position
        return position

    def _prefetch(self, position: IterationPosition) -> None:
        """Read the next batch into `prefetched`; do nothing after the last one."""
        # Capture the state before reading the batch, because a resumed training reads it again.
        state_before = None
        if self.tracked:
            stream_state = None
            if position.resumable_stream is not None:
                stream_state = packed_position(position.resumable_stream)
            state_before = StateBeforeBatch(
                random_states(*drawing_parts(self)), position.worker_states, stream_state
            )

        batch = next(position.unread, _NO_BATCH)
        if batch is _NO_BATCH:
            return
        if isinstance(batch, WorkerBatch):
            position.worker_states = position.worker_states.after(batch)
            batch = batch.batch
        position.prefetched.append((batch, state_before))

    def _restore_parts(self, states: list[dict[str, Any]] | None) -> None:
        """Restore all parts, for the start of an iteration."""
        parts = loader_parts(self)
        restore_parts(states, *parts)

        # The states were saved in a single process, in which the sampler drew from the global
        # generator. With several processes, `build_loader` has given it a separate one.
        if states is not None and has_new_generator(parts.sampler, states):
            parts.sampler.generator = None

    def _resume(self, state: dict[str, Any]) -> IterationPosition:
        """Start the iteration of a `state_dict`, and read the prefetched batches again."""
        generators_now = state.get("rng") or capture_host_rng()
        position = self._begin_as_interrupted(state)
        if not is_between_epochs(state):
            position.unread = self._open_after_yielded(position, state)

        # Read each prefetched batch again, with the generators as they were before it.
        for generators in state["before"]:
            restore_random_states(generators, *drawing_parts(self))
            self._prefetch(position)

        # Without recorded generators, read the next batch with the current ones. At the end of an
        # epoch, this detects the end of the data.
        if state["ended"] or not state["before"]:
            self._prefetch(position)

        restore_parts(state.get("now"), *drawing_parts(self))
        restore_host_rng(generators_now)
        return position

    def _begin_as_interrupted(self, state: dict[str, Any]) -> IterationPosition:
        """Start the iteration of a `state_dict` in the same way as before the interruption.

        It uses the same generators and order, and reads a stream with the same number of workers.
        """
        self.shut_down_workers()
        num_workers = self.num_workers
        workers_before = workers_in(state)
        if isinstance(self.dataset, IterableDataset) and workers_before != num_workers:
            num_workers = workers_before
            _log.warning(
                "The checkpoint was written while %s workers read the stream. As many finish this "
                "pass over it, since batches of workers alternate; the next pass uses %s.",
                workers_before,
                self.num_workers,
            )

        # A stream that is not read again from its start is at its position, or has ended.
        if is_between_epochs(state):
            self._stream_passes.load(state.get("stream_now"))
        elif "stream" not in state:
            self._stream_passes.load(state.get("stream_at_start"))
        position = self._begin(state["epoch"], num_workers, state.get("files_in_turn"))

        # Redraw the order and the worker seeds from the generators of that time.
        if state["start"] is not None:
            restore_host_rng(state["start"])
            self._restore_parts(state["start"]["own"])

        position.batches_yielded = state["handed_out"]
        position.draws_worker_seed = state["renewed"]
        position.start_states = state["start"]
        position.stream_at_start = state.get("stream_at_start")
        if num_workers > 0 and workers_before == num_workers:
            position.worker_states = WorkerStates.known(state["workers"])
            position.worker_states_at_start = WorkerStates.known(state["workers_at_start"])
        self._has_started_workers = self.persistent_workers and num_workers == self.num_workers
        return position

    def _open_after_yielded(
        self, position: IterationPosition, state: dict[str, Any]
    ) -> Iterator[Any]:
        """Return the batches after those that were yielded before the interruption.

        Samples of a map-style dataset are not loaded for skipped batches. A stream resumes from its
        state, or is read again up to its position if it has no state.
        """
        batches_done = position.batches_yielded
        num_workers = position.num_workers
        worker_states = position.worker_states
        is_stream = isinstance(self.dataset, IterableDataset)
        if "stream" in state:
            self._stream_passes.load_position(state["stream"])
            return self._open(position)

        # Workers resume from their states if these are known. Streams in workers resume at their
        # positions, so no batches need to be skipped.
        all_known = num_workers > 0 and len(worker_states.states) == num_workers
        if all_known and not is_stream:
            return self._open(position, batches_done, worker_states.state_dict(num_workers))
        if all_known and _all_streams_resumable(worker_states):
            return self._open(position, 0, worker_states.state_dict(num_workers))

        # For a map-style dataset without worker states, it suffices to skip batches.
        if not is_stream and not worker_states.states:
            return self._open(position, batches_done)

        # Otherwise read the iteration again from its start, and drop the batches that were yielded.
        states_at_start = None
        if num_workers > 0:
            states_at_start = position.worker_states_at_start.state_dict(num_workers)
        batches = self._stream_passes.begin(
            functools.partial(self._open, position, 0, states_at_start)
        )
        return skip_items(batches, batches_done)

    def _open(
        self,
        position: IterationPosition,
        skipped: int = 0,
        workers: dict[str, Any] | None = None,
        *,
        is_whole: bool = False,
    ) -> Iterator[Any]:
        """Start torch's iterator over the batches of an iteration.

        Args:
            position: the position of that iteration.
            skipped: number of batches to skip.
            workers: the states from which workers start.
            is_whole: whether it starts with the first batch of an epoch, so that persistent workers
                are kept afterwards.
        """
        # Persistent workers of an interrupted run start from their previous states.
        replaced: dict[str, Any] = {}
        is_stream = isinstance(self.dataset, IterableDataset)
        if is_whole and self._has_started_workers and self._iterator is None:
            workers = position.worker_states.state_dict(self.num_workers)
        self._resumed_worker_states = {}
        if workers is not None:
            replaced["worker_init_fn"] = ResumedWorkers(workers, self.worker_init_fn)
            self._resumed_worker_states = dict(workers["states"])

        # The epoch of the dataset must be passed to persistent workers.
        is_read_by_workers = position.num_workers > 0 and position.files_in_turn is None
        keeps_workers = self.persistent_workers and is_read_by_workers
        if keeps_workers and hasattr(self.dataset, "set_epoch"):
            in_epoch = self._dataset_in_epoch_of(position, starts_workers=not is_whole)
            replaced["dataset"] = in_epoch
            replaced["worker_init_fn"] = functools.partial(
                in_epoch.reveal, then=replaced.get("worker_init_fn", self.worker_init_fn)
            )

        # torch always draws a seed for workers. If the uninterrupted run would not draw one, use a
        # separate generator.
        if not position.draws_worker_seed:
            replaced["generator"] = torch.Generator().manual_seed(torch.initial_seed())
        # Workers of a partial epoch exit at its end.
        if not is_whole:
            replaced["persistent_workers"] = False
        if position.num_workers != self.num_workers:
            replaced["num_workers"] = position.num_workers
            # A loader without workers has no prefetch factor; torch's default is 2.
            replaced["prefetch_factor"] = self.prefetch_factor or 2

        # Read the files in another order, or skip the first batches.
        if position.files_in_turn is not None:
            dataset = interleave_shards(self.dataset, *position.files_in_turn)
            dataset.set_epoch(position.epoch)
            replaced["dataset"] = dataset
        if skipped > 0 and not is_stream:
            batches_to_skip = skipped * self.batches_of_round
            replaced["batch_sampler"] = SkipBatchSampler(self.batch_sampler, batches_to_skip)

        with replaced_attributes(self, **replaced):
            batches = self._batches()

        if is_whole and self.persistent_workers:
            self._has_started_workers = True
        if is_stream:
            return skip_items(batches, skipped)
        return batches

    def _dataset_in_epoch_of(
        self, position: IterationPosition, *, starts_workers: bool
    ) -> DatasetInEpoch:
        """Return the dataset wrapped for persistent workers.

        Args:
            position: the position of that iteration.
            starts_workers: whether new workers are started even if persistent ones are running.
        """
        # Running workers keep the wrapper with which they were started, and read the epoch from it.
        if self._dataset_in_epoch is None or self._iterator is None or starts_workers:
            self._dataset_in_epoch = DatasetInEpoch(
                self.dataset, position.epoch, self._resumed_worker_states
            )
        self._dataset_in_epoch.epoch.fill_(position.epoch)
        return self._dataset_in_epoch

    def _batches(self) -> Iterator[Any]:
        """Iterate over the batches of this process.

        The batches of a tracked loader carry the states of the workers.
        """
        if not (self.tracked and self.reports_states and self.num_workers > 0):
            return batches_of(self)
        batch_size = None
        if self.batch_sampler is not None:
            batch_size = self.batch_size
        epoch = None
        if isinstance(self.dataset, DatasetInEpoch):
            epoch = self.dataset.epoch
        collate = ReportingCollate(
            self.collate_fn, batch_size, self._resumed_worker_states, epoch=epoch
        )
        return batches_of(self, collate)


def _all_streams_resumable(workers: WorkerStates) -> bool:
    """Return whether the streams in all workers have a state to resume from."""
    for state in workers.states.values():
        if "dataset" not in state or unpacked(state["dataset"]) == ENDED:
            return False
    return True
