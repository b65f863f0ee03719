"""Random generators and streams in the worker processes of a data loader: told to the training, and restored."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..common.safe_serialization import UnsafeValueError, from_plain, to_plain
from ..common.seeding import capture_host_rng, restore_host_rng, same_rng
from .rng_discovery import own_states, restore_own


def is_resumable(dataset: Any) -> bool:
    """Tell whether a dataset can tell its position, and go on from there to the very same samples.

    It has `state_dict` and `load_state_dict`. A `datasets.IterableDataset` that shuffles has them too, but fills its
    buffer anew: it has to be read from the start to be the same.
    """
    if not (hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")):
        return False
    stage = getattr(dataset, "_ex_iterable", None)
    while stage is not None:
        if "Shuffled" in type(stage).__name__:
            return False
        stage = getattr(stage, "ex_iterable", None)
    return True


ENDED = "ended"
"""The state of a stream that has been read to its end."""


class Fetched(NamedTuple):
    """A batch from a worker, and how the worker was left by it."""

    batch: Any
    worker: int
    news: dict[str, bytes]
    """`rng` if the generators moved since the last batch, `collate_draws` and `dataset_draws` if generators did that
    these two have for themselves, `dataset` if it has a state: packed, as hardly any of them is ever looked at."""


class ReportingCollate:
    """A `collate_fn` whose batches tell, in a worker, how they leave it.

    Args:
        collate: makes the batch.
        batch_size: samples of a full batch, None where samples are not put together.
        left: by worker, how the one in its place was left.

    Attributes:
        was_short: whether the last batch was not a full one, so that a stream has ended; outside of workers.
    """

    def __init__(
        self, collate: Callable[[Any], Any], batch_size: int | None, left: dict[int, dict[str, Any]] | None = None
    ) -> None:
        self.collate = collate
        self.batch_size = batch_size
        self.was_short = False
        self.left = left or {}
        self._rng: Any = None
        self._drawn: dict[str, bytes] = {}

    def __call__(self, samples: Any) -> Any:
        """Return the batch, in a worker as a `Fetched`; of no samples, as for a blank, there is none."""
        info = get_worker_info()
        if info is None:
            self.was_short = self._is_short(samples)
            return self.collate(samples)
        left, self.left = self.left.get(info.id, {}), {}
        restore_own(left.get("collate_draws"), self.collate)
        if isinstance(samples, list) and not samples:
            return Fetched(None, info.id, {})
        return Fetched(self.collate(samples), info.id, self._news(info.dataset, samples))

    def _news(self, dataset: Any, samples: Any) -> dict[str, bytes]:
        news = {}
        rng = capture_host_rng()
        if self._rng is None or not same_rng(rng, self._rng):
            self._rng = rng
            # As an array: a tensor would travel in shared memory of its own.
            news["rng"] = _packed({**rng, "cpu": rng["cpu"].numpy()})
        for name, of in (("collate_draws", self.collate), ("dataset_draws", dataset)):
            states = own_states(of)
            drawn = _packed(states) if states else b""
            if drawn != self._drawn.get(name, b""):
                news[name] = self._drawn[name] = drawn
        if isinstance(dataset, IterableDataset) and is_resumable(dataset):
            stream: Any = dataset
            try:
                state = ENDED if self._is_short(samples) else stream.state_dict()
                news["dataset"] = _packed(state)
            except UnsafeValueError:  # it is to be read from its start again
                news["dataset"] = _packed(ENDED)
        return news

    def _is_short(self, samples: Any) -> bool:
        return isinstance(samples, list) and len(samples) != self.batch_size


class WorkerStates:
    """How each worker was left by the last batch that came from it, in the order of the batches."""

    def __init__(self) -> None:
        self.states: dict[int, dict[str, bytes]] = {}
        self.last: int | None = None

    @classmethod
    def known(cls, state: dict[str, Any]) -> WorkerStates:
        """Return what a `state_dict` knew."""
        made = cls()
        made.states = {worker: {name: _packed(value) for name, value in of.items()} for worker, of in state["states"]}
        made.last = state["last"]
        return made

    def take(self, fetched: Fetched) -> Any:
        """Note what came with a batch; returns the batch."""
        self.last = fetched.worker
        if fetched.news:
            self.states[fetched.worker] = {**self.states.get(fetched.worker, {}), **fetched.news}
        return fetched.batch

    def between_epochs(self) -> WorkerStates:
        """As they are, for an epoch that begins with the first worker again."""
        made = self.copy()
        made.last = None
        return made

    def copy(self) -> WorkerStates:
        """As it is now."""
        made = WorkerStates()
        made.states, made.last = dict(self.states), self.last
        return made

    def state_dict(self, workers: int) -> dict[str, Any]:
        """Return what `ResumedWorkers` needs."""
        unpacked = {of: {name: _unpacked(value) for name, value in state.items()} for of, state in self.states.items()}
        states = [[worker, state] for worker, state in unpacked.items()]
        return {"workers": workers, "last": self.last, "states": states}


def next_worker(state: dict[str, Any]) -> int:
    """Return the worker whose turn it is, by `WorkerStates.state_dict`."""
    return 0 if state["last"] is None else (state["last"] + 1) % state["workers"]


class ResumedWorkers:
    """A `worker_init_fn`: each worker goes on where the one in its place was left.

    Args:
        state: from `WorkerStates.state_dict`.
        then: the loader's own `worker_init_fn`.
        first: the worker in whose place the first one goes on.
    """

    def __init__(self, state: dict[str, Any], then: Callable[[int], None] | None, first: int = 0) -> None:
        self.first = first
        self.states = dict(state["states"])
        self.then = then

    def __call__(self, worker_id: int) -> None:
        """Called in the worker, after torch has seeded it."""
        info: Any = get_worker_info()
        worker = (self.first + worker_id) % info.num_workers
        if self.first:
            self._take_place(info, worker)
        if hasattr(info.dataset, "__getitems__"):
            _let_pass_blanks(info.dataset)
        if self.then is not None:
            self.then(worker)
        state = self.states.get(worker, {})
        if "rng" in state:
            restore_host_rng({**state["rng"], "cpu": torch.as_tensor(state["rng"]["cpu"])})
        restore_own(state.get("dataset_draws"), info.dataset)
        if state.get("dataset", ENDED) != ENDED:
            info.dataset.load_state_dict(state["dataset"])

    def _take_place(self, info: Any, worker: int) -> None:
        seed = info.seed - info.id + worker
        # The public object refuses changes, but a stream that takes its share by `info.id` has to see whose turn it is.
        object.__setattr__(info, "id", worker)
        object.__setattr__(info, "seed", seed)
        torch.manual_seed(seed)


def _let_pass_blanks(dataset: Any) -> None:
    """Ask no dataset that loads whole batches for one of no samples: some fail. Only this worker has this object."""
    load = dataset.__getitems__
    with contextlib.suppress(AttributeError):  # one that takes no attributes has to do
        dataset.__getitems__ = lambda indices: load(indices) if len(indices) else []


def _packed(value: Any) -> bytes:
    """Return the value in one piece.

    Raises:
        UnsafeValueError: a checkpoint could not hold it.
    """
    return pickle.dumps(to_plain(value))


def _unpacked(value: bytes) -> Any:
    """Return what `_packed`, in a process of this program, was given."""
    return from_plain(pickle.loads(value))
