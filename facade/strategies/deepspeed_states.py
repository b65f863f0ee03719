"""Write and read the states of DeepSpeed, whose engine has its own file format."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from ...lightning_modules.checkpoints import CheckpointFiles, tensor_bytes
from ...lightning_modules.checkpoints.weight_formats import has_weights
from ...lightning_modules.distributed import deepspeed_engine
from ...lightning_modules.distributed.zero_files import SavedStates, saved_schedule, saved_states
from ...lightning_modules.distributed.zero_states import ZeroStates
from ...lightning_modules.models import inspection
from ..arguments.deepspeed_config import GATHER, value_at
from .states import BoundStrategy, ModelStates

logger = logging.getLogger(__name__)

_NOT_RESHARDED: dict[str, Callable[[Any], bool]] = {
    "zero_optimization.offload_optimizer.device": lambda device: device == "nvme",
    "zero_optimization.offload_param.device": lambda device: device == "nvme",
    "zero_optimization.elastic_checkpoint": bool,
    "zero_optimization.mics_shard_size": lambda size: isinstance(size, int) and size > 0,
}
"""Keys of the configuration, and the values with which a rank does not hold the part of the
states that its number tells, or not in memory.
"""


class BoundDeepSpeed(BoundStrategy, Protocol):
    """What the strategy `DeepSpeed` that is bound to a Trainer tells of its model."""

    should_log: bool
    processes_on_disk: int
    options: dict[str, Any]

    @property
    def engine(self) -> Any:
        """See `DeepSpeed`."""
        ...

    @property
    def stage(self) -> int:
        """See `DeepSpeed`."""
        ...

    @property
    def is_running(self) -> bool:
        """See `Strategy`."""
        ...


class DeepSpeedStates(ModelStates):
    """As `ModelStates`; where DeepSpeed trains the model, all ranks write the files of the engine.

    Args:
        strategy: bound to the Trainer whose model and optimizer these are.
    """

    strategy: BoundDeepSpeed

    @property
    def engine_writes(self) -> bool:
        """See `ModelStates.engine_writes`."""
        return self.strategy.engine is not None

    @property
    def gathers_on_save(self) -> bool:
        """See `ModelStates.gathers_on_save`; in stage 3 the configuration can turn it off."""
        if self.strategy.stage != 3:
            return True
        return value_at(self.strategy.options["config"], GATHER, True) is not False

    def saves_parts(self, *, checkpoint: bool) -> bool:
        """See `ModelStates.saves_parts`.

        Without gathered weights there are only the engine's files, in models too.
        """
        return not self.gathers_on_save

    def save_weights(
        self, folder: str, *, files: CheckpointFiles, step: int, states_follow: bool
    ) -> None:
        """See `ModelStates.save_weights`."""
        # The engine's states contain the weights.
        if states_follow:
            return
        setting = "stage3_gather_16bit_weights_on_model_save is False"
        if self.strategy.engine is None:
            raise ValueError(
                f"{setting}, and the model was not trained by DeepSpeed: there is nothing to save."
            )
        if self.strategy.should_log:
            logger.warning(
                "%s, so %s gets the parts of all ranks; zero_to_fp32.py joins them.",
                setting,
                folder,
            )
        self._save_states(folder, step)

    def weights_are_in_parts(self, checkpoint: str) -> bool:
        """See `ModelStates.weights_are_in_parts`."""
        if not os.path.isdir(checkpoint):
            return False
        return saved_states(checkpoint) is not None and not has_weights(Path(checkpoint))

    def load_weights(self, model: nn.Module, checkpoint: str) -> None:
        """See `ModelStates.load_weights`; parts are loaded by the engine, once there is one."""
        if not self.weights_are_in_parts(checkpoint):
            super().load_weights(model, checkpoint)
            return
        forward_model = self.strategy.forward_model_of(model)
        if self.strategy.is_running and deepspeed_engine.trains(forward_model):
            self._load_states(checkpoint)

    def save_optimizer(
        self, folder: str, *, files: CheckpointFiles, checkpoint: bool, step: int
    ) -> None:
        """See `ModelStates.save_optimizer`."""
        if self.strategy.engine is None:
            super().save_optimizer(folder, files=files, checkpoint=checkpoint, step=step)
        else:
            self._save_states(folder, step)

    def require_fitting(self, checkpoint: str) -> None:
        """See `ModelStates.require_fitting`; stages 1 to 3 read each other's states, not 0's."""
        saved = saved_states(checkpoint)
        if saved is None or self._is_sharded_as_now(saved):
            return

        stage = self.strategy.stage
        stage_before = " or ".join(map(str, saved.stages))
        if stage == 0 or 0 in saved.stages:
            raise ValueError(
                f"{checkpoint} was written with zero_optimization.stage {stage_before}, which "
                f"stage {stage} cannot read. Set it to {stage_before}."
            )

        # Everything else is resharded, except for options that spread the states in another way.
        for key, prevents_resharding in _NOT_RESHARDED.items():
            value = value_at(self.strategy.options["config"], key)
            if prevents_resharding(value):
                raise ValueError(
                    f"{checkpoint} was written by {saved.processes} processes in stage "
                    f"{stage_before}, and with {key}={value!r} it cannot be resharded. Remove "
                    "that key."
                )

        # Raises if files are missing or damaged.
        ZeroStates(checkpoint)

    def load_optimizer(self, checkpoint: str) -> bool:
        """See `ModelStates.load_optimizer`."""
        # A run without a step left to take makes no engine.
        if self.strategy.engine is None:
            return False
        if saved_states(checkpoint) is None:
            logger.warning(
                "%s has no states of DeepSpeed; training continues with a new optimizer.",
                checkpoint,
            )
            return False
        self._load_states(checkpoint)
        return True

    def read_schedule(self, checkpoint: str) -> dict[str, Any] | None:
        """See `ModelStates.read_schedule`.

        The reference leaves it to DeepSpeed where that makes the optimizer or the schedule.
        """
        schedule = super().read_schedule(checkpoint)
        if schedule is None:
            return saved_schedule(checkpoint)
        return schedule

    def schedule_loaded(self) -> None:
        """Set the learning rate that a schedule of DeepSpeed forgets when its state is loaded."""
        trainer = self.strategy.require_trainer()
        if not isinstance(trainer.lr_scheduler, LRScheduler):
            rates = [group["lr"] for group in trainer.optimizer.param_groups]
            trainer.lr_scheduler._last_lr = rates

    def bytes_to_save(
        self, optimizer_states: list[Any], other_states: list[Any], *, processes: int
    ) -> int:
        """See `ModelStates.bytes_to_save`.

        The engine writes weights twice, and in float32 beside the optimizer's states.
        """
        if self.strategy.engine is None:
            return super().bytes_to_save(optimizer_states, other_states, processes=processes)
        return 2 * tensor_bytes(optimizer_states) * processes

    def _load_states(self, checkpoint: str) -> None:
        """Load them bit for bit; those of another world size or stage are resharded."""
        engine = self.strategy.engine
        strict = not self._has_adapter
        saved = saved_states(checkpoint)
        if saved is None or self._is_sharded_as_now(saved):
            deepspeed_engine.load_states(engine, checkpoint, strict=strict)
        else:
            deepspeed_engine.load_whole_states(engine, ZeroStates(checkpoint), strict=strict)

    def _is_sharded_as_now(self, saved: SavedStates) -> bool:
        has_as_many_ranks = saved.processes in (None, self.strategy.processes_on_disk)
        return has_as_many_ranks and self.strategy.stage in saved.stages

    def _save_states(self, folder: str, step: int) -> None:
        engine = self.strategy.engine
        deepspeed_engine.save_states(engine, folder, step, without_frozen=self._has_adapter)

    @property
    def _has_adapter(self) -> bool:
        model = self.strategy.require_trainer().model
        return inspection.base_of_adapter(model) is not inspection.unwrap_model(model)
