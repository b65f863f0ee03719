"""Worker processes of data loaders."""

from __future__ import annotations

import signal
from collections.abc import Callable


def deaf_worker(worker_id: int, then: Callable[[int], None] | None = None) -> None:
    """A `worker_init_fn`: the worker does not hear SIGTERM, so that the training that it works for can end in order.

    Whoever ends a job sends the signal to all of its processes. A worker that dies of it takes the training with it,
    in the middle of a step. It ends with the training as before.

    Args:
        worker_id: index of the worker.
        then: another `worker_init_fn`, called afterwards.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if then is not None:
        then(worker_id)
