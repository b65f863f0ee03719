"""Callback that writes folders `checkpoint-N` from a plain `lightning.Trainer`."""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from ..common.file_names import PREFIX_CHECKPOINT_DIR
from ..common.local_paths import require_local
from ..internals.lightning_import import (
    LightningModule,
    ModelCheckpoint,
    TorchCheckpointIO,
    Trainer,
)
from .folder_io import FolderCheckpointIO
from .folders import last_intact_checkpoint, list_checkpoints, rotate_checkpoints

__all__ = ["FolderCheckpoint"]

_SHARDING_STRATEGIES = (
    "FSDPStrategy",
    "ModelParallelStrategy",
    "DeepSpeedStrategy",
    "XLAFSDPStrategy",
)
"""Lightning strategies that write sharded models in their own format."""


class FolderCheckpoint(ModelCheckpoint):
    """Write the folders `checkpoint-N` of the Trainer API from a plain `lightning.Trainer`.

    A callback, as Lightning's `ModelCheckpoint`.

        checkpoint = FolderCheckpoint("out", every_n_train_steps=500, save_total_limit=2)
        trainer = lightning.Trainer(callbacks=[checkpoint])
        # Resumes from the last run, if there was one.
        trainer.fit(module, loader, ckpt_path=checkpoint.newest())

    `lightrainer.Trainer` and transformers can resume from the folders too, see
    `FolderCheckpointIO`, which this callback sets on the Lightning Trainer. If none of the three
    intervals is set, a checkpoint is written at the end of each epoch.

    Args:
        dirpath: the folder for the checkpoints.
        every_n_train_steps: optimizer steps between two checkpoints.
        every_n_epochs: epochs between two checkpoints.
        train_time_interval: time between two checkpoints.
        save_on_train_epoch_end: save at the end of the epoch instead of after validation, as in
            `ModelCheckpoint`.
        save_total_limit: number of most recent checkpoints to keep. The best one is always kept, so
            a limit of 1 may keep two.
        monitor: name of the logged metric that selects the best checkpoint (`best_model_path`).
        mode: "min" if the lowest value is the best, "max" if the highest is.
        attribute: name of the module's attribute that holds the model, as for `FolderCheckpointIO`.
        processing_class: tokenizer or processor, saved beside the model if it has
            `save_pretrained`.

    Raises:
        ValueError: `save_total_limit` is below 1. Or, when a run starts, the strategy or a plugin
            writes another format.
    """

    FILE_EXTENSION = ""

    best_model_path: str
    """Path of the best checkpoint by `monitor`; empty before the first one."""

    def __init__(
        self,
        dirpath: str | os.PathLike[str],
        *,
        every_n_train_steps: int | None = None,
        every_n_epochs: int | None = None,
        train_time_interval: timedelta | None = None,
        save_on_train_epoch_end: bool | None = None,
        save_total_limit: int | None = None,
        monitor: str | None = None,
        mode: Literal["min", "max"] = "min",
        attribute: str = "model",
        processing_class: object = None,
    ) -> None:
        require_local(dirpath, "dirpath")
        if save_total_limit is not None and save_total_limit < 1:
            raise ValueError(
                f"save_total_limit={save_total_limit} must be at least 1, or None to keep all "
                "checkpoints"
            )

        # `ModelCheckpoint` keeps all checkpoints; `_rotate` deletes the oldest.
        super().__init__(
            dirpath=os.fspath(dirpath),
            filename=f"{PREFIX_CHECKPOINT_DIR}-{{step}}",
            auto_insert_metric_name=False,
            enable_version_counter=False,
            monitor=monitor,
            mode=mode,
            save_top_k=-1,
            every_n_train_steps=every_n_train_steps,
            every_n_epochs=every_n_epochs,
            train_time_interval=train_time_interval,
            save_on_train_epoch_end=save_on_train_epoch_end,
        )
        self.save_total_limit = save_total_limit
        self.attribute = attribute
        self.processing_class = processing_class
        self._has_saved = False

    def newest(self) -> str | None:
        """Return the newest intact checkpoint to resume from, or None."""
        folder = str(self.dirpath)
        if not os.path.isdir(folder):
            return None
        return last_intact_checkpoint(folder)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the folder format on the Lightning Trainer."""
        # Lightning warns of a folder that is not empty, but older checkpoints are expected here.
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="Checkpoint directory .* exists and is not empty"
            )
            super().setup(trainer, pl_module, stage)
        strategy = trainer.strategy
        name = type(strategy).__name__
        if name in _SHARDING_STRATEGIES:
            raise ValueError(f"FolderCheckpoint does not support {name}; use ModelCheckpoint.")

        # The user may have passed a `FolderCheckpointIO`, or a plugin that wraps one.
        plugin = strategy.checkpoint_io
        if isinstance(plugin, TorchCheckpointIO):
            strategy.checkpoint_io = FolderCheckpointIO(
                pl_module, attribute=self.attribute, processing_class=self.processing_class
            )
            return
        wrapped = getattr(plugin, "checkpoint_io", plugin)
        if not isinstance(wrapped, FolderCheckpointIO):
            raise ValueError(
                f"FolderCheckpoint cannot be combined with the plugin {type(plugin).__name__}, "
                "which writes another format. Remove one, or wrap FolderCheckpointIO in the plugin."
            )

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Record that a checkpoint was written."""
        self._has_saved = True

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Save if due, then rotate."""
        super().on_train_batch_end(trainer, *args, **kwargs)
        self._rotate(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save if due, then rotate."""
        super().on_train_epoch_end(trainer, pl_module)
        self._rotate(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save if due, then rotate."""
        super().on_validation_end(trainer, pl_module)
        self._rotate(trainer)

    def _rotate(self, trainer: Trainer) -> None:
        if not self._has_saved:
            return
        self._has_saved = False
        if self.save_total_limit is None or not trainer.is_global_zero:
            return

        folder = Path(str(self.dirpath))
        newest = folder / f"{PREFIX_CHECKPOINT_DIR}-{trainer.global_step}"
        if newest not in list_checkpoints(folder):
            return
        best: str | None = None
        if self.monitor and self.best_model_path:
            best = self.best_model_path
        rotate_checkpoints(folder, self.save_total_limit, best, newest=newest)
