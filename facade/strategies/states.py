"""Write and read the weights and the optimizer's state of a model, whole or in parts of ranks."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints.state_guards import loading_optimizer
from ...lightning_modules.common.file_names import (
    OPTIMIZER_NAME,
    OPTIMIZER_NAME_BIN,
    SCHEDULER_NAME,
)
from ...lightning_modules.common.nested import map_nested
from ...lightning_modules.distributed import sharding
from ...lightning_modules.models import inspection
from ...lightning_modules.optim.optimizer_fit import require_fitting_optimizer_state

if TYPE_CHECKING:
    from .. import Trainer

logger = logging.getLogger(__name__)


class BoundStrategy(Protocol):
    """What a `Strategy` that is bound to a Trainer tells of its model."""

    @property
    def shards_checkpoints(self) -> bool:
        """See `Strategy`."""
        ...

    @property
    def saves_by_name(self) -> bool:
        """See `Strategy`."""
        ...

    @property
    def sharded_model(self) -> nn.Module | None:
        """See `Strategy`."""
        ...

    def is_sharded(self, model: Any) -> bool:
        """See `Strategy`."""
        ...

    def forward_model_of(self, model: nn.Module) -> Any:
        """See `Strategy`."""
        ...

    def require_trainer(self) -> Trainer:
        """See `Strategy`."""
        ...


class ModelStates:
    """The states of a model and its optimizer, as a strategy spreads them over the ranks.

    A checkpoint may get the part of each rank; every other folder gets whole weights. DeepSpeed,
    whose engine writes its own files, has a subclass.

    Args:
        strategy: bound to the Trainer whose model and optimizer these are.
    """

    engine_writes = False
    """Whether an engine writes its files itself, at once, instead of the background writer."""

    gathers_on_save = True
    """Whether a saved model has whole weights; otherwise `save_weights` writes the parts."""

    def __init__(self, strategy: BoundStrategy) -> None:
        self.strategy = strategy

    # Weights.

    def saves_parts(self, *, checkpoint: bool) -> bool:
        """Return whether each rank writes its part of the weights and of the optimizer's state.

        Args:
            checkpoint: it is a checkpoint that is written, not a model.
        """
        if not checkpoint or not self.strategy.shards_checkpoints:
            return False
        return self.strategy.sharded_model is not None

    def whole_weights(self, model: nn.Module, *, keep: bool) -> dict[str, Any] | None:
        """Gather the weights of a sharded model in host memory.

        Args:
            model: all ranks have to call this with it.
            keep: whether this rank wants them; otherwise it only helps, and gets an empty dict.

        Returns:
            The weights by name; None for a model that each rank has whole.
        """
        forward_model = self.strategy.forward_model_of(model)
        if not self.strategy.is_sharded(forward_model):
            return None
        return sharding.whole_state_dict(forward_model, keep=keep)

    def whole_view(self, model: nn.Module) -> Any:
        """Return the user's model, or a view of it in which sharded weights appear whole."""
        forward_model = self.strategy.forward_model_of(model)
        if sharding.is_sharded(forward_model):
            return sharding.WholeModel(forward_model)
        return inspection.unwrap_model(model)

    def save_weights(
        self, folder: str, *, files: checkpoints.CheckpointFiles, step: int, states_follow: bool
    ) -> None:
        """Write the part of the weights that each rank has; all ranks have to call it.

        Args:
            folder: where to.
            files: says whether to write at once.
            step: number of optimizer steps taken.
            states_follow: `save_optimizer` is about to write to the same folder.
        """
        sharded_model = self.strategy.sharded_model
        assert sharded_model is not None
        checkpoints.save_model_parts(sharded_model, folder, files)

    def weights_are_in_parts(self, checkpoint: str) -> bool:
        """Return whether DeepSpeed's own files alone hold the weights of a checkpoint."""
        return False

    def load_weights(self, model: nn.Module, checkpoint: str) -> None:
        """Fill a model from a checkpoint."""
        checkpoints.load_weights(self.whole_view(model), checkpoint)

    # The state of the optimizer, and of the schedule.

    def save_optimizer(
        self, folder: str, *, files: checkpoints.CheckpointFiles, checkpoint: bool, step: int
    ) -> None:
        """Write the state of the optimizer; all ranks have to call it.

        Args:
            folder: where to.
            files: writes it, or says whether to write parts at once.
            checkpoint: see `saves_parts`.
            step: number of optimizer steps taken.
        """
        trainer = self.strategy.require_trainer()
        optimizer = trainer.optimizer
        sharded_model = self.strategy.sharded_model
        write = None
        if trainer.args.should_save:
            write = files.write_tensors

        # The part of each rank.
        if sharded_model is not None and self.saves_parts(checkpoint=checkpoint):
            checkpoints.save_optimizer_parts(sharded_model, optimizer, folder, files)
            return

        # All of it, by the names of parameters.
        if sharded_model is not None and checkpoint and self.strategy.saves_by_name:
            states_by_name = checkpoints.gather_states_by_name(sharded_model, optimizer)
            for file_name, state in states_by_name.items():
                if write is not None:
                    write(state, os.path.join(folder, file_name))
            return

        # All of it, in the form of torch.
        state = {}
        if sharded_model is not None:
            keep = write is not None
            state = sharding.whole_optimizer_state(sharded_model, optimizer, keep=keep)
        elif write is not None:
            state = optimizer.state_dict()
        if write is not None:
            write(state, os.path.join(folder, OPTIMIZER_NAME))

    def require_fitting(self, checkpoint: str) -> None:
        """Check that this training can resume from a checkpoint, before anything is changed.

        Raises:
            ValueError: it cannot; says why.
        """

    def load_optimizer(self, checkpoint: str) -> bool:
        """Load the state of the optimizer.

        Returns:
            False, after a warning, where the checkpoint has no optimizer or no schedule.

        Raises:
            ValueError: the state does not fit the optimizer.
        """
        # Only a model that FSDP shards has the file of states by name.
        file = os.path.join(checkpoint, OPTIMIZER_NAME)
        file_by_names = os.path.join(checkpoint, OPTIMIZER_NAME_BIN)
        if os.path.isfile(file_by_names) and not os.path.isfile(file):
            file = file_by_names

        has_parts = checkpoints.has_optimizer_parts(checkpoint)
        has_optimizer = has_parts or os.path.isfile(file)
        if not has_optimizer or not os.path.isfile(os.path.join(checkpoint, SCHEDULER_NAME)):
            logger.warning(
                "%s has no optimizer or schedule; training continues with new ones.", checkpoint
            )
            return False

        trainer = self.strategy.require_trainer()
        optimizer = trainer.optimizer
        sharded_model = self.strategy.sharded_model
        with loading_optimizer(optimizer, file):
            if has_parts:
                model = trainer.model
                if sharded_model is not None:
                    model = sharded_model
                is_sharded = sharded_model is not None
                checkpoints.load_optimizer_parts(model, optimizer, checkpoint, all_ranks=is_sharded)
                return True

            state = checkpoints.load_torch(file)
            if sharded_model is not None:
                sharding.load_whole_optimizer_state(sharded_model, optimizer, state, file=file)
            else:
                require_fitting_optimizer_state(optimizer, state, file, model=trainer.model)
                optimizer.load_state_dict(state)
        return True

    def read_schedule(self, checkpoint: str) -> dict[str, Any] | None:
        """Return the state of the schedule; None where the checkpoint has none."""
        path = os.path.join(checkpoint, SCHEDULER_NAME)
        if not os.path.isfile(path):
            return None
        return checkpoints.load_torch(path)

    def schedule_loaded(self) -> None:
        """Repair a schedule after its state was loaded."""

    # Size.

    def bytes_to_save(
        self, optimizer_states: list[Any], other_states: list[Any], *, processes: int
    ) -> int:
        """Return the size of a checkpoint in bytes.

        Args:
            optimizer_states: the tensors of the optimizer, nested in dicts and lists.
            other_states: what else the rank that saves writes.
            processes: number of ranks.
        """
        model = self.strategy.require_trainer().model
        tensors_by_name = dict([*model.named_parameters(), *model.named_buffers()])
        weights = list(tensors_by_name.values())
        is_sharded = self.strategy.sharded_model is not None
        if not is_sharded or not self.saves_parts(checkpoint=True):
            weights = checkpoints.saved_weights(model, tensors_by_name)
        if not is_sharded:
            return checkpoints.tensor_bytes([weights, optimizer_states, *other_states])

        # States by name are accompanied by a second copy of the trained weights.
        trained_weights: list[torch.Tensor] = []
        if self.strategy.saves_by_name:
            trained_weights = [w for w in tensors_by_name.values() if w.requires_grad]

        # The parts of the ranks are about the same size; asking all of them would take an exchange.
        own_parts = map_nested(sharding.local_part, [*weights, *trained_weights, *optimizer_states])
        return checkpoints.tensor_bytes(own_parts) * processes
