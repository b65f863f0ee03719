"""Worker processes that end with the one they work for."""

from __future__ import annotations

import os
import threading
import time

_SECONDS = 1.0


def end_with_parent() -> None:
    """Let this process end when its parent is gone, however that ended: to be called in a worker.

    torch's own workers look for their parent while they wait for work, every five seconds. One that reads for long,
    or that cannot get rid of what it has read, would go on for ever.
    """
    parent = os.getppid()
    threading.Thread(target=_watch, args=(parent,), name="lightrainer-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    os._exit(1)
