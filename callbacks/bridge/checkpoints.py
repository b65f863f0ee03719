"""Checkpoints that callbacks ask for, written by a Lightning Trainer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..state import TrainerState
from .arguments import BridgeArguments

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


class BridgeCheckpoints:
    """Writes `checkpoint-N` through Lightning, and keeps at most `save_total_limit` of them.

    Attributes:
        paths: the checkpoints that exist, the oldest first.
        has_unreported_write: whether Lightning has written a checkpoint, for a `ModelCheckpoint`
            for example, for which `on_save` has not fired yet.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.has_unreported_write = False
        self._is_saving = False

    def save(self, trainer: Trainer, state: TrainerState, args: BridgeArguments) -> None:
        """Write a checkpoint, on all processes, and remove the oldest ones."""
        suffix = "" if _writes_folders(trainer) else ".ckpt"
        path = os.path.join(str(args.output_dir), f"checkpoint-{state.global_step}{suffix}")
        if state.best_global_step == state.global_step:
            state.best_model_checkpoint = path

        # A step that is saved again becomes the newest one.
        if path in self.paths:
            self.paths.remove(path)
        self.paths.append(path)

        # `record_write` is called while Lightning writes.
        self._is_saving = True
        try:
            trainer.save_checkpoint(path)
        finally:
            self._is_saving = False
        self._rotate(trainer, state, args.save_total_limit)

    def record_write(self) -> None:
        """Record that Lightning is about to write a checkpoint."""
        if not self._is_saving:
            self.has_unreported_write = True

    def _rotate(self, trainer: Trainer, state: TrainerState, limit: int | None) -> None:
        """Remove the oldest checkpoints beyond the limit, except the newest and the best one."""
        if not limit:
            return
        protected_paths = {self.paths[-1], state.best_model_checkpoint}
        removable = [path for path in self.paths if path not in protected_paths]
        while len(self.paths) > limit and removable:
            path = removable.pop(0)
            self.paths.remove(path)
            trainer.strategy.remove_checkpoint(path)


def _writes_folders(trainer: Trainer) -> bool:
    """Return whether checkpoints are folders in the documented layout.

    They are if the checkpoint plugin, or one that it wraps, is a `FolderCheckpointIO`.
    """
    plugin: object = trainer.strategy.checkpoint_io
    while plugin is not None:
        class_names = [base.__name__ for base in type(plugin).__mro__]
        if "FolderCheckpointIO" in class_names:
            return True
        plugin = getattr(plugin, "checkpoint_io", None)
    return False
