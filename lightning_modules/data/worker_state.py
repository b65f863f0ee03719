"""States of the worker processes of data loaders: their generators and streams."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..common.libraries import is_instance
from ..common.safe_serialization import UnsafeValueError, from_plain, to_plain
from ..common.seeding import capture_host_rng, restore_host_rng, same_rng
from ..common.stop_iteration import stop_iteration_guard
from .iteration import (
    StopIterationSafeCollate,
    batches_of,
    iterate,
    iterates_as_torch,
    replaced_attributes,
)
from .stateful_parts import part_states, restore_parts, walk_wrapped


def is_resumable(dataset: Any) -> bool:
    """Return whether a dataset is a stream that resumes from its state with the very same samples.

    Such a stream has `state_dict` and `load_state_dict`. A `datasets.IterableDataset` that shuffles
    has them too, but refills its shuffle buffer from scratch, so it has to be read again from the
    start. The same holds for a stream that wraps one in its attributes `dataset` or `datasets`.
    """
    has_state = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
    if not (has_state and isinstance(dataset, IterableDataset)):
        return False
    return not any(_has_shuffle_buffer(wrapped) for _, wrapped in walk_wrapped(dataset))


def _has_shuffle_buffer(dataset: object) -> bool:
    """Return whether a dataset is a `datasets.IterableDataset` that shuffles in any stage."""
    # The dataset is a tree of stages: each wraps the one before, or several ones to interleave or
    # concatenate.
    stages: list[Any] = [getattr(dataset, "_ex_iterable", None)]
    while stages:
        stage = stages.pop()
        if "Shuffled" in type(stage).__name__:
            return True
        if hasattr(stage, "ex_iterable"):
            stages.append(stage.ex_iterable)
        stages.extend(getattr(stage, "ex_iterables", ()))
    return False


ENDED = "ended"
"""State of a stream that has been read to its end."""


class WorkerBatch(NamedTuple):
    """A batch from a worker, and the states of the worker after it.

    Attributes:
        batch: the batch.
        worker: index of the worker.
        states: the states that changed since the last batch: "rng" of the global generators,
            "collate_draws" and "dataset_draws" of collator and dataset, "dataset" the position in a
            stream, "epoch" of a `DatasetInEpoch`. They stay packed, because few are ever read.
    """

    batch: Any
    worker: int
    states: dict[str, bytes]


class ReportingCollate(StopIterationSafeCollate):
    """Wrapper around a `collate_fn` that attaches the states of the worker to each batch.

    Args:
        collate: makes the batch.
        batch_size: samples of a full batch, None where samples are not batched.
        saved: by index of the worker, the states to restore before its first batch.
        epoch: the epoch of the dataset, if that is a `DatasetInEpoch`.
        reports_position: report the positions of streams, too.
    """

    def __init__(
        self,
        collate: Callable[[Any], Any],
        batch_size: int | None = None,
        saved: dict[int, dict[str, Any]] | None = None,
        *,
        epoch: torch.Tensor | None = None,
        reports_position: bool = True,
    ) -> None:
        super().__init__(collate)
        self.batch_size = batch_size
        self.saved = saved or {}
        self.epoch = epoch
        self.reports_position = reports_position
        self._reported: dict[str, bytes] = {}
        self._rng: dict[str, Any] | None = None

    @stop_iteration_guard
    def __call__(self, samples: Any) -> Any:
        """Return the batch and the states of the worker after it."""
        info: Any = get_worker_info()

        # Each worker has its own copy of this object, and restores its state before the first
        # batch.
        saved = self.saved.get(info.id, {})
        self.saved = {}
        restore_parts(saved.get("collate_draws"), self.collate)

        # The states are taken after the collator has drawn for this batch.
        batch = super().__call__(samples)
        return WorkerBatch(batch, info.id, self._changed(info.dataset, samples))

    def _changed(self, dataset: Any, samples: Any) -> dict[str, bytes]:
        """Return the states that changed since the last report.

        Args:
            dataset: the worker's copy.
            samples: the samples of the batch.
        """
        # Packed states are bytes, which are quick to compare.
        states = {
            "collate_draws": packed(part_states(self.collate)),
            "dataset_draws": packed(part_states(dataset)),
        }
        if self.reports_position and is_resumable(dataset):
            states["dataset"] = self._packed_position(dataset, samples)
        if self.epoch is not None:
            states["epoch"] = packed(int(self.epoch))
        changed: dict[str, bytes] = {}
        for name, state in states.items():
            if state != self._reported.get(name):
                changed[name] = state
        self._reported = states

        # The states of the global generators take long to pack, and most workers never draw from
        # them, so they are compared first.
        rng = capture_host_rng()
        if self._rng is None or not same_rng(rng, self._rng):
            self._rng = rng
            changed["rng"] = packed({**rng, "cpu": rng["cpu"].numpy()})
        return changed

    def _packed_position(self, stream: Any, samples: object) -> bytes:
        """Return the packed state of a stream after these samples were read from it."""
        # Only the last batch of a stream has fewer samples.
        if isinstance(samples, list):
            sample_list = cast("list[object]", samples)
            if len(sample_list) != self.batch_size:
                return packed(ENDED)
        # Without a state the stream is read from its start again.
        return packed_position(stream) or packed(ENDED)


class WorkerStates(NamedTuple):
    """The states of all workers after the batches that were read so far.

    Objects are immutable: each prefetched batch keeps the one from before it.

    Attributes:
        states: by index of the worker, its packed states.
        last: the worker that the last batch came from.
    """

    states: Mapping[int, dict[str, bytes]]
    last: int | None = None

    @classmethod
    def known(cls, state: dict[str, Any]) -> WorkerStates:
        """Return the states of a `state_dict`."""
        states: dict[int, dict[str, bytes]] = {}
        for worker, values in state["states"]:
            states[worker] = {name: packed(value) for name, value in values.items()}
        return cls(states, state["last"])

    def after(self, fetched: WorkerBatch) -> WorkerStates:
        """Return the states after a batch."""
        if not fetched.states:
            return WorkerStates(self.states, fetched.worker)

        # New dicts, since earlier batches keep the old ones.
        states_of_worker = {**self.states.get(fetched.worker, {}), **fetched.states}
        states = {**self.states, fetched.worker: states_of_worker}
        return WorkerStates(states, fetched.worker)

    def state_dict(self, workers: int) -> dict[str, Any]:
        """Return the states for `ResumedWorkers`."""
        states: list[list[Any]] = []
        for worker, packed_states in self.states.items():
            unpacked_states = {name: unpacked(value) for name, value in packed_states.items()}
            states.append([worker, unpacked_states])
        return {"workers": workers, "last": self.last, "states": states}


class ResumedWorkers:
    """A `worker_init_fn` that restores the states of each worker.

    torch asks its workers for batches in turn and starts with worker 0. So worker 0 takes over the
    index and the states of the worker whose turn it is.

    Args:
        state: from `WorkerStates.state_dict`.
        worker_init_fn: the loader's own function.
    """

    def __init__(self, state: dict[str, Any], worker_init_fn: Callable[[int], None] | None) -> None:
        self.states: dict[int, dict[str, Any]] = dict(state["states"])
        self.worker_init_fn = worker_init_fn
        self.first_worker = 0
        if state["last"] is not None:
            self.first_worker = (state["last"] + 1) % state["workers"]

    def __call__(self, worker_id: int) -> None:
        """Called in the worker, after torch has seeded it."""
        info: Any = get_worker_info()
        worker = (self.first_worker + worker_id) % info.num_workers
        if self.first_worker > 0:
            # torch has added the index of the worker to the seed of the epoch.
            seed = info.seed - info.id + worker
            # The public object refuses changes, but a stream that shards by `info.id` has to see
            # the resumed index.
            object.__setattr__(info, "id", worker)
            object.__setattr__(info, "seed", seed)
            torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType] - untyped in torch

        # The script's own function may seed generators, so the saved states are restored after it.
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)

        state = self.states.get(worker, {})
        if "rng" in state:
            rng = state["rng"]
            cpu_state = torch.as_tensor(rng["cpu"], device="cpu")
            restore_host_rng({**rng, "cpu": cpu_state})
        restore_parts(state.get("dataset_draws"), info.dataset)
        if state.get("dataset", ENDED) != ENDED:
            info.dataset.load_state_dict(state["dataset"])


class WatchedLoader:
    """A loader of another library, and the random states of its workers.

    Watched are the persistent workers of torch's loader, which outlive an iteration, and all
    workers of torchdata's, whose `state_dict` lacks their generators.

    Args:
        loader: any iterable.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._states = WorkerStates({})
        """The states after the batch that was yielded last."""

        has_workers = getattr(loader, "num_workers", 0) > 0
        self.is_persistent: bool = has_workers and loader.persistent_workers
        self._is_torch = iterates_as_torch(loader)
        self._is_watched = has_workers and is_torchdata_loader(loader)
        if self._is_torch:
            self._is_watched = self.is_persistent

    def state_dict(self) -> dict[str, Any] | None:
        """Return the states of the workers; None if they are not watched, or have not begun."""
        if not self._states.states:
            return None
        # Each worker resumes as itself.
        return WorkerStates(self._states.states).state_dict(self.loader.num_workers)

    def iterate(self, workers: dict[str, Any] | None = None) -> Iterator[Any]:
        """Iterate over the loader as `iteration.iterate` does, and record the states of workers.

        Args:
            workers: the `state_dict` from which new workers start, if their number is the same.
        """
        if not self._is_watched:
            return iterate(self.loader)

        replaced: dict[str, Any] = {}
        saved: dict[int, dict[str, Any]] = {}
        if workers is not None and workers["workers"] == self.loader.num_workers:
            saved = dict(workers["states"])
            self._states = WorkerStates.known(workers)
            # Otherwise torch would reuse persistent workers that are running, with their states.
            self.loader._iterator = None
            replaced["worker_init_fn"] = ResumedWorkers(workers, self.loader.worker_init_fn)
            # torch draws a seed for the new workers. The uninterrupted run drew it earlier, so it
            # must not come from the global generator.
            replaced["generator"] = torch.Generator().manual_seed(torch.initial_seed())

        collate = ReportingCollate(self.loader.collate_fn, saved=saved, reports_position=False)
        with replaced_attributes(self.loader, **replaced):
            if self._is_torch:
                batches = batches_of(self.loader, collate)
            else:
                with replaced_attributes(self.loader, collate_fn=collate):
                    batches = iter(self.loader)
        return self._watched(batches)

    def _watched(self, batches: Iterator[object]) -> Iterator[Any]:
        """Yield the batches, and record the states of workers that come with them."""
        for batch in batches:
            # Batches have no states if the loader made the iterator before it was watched.
            if isinstance(batch, WorkerBatch):
                self._states = self._states.after(batch)
                yield batch.batch
            else:
                yield batch


def is_torchdata_loader(loader: object) -> bool:
    """Return whether a loader is a `StatefulDataLoader`."""
    return is_instance(loader, "torchdata.stateful_dataloader", "StatefulDataLoader")


class DatasetInEpoch:
    """Wrapper around a dataset that calls `set_epoch` in persistent workers.

    Persistent workers keep their copies of the dataset from one epoch to the next, so that a call
    in the training process does not reach them.

    Args:
        dataset: a dataset with `set_epoch`, which was called for the epoch.
        epoch: the epoch in which the workers start.
        saved: by index of the worker, the states from which it starts.

    Attributes:
        epoch: in shared memory, the epoch that the workers are to read.
    """

    def __init__(self, dataset: Any, epoch: int, saved: dict[int, dict[str, Any]]) -> None:
        self.dataset = dataset
        self.epoch = torch.tensor(epoch, device="cpu")
        self.epoch.share_memory_()
        self._epoch_at_start = epoch
        self._saved = saved
        self._epoch_here: int | None = None
        """The epoch of this worker's copy of the dataset; None before its first batch."""

    def __getitem__(self, index: Any) -> Any:
        """Read a sample."""
        self._enter_epoch()
        return self.dataset[index]

    def __getitems__(self, indices: list[Any]) -> Any:
        """Read the samples of a batch, as torch does."""
        self._enter_epoch()
        get_samples = getattr(self.dataset, "__getitems__", None)
        if get_samples:
            return get_samples(indices)
        return [self.dataset[index] for index in indices]

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch of a stream."""
        self._enter_epoch()
        return iter(self.dataset)

    def reveal(self, worker_id: int, then: Callable[[int], None] | None = None) -> None:
        """Let `get_worker_info` return the dataset itself (a `worker_init_fn`).

        Args:
            worker_id: index of the worker.
            then: another `worker_init_fn`, called afterwards.
        """
        # The public object refuses changes.
        object.__setattr__(get_worker_info(), "dataset", self.dataset)
        if then is not None:
            then(worker_id)

    def _enter_epoch(self) -> None:
        """Call `set_epoch` of the worker's copy, once in each epoch."""
        # The state of a resumed worker may belong to the epoch before.
        if self._epoch_here is None:
            info: Any = get_worker_info()
            saved = self._saved.get(info.id, {})
            self._epoch_here = saved.get("epoch", self._epoch_at_start)

        epoch = int(self.epoch)
        if epoch != self._epoch_here:
            self.dataset.set_epoch(epoch)
            self._epoch_here = epoch


def packed(value: Any) -> bytes:
    """Serialize a value.

    Raises:
        UnsafeValueError: a checkpoint could not hold it.
    """
    return pickle.dumps(to_plain(value))


def packed_position(stream: Any) -> bytes | None:
    """Serialize the state of a resumable stream; return None if a checkpoint cannot hold it."""
    try:
        return packed(stream.state_dict())
    except UnsafeValueError:
        return None


def unpacked(value: bytes) -> Any:
    """Return the value that this process, or one of its workers, passed to `packed`."""
    return from_plain(pickle.loads(value))
