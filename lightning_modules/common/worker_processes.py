"""Make worker processes ignore signals, and exit when their parent has exited."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType

import torch


def ignore_signals(
    worker_id: int,
    signals: Iterable[int],
    listens: torch.Tensor,
    then: Callable[[int], None] | None = None,
) -> None:
    """Ignore signals in a worker (a `worker_init_fn`), so that its parent can stop gracefully.

    A signal to stop a job is sent to all processes. A worker that it terminates would abort the
    training in the middle of a step. A worker that ignores it exits with the training.

    Args:
        worker_id: index of the worker.
        signals: the signals to ignore.
        listens: a flag in shared memory that tells whether the parent handles the signals.
        then: another `worker_init_fn`, called afterwards.
    """
    handler = functools.partial(_ignore_if_parent_listens, listens)
    for number in signals:
        signal.signal(number, handler)
    if then is not None:
        then(worker_id)


def _ignore_if_parent_listens(listens: torch.Tensor, number: int, frame: FrameType | None) -> None:
    """Handle a signal as Python does by default, unless the parent handles it."""
    if listens:
        return

    # Raise the signal again, with Python's default handler.
    if number == signal.SIGINT:
        signal.signal(number, signal.default_int_handler)
    else:
        signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def attached_worker(worker_id: int, then: Callable[[int], None] | None = None) -> None:
    """Make a worker exit when its parent has exited for any reason (a `worker_init_fn`).

    Args:
        worker_id: index of the worker.
        then: another `worker_init_fn`, called afterwards.
    """
    exit_with_parent()
    if then is not None:
        then(worker_id)


def exit_with_parent() -> None:
    """Make this process exit when its parent has exited.

    Call it in a `multiprocessing` process. A worker does not notice the exit of its parent while it
    is busy, blocked on a full queue, or waiting on a pipe that other workers keep open. torch's
    workers only check their parent while they wait for work.
    """
    watch = threading.Thread(target=_exit_after_parent, name="lightrainer-parent", daemon=True)
    watch.start()


def _exit_after_parent() -> None:
    """Wait until the parent has exited, then exit without clean-up."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "not a process of multiprocessing"

    # The pipe to the parent signals its exit immediately, unless processes forked later keep it
    # open. The parent's process id changes within a second, but with a fork server it is the
    # server's id.
    parent_id = os.getppid()
    while parent.is_alive() and os.getppid() == parent_id:
        parent.join(timeout=1.0)
    # `sys.exit` would only end this thread.
    os._exit(1)
