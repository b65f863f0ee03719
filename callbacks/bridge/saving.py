"""Checkpoints of Lightning that callbacks ask for."""

from __future__ import annotations

import os
from typing import Any

from ..state import TrainerState


class BridgeCheckpoints:
    """Writes `checkpoint-N` through the Lightning Trainer, and keeps `save_total_limit` of them."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.is_writing = False
        self.was_written_by_another = False

    def save(self, trainer: Any, state: TrainerState, args: Any) -> str:
        """Write one, on all processes; returns where."""
        suffix = "" if _makes_folders(trainer) else ".ckpt"
        path = os.path.join(str(args.output_dir), f"checkpoint-{state.global_step}{suffix}")
        if state.best_global_step == state.global_step:
            state.best_model_checkpoint = path
        self.written = [*(one for one in self.written if one != path), path]
        self.is_writing = True
        try:
            trainer.save_checkpoint(path)
        finally:
            self.is_writing = False
        self._rotate(trainer, state, args.save_total_limit)
        return path

    def note(self) -> None:
        """Lightning is about to write a checkpoint."""
        self.was_written_by_another = self.was_written_by_another or not self.is_writing

    def _rotate(self, trainer: Any, state: TrainerState, limit: int | None) -> None:
        if not limit:
            return
        spared = {self.written[-1], state.best_model_checkpoint}
        oldest = [path for path in self.written if path not in spared]
        while len(self.written) > limit and oldest:
            path = oldest.pop(0)
            self.written.remove(path)
            trainer.strategy.remove_checkpoint(path)


def _makes_folders(trainer: Any) -> bool:
    """Whether the plugin that writes makes folders in the documented layout, also where another one wraps it."""
    plugin = trainer.strategy.checkpoint_io
    while plugin is not None:
        if any(base.__name__ == "FolderCheckpointIO" for base in type(plugin).__mro__):
            return True
        plugin = getattr(plugin, "checkpoint_io", None)
    return False
