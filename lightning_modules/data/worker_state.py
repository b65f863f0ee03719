"""Worker processes of data loaders: the states of their generators and streams, signals, and their end."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..common.safe_serialization import UnsafeValueError, from_plain, to_plain
from ..common.seeding import capture_host_rng, restore_host_rng, same_rng
from ..common.stop_iteration import stop_iteration_surfaces
from .iteration import SurfacingCollate
from .stateful_parts import part_states, restore_parts


def is_resumable(dataset: Any) -> bool:
    """Return whether a dataset is a stream that can save its position and resume from it with the very same samples.

    It has `state_dict` and `load_state_dict`. A `datasets.IterableDataset` that shuffles has them too, but fills its
    buffer anew: it has to be read from the start to be the same.
    """
    if not isinstance(dataset, IterableDataset):
        return False
    if not (hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")):
        return False
    stage = getattr(dataset, "_ex_iterable", None)
    while stage is not None:
        if "Shuffled" in type(stage).__name__:
            return False
        stage = getattr(stage, "ex_iterable", None)
    return True


ENDED = "ended"
"""State of a stream that has been read to its end."""


class Fetched(NamedTuple):
    """A batch from a worker, and the states of the worker after it."""

    batch: Any
    worker: int
    news: dict[str, bytes]
    """`rng` if the global generators moved since the last batch, `collate_draws` and `dataset_draws` if the states
    of collator and dataset changed, `dataset` if it has a state. Packed, since hardly any of them is ever read."""


class ReportingCollate(SurfacingCollate):
    """Wrapper around a `collate_fn` that attaches the states of the worker to each batch.

    Args:
        collate: makes the batch.
        batch_size: samples of a full batch, None where samples are not put together.
        left: by worker, the saved states to restore.
    """

    def __init__(
        self, collate: Callable[[Any], Any], batch_size: int | None, left: dict[int, dict[str, Any]] | None = None
    ) -> None:
        super().__init__(collate)
        self.batch_size = batch_size
        self.left = left or {}
        self._rng: Any = None
        self._drawn: dict[str, bytes] = {}

    @stop_iteration_surfaces
    def __call__(self, samples: Any) -> Any:
        """Return the batch and the states of the worker after it; no batch for a blank, which has no samples."""
        info: Any = get_worker_info()
        self._restore_collator(info.id)
        if isinstance(samples, list) and not samples:
            return Fetched(None, info.id, {})

        # The states are taken after the collator has drawn for this batch.
        batch = super().__call__(samples)
        news = self._news(info.dataset, samples)
        return Fetched(batch, info.id, news)

    def _restore_collator(self, worker: int) -> None:
        """Restore the generators of this worker's copy of the collator, before its first batch."""
        left = self.left.get(worker, {})
        self.left = {}
        restore_parts(left.get("collate_draws"), self.collate)

    def _news(self, dataset: Any, samples: Any) -> dict[str, bytes]:
        """Return the states that differ from those sent last; that of a stream in any case."""
        news = {}

        # The global generators: most workers never draw from them.
        rng = capture_host_rng()
        if self._rng is None or not same_rng(rng, self._rng):
            self._rng = rng
            # As an array: a tensor would be sent through a shared-memory segment.
            as_array = rng["cpu"].numpy()
            news["rng"] = packed({**rng, "cpu": as_array})

        # Generators and states of the collator and of the dataset.
        owners = {"collate_draws": self.collate, "dataset_draws": dataset}
        for name, owner in owners.items():
            states = part_states(owner)
            drawn = packed(states) if states else b""
            if drawn != self._drawn.get(name, b""):
                self._drawn[name] = drawn
                news[name] = drawn

        # A stream moves with every batch, so its position is not compared with the last one.
        if is_resumable(dataset):
            news["dataset"] = self._packed_position(dataset, samples)
        return news

    def _packed_position(self, stream: Any, samples: Any) -> bytes:
        # Only the last batch of a stream has fewer samples.
        if self._is_short(samples):
            return packed(ENDED)
        try:
            return packed(stream.state_dict())
        except UnsafeValueError:  # has to be read from its start again
            return packed(ENDED)

    def _is_short(self, samples: Any) -> bool:
        return isinstance(samples, list) and len(samples) != self.batch_size


class WorkerStates(NamedTuple):
    """States of each worker after the last batch that came from it, in the order of the batches.

    They are never changed, only replaced: each batch that was read keeps those before it.
    """

    states: Mapping[int, dict[str, bytes]] = MappingProxyType({})
    last: int | None = None
    """The worker that the last batch came from."""

    @classmethod
    def known(cls, state: dict[str, Any]) -> WorkerStates:
        """Return the states of a `state_dict`."""
        states = {}
        for worker, values in state["states"]:
            states[worker] = {name: packed(value) for name, value in values.items()}
        return cls(states, state["last"])

    def after(self, fetched: Fetched) -> WorkerStates:
        """Return the states after a batch."""
        states = self.states
        if fetched.news:
            of_worker = {**states.get(fetched.worker, {}), **fetched.news}
            states = {**states, fetched.worker: of_worker}
        return WorkerStates(states, fetched.worker)

    def state_dict(self, workers: int) -> dict[str, Any]:
        """Return the states for `ResumedWorkers`."""
        states = []
        for worker, values in self.states.items():
            states.append([worker, {name: unpacked(value) for name, value in values.items()}])
        return {"workers": workers, "last": self.last, "states": states}


def next_worker(state: dict[str, Any]) -> int:
    """Return the worker that produces the next batch, by `WorkerStates.state_dict`."""
    if state["last"] is None:
        return 0
    return (state["last"] + 1) % state["workers"]


class ResumedWorkers:
    """A `worker_init_fn` that restores the states of each worker.

    Args:
        state: from `WorkerStates.state_dict`.
        then: the loader's own `worker_init_fn`.
        first: index of the saved worker that worker 0 resumes.
    """

    def __init__(self, state: dict[str, Any], then: Callable[[int], None] | None, first: int = 0) -> None:
        self.first = first
        self.states = dict(state["states"])
        self.then = then

    def __call__(self, worker_id: int) -> None:
        """Called in the worker, after torch has seeded it."""
        info: Any = get_worker_info()
        worker = (self.first + worker_id) % info.num_workers
        if self.first > 0:
            self._take_place(info, worker)

        # The workers before the next one get empty batches, since torch asks them in turn.
        if hasattr(info.dataset, "__getitems__"):
            _let_pass_blanks(info.dataset)

        # The script's own function may seed generators, so the saved states are restored after it.
        if self.then is not None:
            self.then(worker)

        state = self.states.get(worker, {})
        if "rng" in state:
            rng = state["rng"]
            cpu = torch.as_tensor(rng["cpu"], device="cpu")
            restore_host_rng({**rng, "cpu": cpu})
        restore_parts(state.get("dataset_draws"), info.dataset)
        if state.get("dataset", ENDED) != ENDED:
            info.dataset.load_state_dict(state["dataset"])

    def _take_place(self, info: Any, worker: int) -> None:
        seed = info.seed - info.id + worker
        # The public object refuses changes, but a stream that shards by `info.id` has to see the resumed index.
        object.__setattr__(info, "id", worker)
        object.__setattr__(info, "seed", seed)
        torch.manual_seed(seed)


def _let_pass_blanks(dataset: Any) -> None:
    """Keep empty batches from `__getitems__`, which may fail on them; the dataset is this worker's own copy."""
    load = dataset.__getitems__
    with contextlib.suppress(AttributeError):  # an object with slots is left as it is
        dataset.__getitems__ = lambda indices: load(indices) if len(indices) else []


def packed(value: Any) -> bytes:
    """Return the value in one piece.

    Raises:
        UnsafeValueError: a checkpoint could not hold it.
    """
    return pickle.dumps(to_plain(value))


def unpacked(value: bytes) -> Any:
    """Return what `packed`, in a process of this program, was given."""
    return from_plain(pickle.loads(value))


def ignore_signals(
    worker_id: int,
    signals: Iterable[int] = (signal.SIGTERM,),
    listens: torch.Tensor | None = None,
    then: Callable[[int], None] | None = None,
) -> None:
    """Ignore signals in a worker (a `worker_init_fn`), so that its parent can end in order.

    A signal that ends a job goes to all of its processes. A worker that dies of it aborts the training in the middle
    of a step; one that ignores it still ends with the training.

    Args:
        worker_id: index of the worker.
        signals: the signals to ignore.
        listens: in shared memory, whether the parent handles the signals; without it, always.
        then: another `worker_init_fn`, called afterwards.
    """
    handler: Any = signal.SIG_IGN
    if listens is not None:
        handler = functools.partial(_left_to, listens)
    for number in signals:
        signal.signal(number, handler)
    if then is not None:
        then(worker_id)


def attached_worker(worker_id: int, then: Callable[[int], None] | None = None) -> None:
    """Make a worker exit when its parent is gone, for any reason (a `worker_init_fn`).

    Args:
        worker_id: index of the worker.
        then: another `worker_init_fn`, called afterwards.
    """
    end_with_parent()
    if then is not None:
        then(worker_id)


def end_with_parent() -> None:
    """Make this process exit when its parent is gone; to be called in a worker.

    torch's workers check for their parent only while they wait for work, every five seconds. One that is busy reading,
    or blocked on a full queue, would live on.
    """
    parent = os.getppid()
    watch = threading.Thread(target=_end_after, args=(parent,), name="lightrainer-parent", daemon=True)
    watch.start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _left_to(listens: torch.Tensor, number: int, frame: Any) -> None:
    """Handle a signal as Python does by default, unless the parent listens to it."""
    if listens:
        return
    handler: Any = signal.SIG_DFL
    if number == signal.SIGINT:
        handler = signal.default_int_handler
    signal.signal(number, handler)
    signal.raise_signal(number)
