"""The manager that requests a checkpoint after a SIGTERM, and the saving of one at once."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from ..lightning_modules.common.file_names import INCOMPLETE_NAME, PREFIX_CHECKPOINT_DIR
from ._signal_listener import SignalHandler
from .state import TrainerState


class SavingTrainer(Protocol):
    """The parts of a Trainer that are needed to save a checkpoint."""

    @property
    def args(self) -> Any:
        """The training arguments, with `enable_jit_checkpoint`."""
        ...

    @property
    def state(self) -> TrainerState:
        """The state of the training."""
        ...

    @property
    def model(self) -> Any:
        """The model, as `_save_checkpoint` takes it."""
        ...

    def _get_output_dir(self, trial: Any) -> str:
        """Return the folder of the checkpoints."""
        ...

    def _save_checkpoint(self, model: Any, trial: Any) -> object:
        """Write a checkpoint."""
        ...


class CheckpointManager:
    """Request a checkpoint after a SIGTERM.

    Works like `transformers.trainer_jit_checkpoint.CheckpointManager`.

    Requests a checkpoint `kill_wait` seconds after a SIGTERM. A manager that a script assigns to
    `jit_manager` of a `JITCheckpointCallback` replaces the signal handling of the callback.

    Args:
        trainer: the Trainer whose state is written.
        kill_wait: in seconds.
    """

    def __init__(self, trainer: SavingTrainer, kill_wait: float = 3) -> None:
        self.trainer = trainer
        self.is_checkpoint_requested = False
        self.kill_wait = kill_wait
        self._original_sigterm_handler: SignalHandler = None

    def setup_signal_handler(self) -> None:
        """Handle SIGTERM from now on."""
        self._original_sigterm_handler = signal.signal(signal.SIGTERM, self._sigterm_handler)

    def execute_jit_checkpoint(self) -> None:
        """Write a checkpoint of the current state.

        A file in its folder marks it as incomplete until it is written.
        """
        self.is_checkpoint_requested = False
        step = self.trainer.state.global_step
        output_dir = self.trainer._get_output_dir(trial=None)  # pyright: ignore[reportPrivateUsage] - as transformers names it
        marker = Path(output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}", INCOMPLETE_NAME)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text(f"The checkpoint of step {step} is being written.\n")
        _save_checkpoint(self.trainer)
        marker.unlink(missing_ok=True)

    def _sigterm_handler(self, signum: int, frame: FrameType | None) -> None:
        if not self.is_checkpoint_requested:
            threading.Timer(self.kill_wait, self._enable_checkpoint).start()

    def _enable_checkpoint(self) -> None:
        self.is_checkpoint_requested = True


def save_at_once(trainer: SavingTrainer) -> None:
    """Write a checkpoint; a training of the Trainer of this package waits until it is on disk."""
    components = getattr(trainer, "_lightrainer", None)
    run = getattr(components, "run", None)
    if run is None:
        _save_checkpoint(trainer)
    else:
        run._save_at_once()


def _save_checkpoint(trainer: SavingTrainer) -> None:
    # The method is private, but transformers' manager calls it too, and scripts override it.
    trainer._save_checkpoint(trainer.model, trial=None)  # pyright: ignore[reportPrivateUsage]
