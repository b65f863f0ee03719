"""Measure the memory of a Trainer for `skip_memory_metrics=False`."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from typing import Any

import torch

from ...lightning_modules.common.libraries import is_installed

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.001
"""Interval at which the memory of the process is sampled to find its peak."""

_STAGES = {
    "__init__": "init",
    "train": "train",
    "_inner_training_loop": "train",  # overridden by scripts for older versions
    "evaluate": "eval",
    "predict": "test",
}
"""Stage by method of the Trainer, used by overrides that do not pass a stage."""


class MemoryTracker:
    """Measure how much memory each stage of a Trainer allocates, and the peak.

    Works like `transformers.trainer_utils.TrainerMemoryTracker`. Only the outermost stage is
    measured: an evaluation during a training is part of the training.

    Args:
        skip: whether to measure nothing.
    """

    def __init__(self, skip: bool) -> None:
        self._process = None
        if not skip:
            self._process = _this_process()
        self._stage: str | None = None
        self._report: dict[str, int] = {}
        self._watch: _PeakMemorySampler | None = None
        self._begin: dict[str, int] = {}

    def start(self, stage: str | None = None) -> None:
        """Start to measure a stage.

        Args:
            stage: `init`, `train`, `eval` or `test`. By default it is derived from the name of the
                calling method.

        Raises:
            ValueError: no stage was passed, and the caller is not one of these methods.
        """
        if self._process is None:
            return
        if stage is None:
            stage = _calling_stage()

        # A nested stage is part of the outer one.
        if self._stage not in (None, stage):
            return
        # If the same stage starts again, the previous attempt has failed.
        self.drop()
        self._stage = stage

        # Collect garbage first; otherwise it would count as memory that the stage has freed.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self._begin = self._allocated()
        if stage == "init":
            for kind, amount in self._begin.items():
                self._report[f"before_init_mem_{kind}"] = amount
        self._watch = _PeakMemorySampler(self._process)
        self._watch.start()

    def stop_and_update_metrics(self, metrics: dict[str, Any] | None = None) -> None:
        """End the stage of the calling method; see `stop`.

        Args:
            metrics: updated with the memory of the stage, in bytes.

        Raises:
            ValueError: the caller is not one of these methods.
        """
        if self._process is not None:
            self.stop(_calling_stage(), metrics)

    def stop(self, stage: str, metrics: dict[str, Any] | None = None) -> None:
        """End a stage, and add its memory to `metrics` if they are passed.

        The names are those of transformers, in bytes:

        - `{stage}_mem_{cpu,gpu}_alloc_delta`: what is allocated at the end, minus the start.
        - `{stage}_mem_{cpu,gpu}_peaked_delta`: the peak, minus what is allocated at the end.
        """
        if self._process is None or self._stage != stage or self._watch is None:
            return
        peaks = {"cpu": self._watch.stop()}

        # Collect garbage first; otherwise it would count as memory that the stage still uses.
        gc.collect()
        if torch.cuda.is_available():
            peaks["gpu"] = torch.cuda.max_memory_allocated()
        for kind, now in self._allocated().items():
            self._report[f"{stage}_mem_{kind}_alloc_delta"] = now - self._begin[kind]
            self._report[f"{stage}_mem_{kind}_peaked_delta"] = max(0, peaks[kind] - now)
        self._stage = None
        if metrics is not None:
            metrics.update(self._report)
            self._report = {}

    def drop(self) -> None:
        """Discard the stage that is being measured, after it has failed."""
        if self._watch is not None and self._stage is not None:
            self._watch.stop()
            self._stage = None

    def _allocated(self) -> dict[str, int]:
        assert self._process is not None
        amounts = {"cpu": self._process.memory_info().rss}
        if torch.cuda.is_available():
            amounts["gpu"] = torch.cuda.memory_allocated()
        return amounts


class _PeakMemorySampler(threading.Thread):
    """Samples the resident memory of the process until it is stopped."""

    def __init__(self, process: Any) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._done = threading.Event()
        self._peak = process.memory_info().rss

    def run(self) -> None:
        """Read the memory until `stop` is called."""
        while not self._done.wait(_POLL_SECONDS):
            self._peak = max(self._peak, self._process.memory_info().rss)

    def stop(self) -> int:
        """End the thread and return the peak, in bytes."""
        self._done.set()
        self.join()
        return max(self._peak, self._process.memory_info().rss)


def _calling_stage() -> str:
    """Return the stage of the Trainer method that has called the method of the tracker.

    transformers derives the stage from the name of the calling function, so overrides written for
    it call `start()` without an argument.

    Raises:
        ValueError: the caller is not a method of a stage.
    """
    # Frame 0 is this function, frame 1 the method of the tracker.
    method = sys._getframe(2).f_code.co_name
    if method not in _STAGES:
        raise ValueError(
            f"{method}() is not a method whose memory is measured. Call start and "
            f"stop_and_update_metrics in one of {', '.join(_STAGES)}, or pass the stage: "
            "_memory_tracker.start('eval') and stop('eval', metrics)."
        )
    return _STAGES[method]


def _this_process() -> Any:
    if not is_installed("psutil"):
        logger.warning(
            "skip_memory_metrics=False has no effect: psutil is not installed, so memory is not "
            "reported. Run pip install psutil."
        )
        return None
    import psutil

    return psutil.Process()
