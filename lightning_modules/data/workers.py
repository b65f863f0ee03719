"""Worker processes of data loaders: signals that they ignore, and their end."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch


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
