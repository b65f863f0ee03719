"""Worker processes of data loaders."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .peers.lonely import end_with_parent


def deaf_worker(
    worker_id: int,
    signals: Iterable[int] = (signal.SIGTERM,),
    listens: torch.Tensor | None = None,
    then: Callable[[int], None] | None = None,
) -> None:
    """A `worker_init_fn`: the worker does not hear signals, so that the training that it works for can end in order.

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
    """A `worker_init_fn`: the worker ends with the process that it reads for, however that one ended.

    Args:
        worker_id: index of the worker.
        then: another `worker_init_fn`, called afterwards.
    """
    end_with_parent()
    if then is not None:
        then(worker_id)


def _left_to(listens: torch.Tensor, number: int, frame: Any) -> None:
    if not listens:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.raise_signal(number)
