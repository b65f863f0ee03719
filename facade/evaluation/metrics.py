"""Metrics of a run: speed, formatting, the printed table, and result files."""

from __future__ import annotations

import datetime
import json
import os
import time
from typing import Any

import numpy as np
import torch

from ...lightning_modules.common.json_files import read_object


class Moment(float):
    """The current `time.time()`, with the elapsed time taken from a monotonic clock.

    A float: overrides of `log` and calls of `speed_metrics` get it as `start_time`.
    """

    def __new__(cls) -> Moment:
        """Read both clocks."""
        made = super().__new__(cls, time.time())
        made._clock = time.perf_counter()
        return made

    _clock: float

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)  # the monotonic clock differs in another process

    @property
    def seconds_ago(self) -> float:
        """Return the seconds since then."""
        return time.perf_counter() - self._clock


def speed_metrics(
    split: str,
    start_time: float,
    num_samples: float | None = None,
    num_steps: int | None = None,
    num_tokens: int | None = None,
) -> dict[str, float]:
    """As `transformers.trainer_utils.speed_metrics`: seconds since `start_time`, and rates per
    second.

    Args:
        split: prefix of the metrics.
        start_time: from `time.time()`; a `Moment` is robust against changes of the system clock.
        num_samples: number of samples; None omits their rate.
        num_steps: number of steps, or None.
        num_tokens: number of tokens, or None.
    """
    runtime = start_time.seconds_ago if isinstance(start_time, Moment) else time.time() - start_time
    return metrics_of_runtime(
        split, max(runtime, 0.0), samples=num_samples, steps=num_steps, tokens=num_tokens
    )


def metrics_of_runtime(split: str, runtime: float, **counts: float | None) -> dict[str, float]:
    """As `speed_metrics`, for a runtime in seconds, and counts by their name."""
    result = {f"{split}_runtime": round(runtime, 4)}
    for name, count in counts.items():
        if count is not None and runtime != 0:
            result[f"{split}_{name}_per_second"] = round(count / runtime, 3)
    return result


def denumpify_detensorize(metrics: Any) -> Any:
    """As `transformers.trainer_utils.denumpify_detensorize`: plain Python numbers, so that
    metrics become JSON.
    """
    if isinstance(metrics, (list, tuple)):
        return type(metrics)(denumpify_detensorize(part) for part in metrics)
    if isinstance(metrics, dict):
        return type(metrics)({key: denumpify_detensorize(part) for key, part in metrics.items()})
    if isinstance(metrics, np.generic) or (
        isinstance(metrics, torch.Tensor) and metrics.numel() == 1
    ):
        return metrics.item()
    return metrics


def metrics_format(metrics: dict[str, float]) -> dict[str, Any]:
    """As `transformers.Trainer.metrics_format`: readable units; memory in MB, times in h:mm:ss,
    rounded numbers.
    """
    return {name: _formatted(name, value) for name, value in metrics.items()}


def _formatted(name: str, value: Any) -> Any:
    if "_mem_" in name:
        return f"{value >> 20}MB"
    if "_runtime" in name:
        whole = int(value)
        return f"{datetime.timedelta(seconds=whole)}.{int(abs(value - whole) * 100):02d}"
    if name == "total_flos":
        return f"{int(value) >> 30}GF"
    if isinstance(value, float):
        return round(value, 4)
    return value


def log_metrics(self: Any, split: str, metrics: dict[str, float]) -> None:
    """As `transformers.Trainer.log_metrics`: print metrics as a table, on process 0."""
    if not self.is_world_process_zero():
        return
    table = {str(name): str(value) for name, value in self.metrics_format(metrics).items()}
    width_of_names = max(map(len, table), default=0)
    width_of_values = max(map(len, table.values()), default=0)
    print(f"***** {split} metrics *****")
    for name, value in sorted(table.items()):
        print(f"  {name:<{width_of_names}} = {value:>{width_of_values}}")


def save_metrics(self: Any, split: str, metrics: dict[str, float], combined: bool = True) -> None:
    """As `transformers.Trainer.save_metrics`: write `{split}_results.json`, on process 0.

    Args:
        split: `train`, `eval`, `test` or `all`.
        metrics: unformatted.
        combined: also merge them into `all_results.json`.
    """
    if not self.is_world_process_zero():
        return
    folder = str(self.args.output_dir)
    _write_json(folder, f"{split}_results.json", metrics)
    if combined:
        path = os.path.join(folder, "all_results.json")
        known = {}
        if os.path.exists(path):
            known = read_object(path, keys="metrics")
        _write_json(folder, "all_results.json", {**known, **metrics})


def save_state(self: Any) -> None:
    """As `transformers.Trainer.save_state`: write the state to `trainer_state.json`, on process
    0.
    """
    if self.is_world_process_zero():
        self.state.save_to_json(os.path.join(str(self.args.output_dir), "trainer_state.json"))
        self._object_store.written()


def _write_json(folder: str, name: str, content: dict[str, Any]) -> None:
    path = os.path.join(folder, name)
    os.makedirs(folder, exist_ok=True)
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(content, file, indent=4, sort_keys=True)
    os.replace(f"{path}.tmp", path)
