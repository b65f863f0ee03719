"""What a checkpoint holds beside the model: optimizer, schedule, loss scale, and generators."""

from __future__ import annotations

import logging
import os
from typing import Any

from torch import nn

from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import OPTIMIZER_NAME, SCALER_NAME, SCHEDULER_NAME
from ...lightning_modules.checkpoints.state_guards import loading_optimizer, loading_schedule
from ...lightning_modules.distributed import sharding
from ...lightning_modules.models import inspection
from ...lightning_modules.optim.optimizer_fit import require_fitting_optimizer_state
from .engine_states import EngineStates

logger = logging.getLogger(__name__)


class TrainingState(EngineStates):
    """Each part is written into a folder by one method, and read from it by another."""

    _writer: Any
    _staging: str | None = None  # the folder of the checkpoint that is being written

    @property
    def _sharded(self) -> nn.Module | None:
        """What to call in the place of the model, if that is spread over processes."""
        called = inspection.to_call(self.model, self.model_wrapped)
        return called if sharding.is_sharded(called) else None

    def _saves_parts(self, folder: str) -> bool:
        """Whether each process writes its part of what is saved to a folder: into checkpoints, where it was asked."""
        return folder == self._staging and self.plan.strategy.saves_parts

    @property
    def _in_parts(self) -> bool:
        """Whether several processes have to write a checkpoint together."""
        return self._sharded is not None or self._engine is not None

    def _whole(self, model: nn.Module) -> Any:
        """The user's model, which if it is spread over processes appears as if it were not."""
        called = inspection.to_call(model, self.model_wrapped)
        return sharding.WholeModel(called) if sharding.is_sharded(called) else inspection.unwrap_model(model)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._engine is not None:
            self._save_engine(output_dir)
            return
        sharded, keep = self._sharded, self.args.should_save
        if sharded is not None and self._saves_parts(output_dir):
            checkpoints.save_optimizer_parts(sharded, self.optimizer, output_dir)
            self._save_schedule(output_dir)
            return
        if sharded is not None:
            state = sharding.whole_optimizer_state(sharded, self.optimizer, keep=keep)
        else:
            state = self.optimizer.state_dict() if keep else {}
        if not keep:
            return
        self._writer.tensors(state, os.path.join(output_dir, OPTIMIZER_NAME))
        self._save_schedule(output_dir)

    def _save_schedule(self, output_dir: str) -> None:
        if self.lr_scheduler is not None and self.args.should_save:
            checkpoints.save_torch(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER_NAME))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        if self._is_for_deepspeed:
            self._load_engine(checkpoint)
            return
        optimizer, scheduler = (os.path.join(checkpoint, name) for name in (OPTIMIZER_NAME, SCHEDULER_NAME))
        parts, sharded = checkpoints.has_optimizer_parts(checkpoint), self._sharded
        if not (parts or os.path.isfile(optimizer)) or not os.path.isfile(scheduler):
            logger.warning("%s has no optimizer or schedule: training goes on with new ones.", checkpoint)
            return
        with loading_optimizer(self.optimizer, optimizer):
            if parts:
                model, together = (self.model, False) if sharded is None else (sharded, True)
                checkpoints.load_optimizer_parts(model, self.optimizer, checkpoint, together=together)
            elif sharded is not None:
                sharding.load_whole_optimizer_state(
                    sharded, self.optimizer, checkpoints.load_torch(optimizer), file=optimizer
                )
            else:
                state = checkpoints.load_torch(optimizer)
                require_fitting_optimizer_state(self.optimizer, state, optimizer, model=self.model)
                self.optimizer.load_state_dict(state)
        self._load_schedule(scheduler)

    def _load_schedule(self, path: str) -> None:
        state = checkpoints.load_torch(path)
        with loading_schedule(self.lr_scheduler, state, path):
            self.lr_scheduler.load_state_dict(state)

    def _save_scaler(self, output_dir: str) -> None:
        scaler = self.accelerator.scaler
        if scaler is not None and self.args.should_save:
            checkpoints.save_torch(scaler.state_dict(), os.path.join(output_dir, SCALER_NAME))

    def _load_scaler(self, checkpoint: str | None) -> None:
        scaler = self.accelerator.scaler
        if checkpoint is None or scaler is None:
            return
        path = os.path.join(checkpoint, SCALER_NAME)
        if os.path.isfile(path):
            scaler.load_state_dict(checkpoints.load_torch(path))
        else:
            logger.warning("%s has no %s: fp16 goes on with a new loss scale.", checkpoint, SCALER_NAME)
