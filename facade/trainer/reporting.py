"""Logs, metrics and the state of a training, for people and for files."""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from ...lightning_modules.common.json_files import read_object
from ..arguments.parallelism import copies_of_batches
from ..evaluation import speed as formats
from .base import TrainerBase


class TrainerLogging(TrainerBase):
    """From numbers to logs and files."""

    _initial_num_input_tokens_seen = 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As `transformers.Trainer.log`: into the history, and to all callbacks.

        Args:
            logs: what to log; the epoch is added.
            start_time: when the training began, for tokens per second.
        """
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                tokens = self.state.num_input_tokens_seen - self._initial_num_input_tokens_seen
                logs.update(formats.speed_metrics("train", start_time, num_tokens=tokens))
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """As `transformers.Trainer.log_metrics`: print metrics as a table, on the first process."""
        if not self.is_world_process_zero():
            return
        table = {str(name): str(value) for name, value in self.metrics_format(metrics).items()}
        names, values = max(map(len, table), default=0), max(map(len, table.values()), default=0)
        print(f"***** {split} metrics *****")
        for name, value in sorted(table.items()):
            print(f"  {name:<{names}} = {value:>{values}}")

    metrics_format = staticmethod(formats.metrics_format)

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
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

    def save_state(self) -> None:
        """As `transformers.Trainer.save_state`: the state into `trainer_state.json`, on the first process."""
        if self.is_world_process_zero():
            self.state.save_to_json(os.path.join(str(self.args.output_dir), "trainer_state.json"))

    def store_flos(self) -> None:
        """As `transformers.Trainer.store_flos`: add the operations since the last call, of all processes."""
        device = self.args.device if self.args.device.type == "cuda" else torch.device("cpu")
        flos = torch.tensor([self.current_flos], dtype=torch.float64, device=device)
        total = self.accelerator.reduce(flos).item() if self.args.world_size > 1 else self.current_flos
        self.state.total_flos += total / copies_of_batches(self.args)
        self.current_flos = 0.0


def _write_json(folder: str, name: str, content: dict[str, Any]) -> None:
    path = os.path.join(folder, name)
    os.makedirs(folder, exist_ok=True)
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(content, file, indent=4, sort_keys=True)
    os.replace(f"{path}.tmp", path)
