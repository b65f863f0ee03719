"""Speed figures and their presentation."""

from __future__ import annotations

import datetime
import time
from typing import Any

import numpy as np
import torch


class Moment(float):
    """Now, as `time.time()` says it, but what has passed since then is asked of a clock that nobody sets.

    Scripts that override `log` or call `speed_metrics` get it as a `start_time`, and may treat it as any other.
    """

    def __new__(cls) -> Moment:
        """The present moment."""
        made = super().__new__(cls, time.time())
        made._clock = time.perf_counter()
        return made

    _clock: float

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)  # in another process the clock says something else

    @property
    def seconds_ago(self) -> float:
        """Seconds since then."""
        return time.perf_counter() - self._clock


def speed_metrics(
    split: str,
    start_time: float,
    num_samples: float | None = None,
    num_steps: int | None = None,
    num_tokens: int | None = None,
) -> dict[str, float]:
    """As `transformers.trainer_utils.speed_metrics`: seconds since `start_time`, and what was done in one second.

    Args:
        split: begins the names of the metrics.
        start_time: of `time.time()`; a `Moment` is not misled by a clock that is set meanwhile.
        num_samples: how many there were; None leaves their speed out, as it does with the others.
        num_steps: see `num_samples`.
        num_tokens: see `num_samples`.
    """
    runtime = start_time.seconds_ago if isinstance(start_time, Moment) else time.time() - start_time
    return metrics_of_runtime(split, max(runtime, 0.0), num_samples, num_steps, num_tokens)


def metrics_of_runtime(
    split: str,
    runtime: float,
    num_samples: float | None = None,
    num_steps: int | None = None,
    num_tokens: int | None = None,
) -> dict[str, float]:
    """As `speed_metrics`, of so many seconds."""
    result = {f"{split}_runtime": round(runtime, 4)}
    if runtime == 0:
        return result
    counts = {"samples": num_samples, "steps": num_steps, "tokens": num_tokens}
    for name, count in counts.items():
        if count is not None:
            result[f"{split}_{name}_per_second"] = round(count / runtime, 3)
    return result


def denumpify_detensorize(metrics: Any) -> Any:
    """As `transformers.trainer_utils.denumpify_detensorize`: plain Python numbers, so that metrics become JSON."""
    if isinstance(metrics, (list, tuple)):
        return type(metrics)(denumpify_detensorize(part) for part in metrics)
    if isinstance(metrics, dict):
        return type(metrics)({key: denumpify_detensorize(part) for key, part in metrics.items()})
    if isinstance(metrics, np.generic) or (isinstance(metrics, torch.Tensor) and metrics.numel() == 1):
        return metrics.item()
    return metrics


def metrics_format(metrics: dict[str, float]) -> dict[str, Any]:
    """As `transformers.Trainer.metrics_format`: readable units; memory in MB, times in h:mm:ss, rounded numbers."""
    return {name: _formatted(name, value) for name, value in metrics.items()}


def _formatted(name: str, value: Any) -> Any:
    if "_mem_" in name:
        return f"{value >> 20}MB"
    if "_runtime" in name:
        whole = int(value)
        return f"{datetime.timedelta(seconds=whole)}.{int(abs(value - whole) * 100):02d}"
    if name == "total_flos":
        return f"{int(value) >> 30}GF"
    return round(value, 4) if isinstance(value, float) else value
