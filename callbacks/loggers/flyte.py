"""Flyte."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..state import TrainerControl, TrainerState
from .availability import is_flyte_deck_standard_available, is_installed
from .base import LoggerCallback

if TYPE_CHECKING:
    from ...facade import TrainingArguments


logger = logging.getLogger(__name__)


class FlyteCallback(LoggerCallback):
    """Store checkpoints in Flyte, and show the logs of a task.

    Works like `transformers.integrations.FlyteCallback`, but only process 0 creates the deck.

    It works inside a Flyte task.

    Args:
        save_log_history: whether to show all logs as a table, a Flyte deck; needs
            flytekitplugins-deck-standard and pandas.
        sync_checkpoints: whether to store the newest checkpoint in Flyte. An interrupted task
            resumes from it with
            `trainer.train(resume_from_checkpoint=current_context().checkpoint.restore())`.

    Raises:
        MissingTrackerError: an ImportError; flytekit is not installed.
    """

    platform = "flyte"

    def __init__(self, save_log_history: bool = True, sync_checkpoints: bool = True) -> None:
        super().__init__()
        can_make_deck = is_flyte_deck_standard_available() and is_installed("pandas")
        if save_log_history and not can_make_deck:
            logger.warning(
                "No deck of the logs is created: that needs "
                "`pip install flytekitplugins-deck-standard pandas`."
            )
            save_log_history = False
        self.cp: Any = import_module("flytekit").current_context().checkpoint
        self.save_log_history = save_log_history
        self.sync_checkpoints = sync_checkpoints

    @property
    def uploads_checkpoints(self) -> bool:
        """Whether checkpoints are uploaded, by `sync_checkpoints`."""
        return self.sync_checkpoints

    def _upload(self, args: TrainingArguments, state: TrainerState, folder: str) -> None:
        """Store the checkpoint in Flyte, in place of the previous one."""
        self.cp.save(folder)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Show the logs as a table."""
        if self.save_log_history and state.is_world_process_zero:
            with self._failures_as_warnings("the table of logs"):
                pandas = import_module("pandas")
                flytekit = import_module("flytekit")
                renderer = import_module("flytekitplugins.deck.renderer").TableRenderer()
                table = pandas.DataFrame(state.log_history)
                flytekit.Deck("Log History", renderer.to_html(table))
        self._log_failures()
