"""Close what callbacks have opened, after a training that ended with an error."""

from __future__ import annotations

from collections.abc import Iterable

from .profiler import ProfilerCallback
from .progress import ProgressCallback
from .time_limit import TimeLimitCallback


def close_after_error(callbacks: Iterable[object]) -> None:
    """Close progress bars, and stop profilers and clocks.

    The traceback is then printed below the bars, and the process can end: with a running profiler
    it would crash at its exit.
    """
    for callback in callbacks:
        if isinstance(callback, (ProgressCallback, ProfilerCallback, TimeLimitCallback)):
            callback.close()
