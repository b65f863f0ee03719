"""Flyte."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from ..state import TrainerControl, TrainerState
from .availability import is_flyte_deck_standard_available, is_installed
from .base import LoggerCallback
from .values import checkpoint_folder

logger = logging.getLogger(__name__)


class FlyteCallback(LoggerCallback):
    """As `transformers.integrations.FlyteCallback`, but only the first process makes the deck. Inside of a Flyte task.

    Args:
        save_log_history: show all logs as a table, a Flyte deck; needs flytekitplugins-deck-standard and pandas.
        sync_checkpoints: keep the newest checkpoint in Flyte, from which an interrupted task resumes with
            `trainer.train(resume_from_checkpoint=current_context().checkpoint.restore())`.

    Raises:
        MissingTrackerError: an ImportError; flytekit is not installed.
    """

    platform = "flyte"

    def __init__(self, save_log_history: bool = True, sync_checkpoints: bool = True) -> None:
        super().__init__()
        if save_log_history and not (is_flyte_deck_standard_available() and is_installed("pandas")):
            logger.warning(
                "The logs are not shown as a Flyte deck: run `pip install flytekitplugins-deck-standard pandas`, or "
                "pass FlyteCallback(save_log_history=False)."
            )
            save_log_history = False
        self.cp: Any = import_module("flytekit").current_context().checkpoint
        self.save_log_history = save_log_history
        self.sync_checkpoints = sync_checkpoints

    @property
    def uploads_checkpoints(self) -> bool:
        """With `sync_checkpoints`."""
        return self.sync_checkpoints

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Give the checkpoint to Flyte."""
        if self.sync_checkpoints and state.is_world_process_zero:
            with self._training_goes_on(f"checkpoint-{state.global_step}"):
                self.cp.save(checkpoint_folder(args, state))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Show the logs as a table."""
        if self.save_log_history and state.is_world_process_zero:
            with self._training_goes_on("the table of logs"):
                table = import_module("pandas").DataFrame(state.log_history)
                renderer = import_module("flytekitplugins.deck.renderer").TableRenderer()
                import_module("flytekit").Deck("Log History", renderer.to_html(table))
        self._warn_what_is_lost()
