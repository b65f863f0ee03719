"""Checkpoints of a training under DeepSpeed: each process writes its part of the states, in DeepSpeed's own form."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import SCHEDULER_NAME
from ...lightning_modules.checkpoints.forms import has_weights
from ...lightning_modules.checkpoints.state_guards import loading_schedule
from ...lightning_modules.distributed import deepspeed_engine
from ...lightning_modules.models import inspection
from ..strategies.deepspeed import DeepSpeedPlan
from .reporting import TrainerLogging

logger = logging.getLogger(__name__)


class EngineStates(TrainerLogging):
    """What differs from checkpoints of torch's optimizers, for those who write and read them."""

    @property
    def _engine(self) -> Any:
        """The engine of a training, that of now or the last; None where the model is not trained by one."""
        called = inspection.to_call(self.model, self.model_wrapped)
        return called if deepspeed_engine.trains(called) else None

    @property
    def _has_adapter(self) -> bool:
        return inspection.base_of_adapter(self.model) is not inspection.unwrap_model(self.model)

    def _gathers_on_save(self) -> bool:
        """Whether a model that is saved has its whole weights: the configuration of DeepSpeed can say no."""
        strategy = self.plan.strategy
        return not isinstance(strategy, DeepSpeedPlan) or strategy.gathers_on_save

    def _save_engine(self, output_dir: str) -> None:
        """Write the states of all processes; the first one adds the schedule."""
        deepspeed_engine.save_states(self._engine, output_dir, self.state.global_step, without_frozen=self._has_adapter)
        if self.args.should_save and self.lr_scheduler is not None:
            checkpoints.save_torch(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER_NAME))

    def _load_engine(self, checkpoint: str) -> None:
        """Go on from what `_save_engine` wrote."""
        if self._engine is None:  # no step is left to take, so there is none
            return
        if deepspeed_engine.saved_states(checkpoint) is None:
            logger.warning("%s has no states of DeepSpeed: training goes on with a new optimizer.", checkpoint)
            return
        deepspeed_engine.load_states(self._engine, checkpoint, strict=not self._has_adapter)
        path = os.path.join(checkpoint, SCHEDULER_NAME)
        if os.path.isfile(path):
            state = checkpoints.load_torch(path)
            with loading_schedule(self.lr_scheduler, state, path):
                self.lr_scheduler.load_state_dict(state)
            if not isinstance(self.lr_scheduler, LRScheduler):  # DeepSpeed's forget the rate that they have set
                self.lr_scheduler._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _save_in_parts(self, output_dir: str) -> None:
        """Save a model whose weights are not to be gathered: DeepSpeed's states are all there is."""
        if self._engine is None:
            raise ValueError(
                "The model was not trained by DeepSpeed, and stage3_gather_16bit_weights_on_model_save is False, so "
                "there is nothing to save. Set it to True, or leave it out."
            )
        if self.args.should_log:
            logger.warning(
                "stage3_gather_16bit_weights_on_model_save is False, so %s has the parts of all processes in place of "
                "whole weights: its zero_to_fp32.py puts them together.",
                output_dir,
            )
        self._save_engine(output_dir)

    def _are_in_parts(self, checkpoint: str) -> bool:
        """Whether a checkpoint has the weights in DeepSpeed's states and nowhere else, where they can be read."""
        found = deepspeed_engine.saved_states(checkpoint) if os.path.isdir(checkpoint) else None
        return found is not None and not has_weights(Path(checkpoint)) and self._is_for_deepspeed

    @property
    def _is_for_deepspeed(self) -> bool:
        return isinstance(self.plan.strategy, DeepSpeedPlan)

    def _require_fitting_parts(self, checkpoint: str | None) -> None:
        """Look whether this training can go on from the states in a checkpoint, before anything is touched.

        Raises:
            ValueError: another number of processes, or another stage of ZeRO, wrote them.
        """
        strategy = self.plan.strategy
        found = None if checkpoint is None else deepspeed_engine.saved_states(checkpoint)
        if found is None or not isinstance(strategy, DeepSpeedPlan):
            return
        # Without a common disk each machine has the parts of its own processes.
        expected = self.args.local_world_size if self.args.save_on_each_node else self.args.world_size
        if found.processes is not None and found.processes != expected:
            raise ValueError(
                f"{checkpoint} was written by {found.processes} processes, and the number of processes is "
                f"{expected}: DeepSpeed's states are made for as many as wrote them. Start as many, or "
                "begin a new training with the weights: Trainer(model=...) from that folder, without "
                "resume_from_checkpoint."
            )
        if strategy.stage not in found.stages:
            before = " or ".join(map(str, found.stages))
            raise ValueError(
                f"{checkpoint} was written with zero_optimization.stage {before}, and the stage is {strategy.stage}, "
                f"which cannot read it. Set it to {before}, or begin a new training with the weights."
            )


def whole_or_parts(trainer: EngineStates, model: nn.Module, folder: str) -> bool:
    """Load the parts of a checkpoint that has nothing else; returns False where there are whole weights.

    Args:
        trainer: the Trainer, whose engine may be yet to come: then it loads them when it is there.
        model: what is to be filled.
        folder: the checkpoint.
    """
    if not trainer._are_in_parts(folder):
        return False
    if deepspeed_engine.trains(inspection.to_call(model, trainer.model_wrapped)) and trainer._run is not None:
        deepspeed_engine.load_states(trainer._engine, folder, strict=not trainer._has_adapter)
    return True
