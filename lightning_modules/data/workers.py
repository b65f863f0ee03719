"""Worker processes of data loaders: ignored signals, and exit with the parent."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch


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
    for number in signals:
        signal.signal(number, signal.SIG_IGN if listens is None else functools.partial(_left_to, listens))
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
    threading.Thread(target=_end_after, args=(os.getppid(),), name="lightrainer-parent", daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _left_to(listens: torch.Tensor, number: int, frame: Any) -> None:
    if not listens:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.raise_signal(number)
