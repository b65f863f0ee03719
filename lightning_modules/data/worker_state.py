"""Save and restore the generators and streams of data loader workers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..common.libraries import is_instance
from ..common.safe_serialization import UnsafeValueError, from_plain, to_plain
from ..common.seeding import capture_host_rng, equal_host_rng, restore_host_rng
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
    """Return whether a dataset is a stream that resumes exactly from its state.

    Such a stream has `state_dict` and `load_state_dict`. A shuffled `datasets.IterableDataset` has
    them too, but refills its shuffle buffer from scratch, so it must be read again from the start.
    The same applies to a stream that wraps one in its attributes `dataset` or `datasets`.
    """
    has_state = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
    if not (has_state and isinstance(dataset, IterableDataset)):
        return False
    return not any(_has_shuffle_buffer(wrapped) for _, wrapped in walk_wrapped(dataset))


def _has_shuffle_buffer(dataset: object) -> bool:
    """Return whether a dataset is a `datasets.IterableDataset` with a shuffle stage."""
    # The dataset is a tree of stages. Each wraps the previous one, or several ones to interleave or
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
"""State of an exhausted stream."""


class WorkerBatch(NamedTuple):
    """A batch from a worker, and the states of the worker after it.

    Attributes:
        batch: the batch.
        worker: index of the worker.
        states: the states that changed since the last batch: "rng" for the global generators,
            "collate_draws" and "dataset_draws" for collator and dataset, "dataset" for the position
            in a stream, and "epoch" for a `DatasetInEpoch`. They stay serialized, because few are
            ever read.
    """

    batch: Any
    worker: int
    states: dict[str, bytes]


class ReportingCollate(StopIterationSafeCollate):
    """Wrapper around a `collate_fn` that attaches the states of the worker to each batch.

    Args:
        collate: makes the batch.
        batch_size: number of samples in a full batch; None if samples are not batched.
        saved: the states to restore before the first batch of each worker, by worker index.
        epoch: the epoch of the dataset, if that is a `DatasetInEpoch`.
        reports_position: whether to report the positions of streams too.
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

        # Each worker has its own copy of this object, and restores its state before its first
        # batch.
        saved = self.saved.get(info.id, {})
        self.saved = {}
        restore_parts(saved.get("collate_draws"), self.collate)

        # Capture the states after the collator has drawn for this batch.
        batch = super().__call__(samples)
        return WorkerBatch(batch, info.id, self._changed(info.dataset, samples))

    def _changed(self, dataset: Any, samples: Any) -> dict[str, bytes]:
        """Return the states that changed since the last report.

        Args:
            dataset: the worker's copy of the dataset.
            samples: the samples of the batch.
        """
        # Serialized states are bytes, which are fast to compare.
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

        # Serializing the states of the global generators is slow, and most workers never draw from
        # them, so compare them first.
        rng = capture_host_rng()
        if self._rng is None or not equal_host_rng(rng, self._rng):
            self._rng = rng
            changed["rng"] = packed({**rng, "cpu": rng["cpu"].numpy()})
        return changed

    def _packed_position(self, stream: Any, samples: object) -> bytes:
        """Return the serialized state of a stream after these samples were read from it."""
        # Only the last batch of a stream has fewer samples.
        if isinstance(samples, list):
            sample_list = cast("list[object]", samples)
            if len(sample_list) != self.batch_size:
                return packed(ENDED)
        # A stream without a state is read from its start again.
        return packed_position(stream) or packed(ENDED)


class WorkerStates(NamedTuple):
    """The states of all workers after the batches read so far.

    Instances are immutable, because each prefetched batch refers to the instance from before it.

    Attributes:
        states: the serialized states of each worker, by worker index.
        last: the worker of the last batch.
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

        # Create new dicts, because earlier batches refer to the old ones.
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
    """`worker_init_fn` that restores the states of each worker.

    torch requests batches from its workers in turn, starting with worker 0. Therefore worker 0 gets
    the index and the states of the worker whose turn it was.

    Args:
        state: the result of `WorkerStates.state_dict`.
        worker_init_fn: the loader's own function.
    """

    def __init__(self, state: dict[str, Any], worker_init_fn: Callable[[int], None] | None) -> None:
        self.states: dict[int, dict[str, Any]] = dict(state["states"])
        self.worker_init_fn = worker_init_fn
        self.first_worker = 0
        if state["last"] is not None:
            self.first_worker = (state["last"] + 1) % state["workers"]

    def __call__(self, worker_id: int) -> None:
        """Restore the states; called in the worker, after torch has seeded it."""
        info: Any = get_worker_info()
        worker = (self.first_worker + worker_id) % info.num_workers
        if self.first_worker > 0:
            # torch has added the worker index to the seed of the epoch.
            seed = info.seed - info.id + worker
            # The worker info is read-only, but a stream that shards by `info.id` needs the resumed
            # index.
            object.__setattr__(info, "id", worker)
            object.__setattr__(info, "seed", seed)
            torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType] - untyped in torch

        # The user's function may seed generators, so restore the saved states after it.
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
    """A loader of another library, whose workers' random states are recorded.

    This is done for persistent workers of torch's loader, which outlive an iteration, and for all
    workers of torchdata's loader, whose `state_dict` does not include their generators.

    Args:
        loader: any iterable.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._states = WorkerStates({})
        """The states after the last yielded batch."""

        has_workers = getattr(loader, "num_workers", 0) > 0
        self.is_persistent: bool = has_workers and loader.persistent_workers
        self._is_torch = iterates_as_torch(loader)
        self._is_watched = has_workers and is_torchdata_loader(loader)
        if self._is_torch:
            self._is_watched = self.is_persistent

    def state_dict(self) -> dict[str, Any] | None:
        """Return the states of the workers; None if they are not recorded, or have not started."""
        if not self._states.states:
            return None
        # Workers keep their index when they resume.
        return WorkerStates(self._states.states).state_dict(self.loader.num_workers)

    def iterate(self, workers: dict[str, Any] | None = None) -> Iterator[Any]:
        """Iterate over the loader like `iteration.iterate`, and record the states of workers.

        Args:
            workers: the `state_dict` from which new workers start if their number is the same.
        """
        if not self._is_watched:
            return iterate(self.loader)

        replaced: dict[str, Any] = {}
        saved: dict[int, dict[str, Any]] = {}
        if workers is not None and workers["workers"] == self.loader.num_workers:
            saved = dict(workers["states"])
            self._states = WorkerStates.known(workers)
            # Otherwise torch would reuse running persistent workers with their current states.
            self.loader._iterator = None
            replaced["worker_init_fn"] = ResumedWorkers(workers, self.loader.worker_init_fn)
            # torch draws a seed for the new workers. The uninterrupted run drew it earlier, so the
            # global generator must not change now.
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
        """Yield the batches, and record the worker states that are attached to them."""
        for batch in batches:
            # Batches have no states if the iterator was created before recording started.
            if isinstance(batch, WorkerBatch):
                self._states = self._states.after(batch)
                yield batch.batch
            else:
                yield batch


def is_torchdata_loader(loader: object) -> bool:
    """Return whether a loader is a `StatefulDataLoader`."""
    return is_instance(loader, "torchdata.stateful_dataloader", "StatefulDataLoader")


class DatasetInEpoch:
    """Wrapper around a dataset that propagates `set_epoch` to persistent workers.

    Persistent workers keep their copies of the dataset between epochs, so a call in the training
    process does not reach them.

    Args:
        dataset: a dataset whose `set_epoch` was called for the epoch.
        epoch: the epoch in which workers start.
        saved: the states from which workers start, by worker index.

    Attributes:
        epoch: the epoch for the workers, in shared memory.
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
        """Read the samples of a batch, like torch's fetcher."""
        self._enter_epoch()
        get_samples = getattr(self.dataset, "__getitems__", None)
        if get_samples:
            return get_samples(indices)
        return [self.dataset[index] for index in indices]

    def __iter__(self) -> Iterator[Any]:
        """Start an epoch of a stream."""
        self._enter_epoch()
        return iter(self.dataset)

    def reveal(self, worker_id: int, then: Callable[[int], None] | None = None) -> None:
        """Make `get_worker_info` return the unwrapped dataset; used as a `worker_init_fn`.

        Args:
            worker_id: index of the worker.
            then: another `worker_init_fn`, called afterwards.
        """
        # The worker info is read-only.
        object.__setattr__(get_worker_info(), "dataset", self.dataset)
        if then is not None:
            then(worker_id)

    def _enter_epoch(self) -> None:
        """Call `set_epoch` of the worker's copy once per epoch."""
        # The state of a resumed worker may be from the previous epoch.
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
        UnsafeValueError: the value cannot be stored in a checkpoint.
    """
    return pickle.dumps(to_plain(value))


def packed_position(stream: Any) -> bytes | None:
    """Serialize the state of a resumable stream; None if it cannot be stored in a checkpoint."""
    try:
        return packed(stream.state_dict())
    except UnsafeValueError:
        return None


def unpacked(value: bytes) -> Any:
    """Deserialize a value that this process or one of its workers has passed to `packed`."""
    return from_plain(pickle.loads(value))
