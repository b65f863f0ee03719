"""Worker processes of data loaders: which signals they hear, when they end, and what they cannot send."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import signal
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.context import BaseContext
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader

from .worker_state import Fetched

try:
    from torch._utils import ExceptionWrapper
except ImportError:  # a torch that calls it otherwise: its loaders would raise nothing of ours, so nothing is told
    ExceptionWrapper = None

_RaisedByLoaders: Any = ExceptionWrapper or object


def deaf_worker(
    worker_id: int,
    signals: Iterable[int] = (signal.SIGTERM,),
    listens: torch.Tensor | None = None,
    then: Callable[[int], None] | None = None,
) -> None:
    """Let a worker not hear signals (a `worker_init_fn`), so that the training that it works for can end in order.

    Whoever ends a job sends the signal to all of its processes. A worker that dies of it takes the training with it,
    in the middle of a step. It ends with the training as before.

    Args:
        worker_id: index of the worker.
        signals: what it does not hear.
        listens: in shared memory, whether the training hears it instead; without it, always.
        then: another `worker_init_fn`, called afterwards.
    """
    for number in signals:
        signal.signal(number, signal.SIG_IGN if listens is None else functools.partial(_left_to, listens))
    if then is not None:
        then(worker_id)


def attached_worker(worker_id: int, then: Callable[[int], None] | None = None) -> None:
    """Let a worker end with the process that it reads for, however that one ended (a `worker_init_fn`).

    Args:
        worker_id: index of the worker.
        then: another `worker_init_fn`, called afterwards.
    """
    end_with_parent()
    if then is not None:
        then(worker_id)


def end_with_parent() -> None:
    """Let this process end when its parent is gone, however that ended: to be called in a worker.

    torch's own workers look for their parent while they wait for work, every five seconds. One that reads for long,
    or that cannot get rid of what it has read, would go on for ever.
    """
    threading.Thread(target=_end_after, args=(os.getppid(),), name="lightrainer-parent", daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _left_to(listens: torch.Tensor, number: int, frame: Any) -> None:
    if not listens:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.raise_signal(number)


def iterate(loader: Any) -> Iterator[Any]:
    """As `iter(loader)`, but what its workers cannot send is an error, see `telling_queues`.

    Args:
        loader: any iterable.
    """
    with telling_queues(loader):
        return iter(loader)


@contextlib.contextmanager
def telling_queues(loader: Any) -> Iterator[None]:
    """Let the workers that a loader starts in here say what they cannot send.

    A queue of multiprocessing prints the error of an object that cannot be pickled, and drops it: whoever waits for the
    object waits for ever. With a torch whose loaders raise errors of workers in another way it is left at that.

    Args:
        loader: a `DataLoader`, which is left as it was; others are let alone.
    """
    if ExceptionWrapper is None or not isinstance(loader, DataLoader) or loader.num_workers == 0:
        yield
        return
    given = loader.multiprocessing_context
    loader.multiprocessing_context = _with_telling_queues(given)
    try:
        yield
    finally:
        loader.multiprocessing_context = given


def why_unsendable(value: Any, name: str, error: Exception) -> str:
    """Return what a message says of something that cannot be pickled.

    Args:
        value: the thing.
        name: what to call it.
        error: raised by the attempt.
    """
    part, error = _unsendable_part(value, name, set()) or (f"{name} is {_described(value)}", error)
    return f"{part}, which cannot be pickled ({type(error).__name__}: {error})"


def _unsendable_part(value: Any, name: str, seen: set[int]) -> tuple[str, Exception] | None:
    """Return the first part of a value that cannot be pickled, such as `batch['x'][2]`, and why."""
    if id(value) in seen:
        return None
    seen.add(id(value))
    try:
        ForkingPickler.dumps(value)
    except Exception as error:
        for part, of in _parts(value):
            found = _unsendable_part(of, f"{name}{part}", seen)
            if found is not None:
                return found
        return f"{name} is {_described(value)}", error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    with contextlib.suppress(Exception):  # whatever a stranger's object does when it is looked at
        if isinstance(value, Mapping):
            yield from ((f"[{key!r}]", item) for key, item in value.items())
        elif isinstance(value, (list, tuple)):
            yield from ((f"[{index}]", item) for index, item in enumerate(value))
        else:
            yield from ((f".{name}", item) for name, item in vars(value).items())


def _described(value: Any) -> str:
    named = isinstance(value, (type, types.FunctionType))
    return f"a {type(value).__qualname__}" + (f" ({value.__qualname__})" if named else "")


def _with_telling_queues(context: BaseContext | None) -> Any:
    given: Any = torch.multiprocessing.get_context() if context is None else context
    if type(given).Queue is not BaseContext.Queue:  # queues of somebody else's making
        return given
    telling = copy.copy(given)
    telling.Queue = functools.partial(_TellingQueue, ctx=given.get_context())
    return telling


class _TellingQueue(Queue):
    """A queue of a data loader that sends word of what it cannot send, in the place of it."""

    def __init__(self, maxsize: int = 0, *, ctx: Any) -> None:
        super().__init__(maxsize, ctx=ctx)

    def _on_queue_feeder_error(self, error: Exception, item: Any) -> None:
        if not isinstance(item, tuple) or len(item) != 2:
            known: Any = Queue  # typeshed does not know of it
            return known._on_queue_feeder_error(error, item)
        index, content = item
        queue: Any = self  # whose parts typeshed does not know
        if queue._opid == os.getpid():  # who made it sends what the sampler gave to a worker
            word: Any = _NoIndices(why_unsendable(content, "batch", error))
        else:
            word = _untold(content, error)
        # In its place, as a stream that has failed may have ended next: after that nobody would look for the error.
        queue._sem.acquire()
        queue._buffer.appendleft((index, word))


def _untold(content: Any, error: Exception) -> _WorkerError:
    if isinstance(content, _RaisedByLoaders):
        kind: Any = content.exc_type
        return _WorkerError(f"Caught {kind.__qualname__} {content.where}.\nOriginal {content.exc_msg}", RuntimeError)
    batch = content.batch if isinstance(content, Fetched) else content
    return _WorkerError(
        f"A worker of the data loader cannot send its batch: {why_unsendable(batch, 'batch', error)}. Let dataset and "
        "collator give tensors, arrays, numbers and texts, or read without workers (dataloader_num_workers=0).",
        TypeError,
    )


class _WorkerError(_RaisedByLoaders):
    """An error of a worker that is raised where its batch was to arrive."""

    def __init__(self, text: str, kind: type[Exception]) -> None:
        self.exc_type, self.exc_msg, self.where = kind, text, ""

    def reraise(self) -> NoReturn:
        """Raise it."""
        raise self.exc_type(self.exc_msg)


class _NoIndices:
    """Stands for indices that could not be sent to a worker: whoever reads them learns why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            f"The sampler's indices cannot be sent to a worker of the data loader: {self.reason}. Let the sampler give "
            "numbers, or read without workers (dataloader_num_workers=0)."
        )

    def __len__(self) -> int:
        return len(list(self))

    def __index__(self) -> int:
        return len(self)
