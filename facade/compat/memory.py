"""Measure the memory of a stage of the Trainer, format durations, and find a batch size that fits."""

from __future__ import annotations

import datetime
import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

from ...lightning_modules.training.out_of_memory import is_out_of_memory, release_memory
from ..trainer.memory_report import MemoryTracker

logger = logging.getLogger(__name__)


class TrainerMemoryTracker:
    """As `transformers.trainer_utils.TrainerMemoryTracker`: the stage follows from the method that calls it.

    Args:
        skip_memory_metrics: measure nothing.
    """

    stages = {
        "__init__": "init",
        "train": "train",
        "_inner_training_loop": "train",
        "_finalize_training": "train",
        "evaluate": "eval",
        "predict": "test",
    }

    def __init__(self, skip_memory_metrics: bool = False) -> None:
        self.skip_memory_metrics = skip_memory_metrics
        self._tracker = MemoryTracker(skip_memory_metrics)

    def start(self) -> None:
        """Begin to measure the stage of the calling method.

        Raises:
            ValueError: The calling method is not in `stages`.
        """
        if not self.skip_memory_metrics:
            self._tracker.start(self._stage())

    def stop_and_update_metrics(self, metrics: dict[str, Any] | None = None) -> None:
        """End the stage of the calling method, and add its memory to `metrics`, in bytes.

        Raises:
            ValueError: The calling method is not in `stages`.
        """
        if not self.skip_memory_metrics:
            self._tracker.stop(self._stage(), metrics)

    def _stage(self) -> str:
        caller = sys._getframe(2).f_code.co_name
        if caller not in self.stages:
            raise ValueError(f"Memory is measured in {', '.join(self.stages)}; this was called in {caller}.")
        return self.stages[caller]


def _secs2timedelta(secs: float) -> str:
    """As `transformers.trainer_pt_utils._secs2timedelta`: h:mm:ss and hundredths."""
    whole = int(secs)
    return f"{datetime.timedelta(seconds=whole)}.{int(abs(secs - whole) * 100):02d}"


def find_executable_batch_size(
    function: Callable[..., Any] | None = None, starting_batch_size: int = 128, auto_find_batch_size: bool = False
) -> Callable[..., Any]:
    """As `transformers.trainer_utils.find_executable_batch_size`, without accelerate: shrink by a tenth until it fits.

    Args:
        function: takes the batch size first; without one this is a decorator.
        starting_batch_size: the first to try.
        auto_find_batch_size: call again with nine tenths of it when memory runs out; otherwise `starting_batch_size` is
            passed as `batch_size`, once.

    Returns:
        The function without its first parameter. It raises RuntimeError when not even one sample fits.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            auto_find_batch_size=auto_find_batch_size,
        )
    if not auto_find_batch_size:
        return functools.partial(function, batch_size=starting_batch_size)
    size = starting_batch_size  # kept between calls, as in the reference

    @functools.wraps(function)
    def shrinking(*args: Any, **kwargs: Any) -> Any:
        nonlocal size
        while size > 0:
            release_memory()
            try:
                return function(size, *args, **kwargs)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                logger.warning("A batch of %d does not fit into memory, %d is tried.", size, int(size * 0.9))
            size = int(size * 0.9)
        raise RuntimeError(
            f"No executable batch size found, reached zero: not even one sample fits into memory ({function.__name__})."
        )

    return shrinking
