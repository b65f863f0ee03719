"""What a LightningModule must keep beside weights and loops, so that a resumed training is the training."""

from __future__ import annotations

from typing import Any

from ..checkpoints.folder_io import FolderReader
from ..internals.lightning_import import Callback, LightningModule, Strategy, TorchCheckpointIO, Trainer
from .resuming import Resuming, add_process_states, is_fitted

__all__ = ["ResumableModule", "ResumingCallback", "add_process_states"]


class ResumableModule(LightningModule):
    """A LightningModule whose checkpoints hold the random generators and the position in an `EpochLoader` too.

    So `fit(module, ckpt_path=...)` goes on to the numbers of a training that was never interrupted, in mid-epoch too.
    Loaders of other kinds go on as Lightning lets them. Who overrides one of the hooks below calls `super()`.
    """

    _own_resuming: Resuming | None = None

    @property
    def _resuming(self) -> Resuming:
        if self._own_resuming is None:
            self._own_resuming = Resuming()
        return self._own_resuming

    def setup(self, stage: str) -> None:
        """Let `ckpt_path` be a folder too, where Lightning would read and write its own files."""
        super().setup(stage)
        strategy = self.trainer.strategy
        reads_files = type(strategy).load_checkpoint is Strategy.load_checkpoint
        if reads_files and type(strategy.checkpoint_io) is TorchCheckpointIO:
            strategy.checkpoint_io = FolderReader(self.trainer)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the state of every process."""
        super().on_save_checkpoint(checkpoint)
        if self._is_fitted():
            self._resuming.on_save_checkpoint(self.trainer, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Note the state of this process, and give tied weights that were stored once all their names."""
        super().on_load_checkpoint(checkpoint)
        _add_tied_names(self, checkpoint["state_dict"])
        if self._is_fitted():
            self._resuming.on_load_checkpoint(self.trainer, checkpoint)

    def on_train_start(self) -> None:
        """Go to the position in the data."""
        super().on_train_start()
        self._resuming.on_train_start(self.trainer)

    def on_train_epoch_start(self) -> None:
        """Give the loader its epoch: one that Lightning has cut short does not know that it has ended."""
        super().on_train_epoch_start()
        self._resuming.on_train_epoch_start(self.trainer)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Restore the generators where a batch had to be read once more to get here."""
        self._resuming.on_train_batch_start(self.trainer)
        return super().on_train_batch_start(batch, batch_idx)

    def on_validation_start(self) -> None:
        """Note the generators: a validation that is interrupted is begun again."""
        super().on_validation_start()
        self._resuming.on_validation_start(self.trainer)

    def on_validation_end(self) -> None:
        """Forget them."""
        super().on_validation_end()
        self._resuming.on_validation_end(self.trainer)

    def _is_fitted(self) -> bool:
        try:
            return is_fitted(self.trainer)
        except RuntimeError:  # there is no trainer, as in `load_from_checkpoint`
            return False


class ResumingCallback(Callback):
    """Does what a `ResumableModule` does for itself, for any other module that is trained with `DataModule`."""

    def __init__(self) -> None:
        self.resuming = Resuming()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the state of every process."""
        if is_fitted(trainer):
            self.resuming.on_save_checkpoint(trainer, checkpoint)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note the state of this process."""
        if is_fitted(trainer):
            self.resuming.on_load_checkpoint(trainer, checkpoint)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go to the position in the data."""
        self.resuming.on_train_start(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the loader its epoch."""
        self.resuming.on_train_epoch_start(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Restore the generators."""
        self.resuming.on_train_batch_start(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the generators."""
        self.resuming.on_validation_start(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget them."""
        self.resuming.on_validation_end(trainer)


def _add_tied_names(module: LightningModule, stored: dict[str, Any]) -> None:
    """Add the names that a safetensors file leaves out, which has each tensor under one; Lightning asks for all."""
    own = module.state_dict(keep_vars=True)
    by_tensor = {id(value): name for name, value in own.items() if name in stored}
    for name, value in own.items():
        if name not in stored and id(value) in by_tensor:
            stored[name] = stored[by_tensor[id(value)]]
