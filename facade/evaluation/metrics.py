"""Compute speed metrics, and format, print and write metrics."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
import torch

from ...callbacks._files import write_atomically
from ...lightning_modules.common.json_files import read_object


class StartTime(float):
    """A start time as returned by `time.time()`, which measures elapsed time with a monotonic
    clock.

    It is a float, because it is passed as `start_time` to `speed_metrics` and to overrides of
    `log`.
    """

    def __new__(cls) -> StartTime:
        """Read both clocks."""
        start = super().__new__(cls, time.time())
        start._clock = time.perf_counter()
        return start

    _clock: float

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)  # monotonic clocks differ between processes

    @property
    def seconds_ago(self) -> float:
        """Return the elapsed seconds."""
        return time.perf_counter() - self._clock


def speed_metrics(
    split: str,
    start_time: float,
    num_samples: float | None = None,
    num_steps: int | None = None,
    num_tokens: int | None = None,
) -> dict[str, float]:
    """Compute the runtime since a start time, and rates per second.

    Works like `transformers.trainer_utils.speed_metrics`.

    Args:
        split: prefix of the metrics.
        start_time: the result of `time.time()`, or a `StartTime`, which is robust against changes
            of the system clock.
        num_samples: number of samples; None to omit their rate.
        num_steps: number of steps, or None.
        num_tokens: number of tokens, or None.

    Returns:
        `{split}_runtime` in seconds, and `{split}_samples_per_second`, `{split}_steps_per_second`
        and `{split}_tokens_per_second` for the numbers that were passed.
    """
    if isinstance(start_time, StartTime):
        runtime = start_time.seconds_ago
    else:
        runtime = time.time() - start_time
    return metrics_of_runtime(
        split, max(runtime, 0.0), samples=num_samples, steps=num_steps, tokens=num_tokens
    )


def metrics_of_runtime(split: str, runtime: float, **counts: float | None) -> dict[str, float]:
    """Return the metrics of `speed_metrics` for a runtime in seconds and counts by name."""
    result = {f"{split}_runtime": round(runtime, 4)}
    for name, count in counts.items():
        if count is not None and runtime != 0:
            result[f"{split}_{name}_per_second"] = round(count / runtime, 3)
    return result


def denumpify_detensorize(metrics: Any) -> Any:
    """Convert NumPy and torch scalars to Python numbers, so that metrics can be written as JSON.

    Works like `transformers.trainer_utils.denumpify_detensorize`.

    Args:
        metrics: a value, or nested lists, tuples and dicts of them.

    Returns:
        The same structure, with tensors of one element converted to numbers. Other tensors and
        arrays are unchanged.
    """
    if isinstance(metrics, (list, tuple)):
        return type(metrics)(denumpify_detensorize(part) for part in metrics)
    if isinstance(metrics, dict):
        return type(metrics)({key: denumpify_detensorize(part) for key, part in metrics.items()})
    is_scalar_tensor = isinstance(metrics, torch.Tensor) and metrics.numel() == 1
    if is_scalar_tensor or isinstance(metrics, np.generic):
        return metrics.item()
    return metrics


def metrics_format(metrics: dict[str, float]) -> dict[str, str | float]:
    """Convert metrics to units that are easy to read; see `Trainer.metrics_format`."""
    return {name: _formatted(name, value) for name, value in metrics.items()}


def _formatted(name: str, value: Any) -> str | float:
    # Bytes in MiB, seconds as h:mm:ss.hh, and operations in units of 2**30, as in the reference.
    if "_mem_" in name and isinstance(value, Integral):
        return f"{value >> 20}MB"
    if "_runtime" in name:
        whole = int(value)
        return f"{datetime.timedelta(seconds=whole)}.{int(abs(value - whole) * 100):02d}"
    if name == "total_flos":
        return f"{int(value) >> 30}GF"
    if isinstance(value, float):
        return round(value, 4)
    return value


def print_metrics_table(split: str, metrics: dict[str, float]) -> None:
    """Print metrics as a table, sorted by name.

    Args:
        split: name of the data, for the heading.
        metrics: values by name, formatted.
    """
    table = {str(name): str(value) for name, value in metrics.items()}
    width_of_names = max(map(len, table), default=0)
    width_of_values = max(map(len, table.values()), default=0)
    print(f"***** {split} metrics *****")
    for name, value in sorted(table.items()):
        print(f"  {name:<{width_of_names}} = {value:>{width_of_values}}")


def write_metrics(folder: str, split: str, metrics: dict[str, float], *, combined: bool) -> None:
    """Write metrics to `{split}_results.json` in a folder.

    Args:
        folder: the folder, created if needed.
        split: prefix of the file name.
        metrics: values by name.
        combined: also merge them into `all_results.json`.
    """
    _write_json(folder, f"{split}_results.json", metrics)
    if combined:
        path = os.path.join(folder, "all_results.json")
        metrics_before = {}
        if os.path.exists(path):
            metrics_before = read_object(path, keys="metrics")
        _write_json(folder, "all_results.json", {**metrics_before, **metrics})


def _write_json(folder: str, name: str, content: Mapping[str, object]) -> None:
    os.makedirs(folder, exist_ok=True)
    text = json.dumps(content, indent=4, sort_keys=True)
    write_atomically(os.path.join(folder, name), text.encode())
