"""Callbacks of both kinds in one `lightning.Trainer`: `python examples/lightning/callbacks.py`.

`LightningBridge` is a Lightning callback that carries TrainerCallbacks; those of Lightning stand
beside it.
"""

from __future__ import annotations

import tempfile
from typing import Any

import lightning
from datamodule import Sentences
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from module import make_module

from lightrainer import EarlyStoppingCallback, TrainerCallback
from lightrainer.callbacks import LightningBridge


class Epochs(TrainerCallback):
    """Notes where each epoch ended, as a callback of a Trainer does."""

    def __init__(self) -> None:
        self.ends: list[int] = []

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the bridge."""
        self.ends.append(state.global_step)


def main() -> list[int]:
    """Train until the loss gets no better; returns the steps at which epochs ended."""
    lightning.seed_everything(42, verbose=False)
    epochs = Epochs()
    stopping = EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=0.2)
    bridge = LightningBridge(epochs, stopping, metric_for_best_model="val_long_loss")
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=20,
            accelerator="cpu",
            callbacks=[bridge, LearningRateMonitor()],
            logger=CSVLogger(folder),
            log_every_n_steps=5,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(make_module(), Sentences(batch_size=8))
    print(f"stopped after {len(epochs.ends)} epochs of at most 20, at the steps {epochs.ends}")
    return epochs.ends


if __name__ == "__main__":
    main()
