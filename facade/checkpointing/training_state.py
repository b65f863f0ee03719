"""What a checkpoint holds beside the model and the position in the data: optimizer, schedule, and loss scale."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import SCALER_NAME, SCHEDULER_NAME
from ...lightning_modules.checkpoints.state_guards import loading_schedule
from ...lightning_modules.common.weak_attribute import WeakAttribute
from .callback_states import Writer

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

logger = logging.getLogger(__name__)


class TrainingState:
    """The files that the steps of a training go on from; each is written by one method, and read by another.

    Args:
        host: the Trainer whose training it is.
    """

    host = WeakAttribute["Trainer"]()

    def __init__(self, host: Trainer) -> None:
        self.host = host

    def save_optimizer_and_schedule(self, folder: str, writer: Writer, *, checkpoint: bool) -> None:
        """Write both; all processes have to call it.

        Args:
            folder: where to.
            writer: writes large files.
            checkpoint: it is a checkpoint that is written, into which processes may put parts.
        """
        host, saves = self.host, self.host.args.should_save
        write = writer.tensors if saves else None
        host._strategy.save_optimizer(folder, write=write, checkpoint=checkpoint, step=host.state.global_step)
        if saves and host.lr_scheduler is not None:
            checkpoints.save_torch(host.lr_scheduler.state_dict(), os.path.join(folder, SCHEDULER_NAME))

    def load_optimizer_and_schedule(self, checkpoint: str) -> None:
        """Load both; warn where they are not there."""
        if not self.host._strategy.load_optimizer(checkpoint):
            return
        state = self.host._strategy.read_schedule(checkpoint)
        if state is None:
            logger.warning("%s has no schedule: training goes on with a new one.", checkpoint)
            return
        with loading_schedule(self.host.lr_scheduler, state, os.path.join(checkpoint, SCHEDULER_NAME)):
            self.host.lr_scheduler.load_state_dict(state)
        self.host._strategy.schedule_loaded()

    def save_scaler(self, folder: str) -> None:
        """Write the loss scale of fp16; nothing in other precisions."""
        scaler = self.host.accelerator.scaler
        if scaler is not None and self.host.args.should_save:
            checkpoints.save_torch(scaler.state_dict(), os.path.join(folder, SCALER_NAME))

    def load_scaler(self, checkpoint: str) -> None:
        """Load the loss scale, where the precision has one; warn where it is not there."""
        scaler = self.host.accelerator.scaler
        if scaler is None:
            return
        path = os.path.join(checkpoint, SCALER_NAME)
        if os.path.isfile(path):
            scaler.load_state_dict(checkpoints.load_torch(path))
        else:
            logger.warning("%s has no %s: fp16 goes on with a new loss scale.", checkpoint, SCALER_NAME)
