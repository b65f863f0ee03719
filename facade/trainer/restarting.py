"""A training that `torchrun` starts again goes on from its last checkpoint by itself."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch.distributed as dist

from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import owners
from ..distributed.collectives import from_first_process
from .saving import Saving

logger = logging.getLogger(__name__)


class Restarting(Saving):
    """Finds where to begin. Every process is told the same by the first one."""

    def _where_to_begin(self, resume_from_checkpoint: str | bool | None, trial: Any) -> str | None:
        """The checkpoint to begin with, see `Trainer.train`; None for a training that begins anew.

        Under `torchrun`, checkpoints that this training wrote before it was started again go before what the script
        asks for, unless that is False. Those of other jobs in the same folder are no matter.
        """
        launcher = owners.own_launcher()
        if launcher is None or trial is not None:
            return self._find_checkpoint(resume_from_checkpoint)
        owners.begin_training(self._launchers(launcher))
        own = from_first_process(self._newest_of_this_training(), self.args.world_size)
        if resume_from_checkpoint is False:
            return None
        if own:
            logger.warning("The job was started again, and goes on from %s.", own)
            return self._find_checkpoint(own)
        if not owners.restarts():
            return self._find_checkpoint(resume_from_checkpoint)
        if resume_from_checkpoint is not True or self._has_checkpoint():
            found = self._find_checkpoint(resume_from_checkpoint)
        else:
            found = None
        logger.warning(
            "The job was started again before it had written a checkpoint, so the training begins %s.",
            "anew" if found is None else f"with {found}, as it did before",
        )
        return found

    def _newest_of_this_training(self) -> str | None:
        folder = str(self.args.output_dir)
        if not os.path.isdir(folder):
            return None
        return checkpoints.last_intact_checkpoint(folder, wanted=owners.is_of_this_training)

    def _has_checkpoint(self) -> bool:
        folder = str(self.args.output_dir)
        return os.path.isdir(folder) and checkpoints.last_intact_checkpoint(folder) is not None

    def _launchers(self, own: str) -> list[str]:
        """Those of all machines."""
        if self.args.world_size == self.args.local_world_size:
            return [own]
        everybody: list[Any] = [None] * self.args.world_size
        dist.all_gather_object(everybody, own)
        return everybody
