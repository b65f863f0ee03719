"""Close what callbacks have opened, after a training that ended with an error."""

from __future__ import annotations

from collections.abc import Iterable

from .ema import EMACallback
from .nan_guard import NaNGuardCallback
from .profiler import ProfilerCallback
from .progress import ProgressCallback
from .time_limit import TimeLimitCallback

_CLOSABLE = (
    EMACallback,
    NaNGuardCallback,
    ProfilerCallback,
    ProgressCallback,
    TimeLimitCallback,
)


def close_after_error(callbacks: Iterable[object]) -> None:
    """Close progress bars, stop profilers and clocks, and remove hooks from the model.

    The traceback is then printed below the bars, and the process can end: with a running profiler
    it would crash at its exit.
    """
    for callback in callbacks:
        if isinstance(callback, _CLOSABLE):
            callback.close()
