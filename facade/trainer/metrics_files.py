"""Metrics as a table and as files: functions that are methods of the Trainer, as in the reference."""

from __future__ import annotations

import json
import os
from typing import Any

from ...lightning_modules.common.json_files import read_object


def log_metrics(self: Any, split: str, metrics: dict[str, float]) -> None:
    """As `transformers.Trainer.log_metrics`: print metrics as a table, on the first process."""
    if not self.is_world_process_zero():
        return
    table = {str(name): str(value) for name, value in self.metrics_format(metrics).items()}
    names, values = max(map(len, table), default=0), max(map(len, table.values()), default=0)
    print(f"***** {split} metrics *****")
    for name, value in sorted(table.items()):
        print(f"  {name:<{names}} = {value:>{values}}")


def save_metrics(self: Any, split: str, metrics: dict[str, float], combined: bool = True) -> None:
    """As `transformers.Trainer.save_metrics`: into `{split}_results.json`, on the first process.

    Args:
        split: `train`, `eval`, `test` or `all`.
        metrics: unformatted.
        combined: add them to `all_results.json` too.
    """
    if not self.is_world_process_zero():
        return
    folder = str(self.args.output_dir)
    _write_json(folder, f"{split}_results.json", metrics)
    if combined:
        path = os.path.join(folder, "all_results.json")
        known: dict[str, float] = {}
        if os.path.exists(path):
            known = read_object(path, keys="metrics")
        _write_json(folder, "all_results.json", {**known, **metrics})


def save_state(self: Any) -> None:
    """As `transformers.Trainer.save_state`: the state into `trainer_state.json`, on the first process."""
    if self.is_world_process_zero():
        self.state.save_to_json(os.path.join(str(self.args.output_dir), "trainer_state.json"))


def _write_json(folder: str, name: str, content: dict[str, Any]) -> None:
    path = os.path.join(folder, name)
    os.makedirs(folder, exist_ok=True)
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(content, file, indent=4, sort_keys=True)
    os.replace(f"{path}.tmp", path)
