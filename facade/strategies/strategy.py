"""Interface of all strategies: description, Lightning's strategy, model and gradients."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints.state_guards import loading_optimizer
from ...lightning_modules.common.collectives import (
    broadcast_tensors,
    has_other_processes,
    transport_device,
)
from ...lightning_modules.common.dtensor import is_dtensor, local_shard
from ...lightning_modules.common.file_names import (
    OPTIMIZER_NAME,
    OPTIMIZER_NAME_BIN,
    SCHEDULER_NAME,
)
from ...lightning_modules.common.nested import map_nested
from ...lightning_modules.distributed import sharding, tensor_parallel
from ...lightning_modules.models.signatures import accepted_arguments
from ...lightning_modules.models.wrappers import to_call, unwrap_model
from ...lightning_modules.optim.gradient_norms import clip_gradients, total_norm
from ...lightning_modules.optim.optimizer_fit import require_fitting_optimizer_state
from .wrapping import check_processes

if TYPE_CHECKING:
    from datetime import timedelta

    import lightning.pytorch as pl
    from lightning.pytorch.accelerators import Accelerator as LightningAccelerator
    from lightning.pytorch.strategies import Strategy as LightningStrategy
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim.lr_scheduler import LRScheduler

    from .. import Trainer
    from ..arguments import TrainingArguments

Row = tuple[str, str, str]
Group = tuple[str, str, Mapping[str, object]]

logger = logging.getLogger(__name__)


class Strategy:
    """Base class of strategies, which define how ranks train a model together.

    A strategy describes itself (`rows`) and builds Lightning's strategy (`build`). For the model of
    the Trainer that it is bound to, it decides which object a forward pass calls, when ranks
    synchronise gradients, how gradients are clipped, and what is saved. In the base class, each
    rank has the full model.

    Args:
        name: Lightning's class, such as `DDPStrategy`.
        options: plain values: arguments of Lightning's strategy, and options for sharding or
            wrapping the model.

    Attributes:
        lightning: Lightning's strategy during a run, otherwise None.
    """

    synchronizes_gradients = True
    """Whether ranks synchronise gradients, so that `micro_batch` is called."""

    accelerator: str | None = None
    """The only Lightning accelerator that the strategy supports; None follows the device."""

    configures_model = False
    """Whether the model is sharded or wrapped in Lightning's hook `configure_model`."""

    replaces_parameters = False
    """Whether this replaces the parameters, so that the optimizer must be created afterwards."""

    can_restart = True
    """Whether `auto_find_batch_size` can restart a training, for which each rank needs the full
    model.
    """

    manages_processes = False
    """Whether the strategy finds ranks and devices itself, without a cluster environment."""

    scales_losses = False
    """Whether the strategy has its own loss scaler."""

    makes_schedule = False
    """Whether an engine created the schedule, which is then valid for one training only."""

    optimizer_holds_parameters = True
    """Whether the optimizer steps the model's parameters instead of its own copies."""

    input_dtype: torch.dtype | None = None
    """Dtype of inputs if the model was cast to it; None if forward passes are cast."""

    # Subclasses override these by properties, which type checkers only accept for `Any`.

    shards_weights: Any = False
    """Whether weights are sharded, so that all ranks must run each forward pass together.
    """

    splits_sequences: Any = False
    """Whether ranks currently share sequences."""

    clips_in_step: Any = False
    """Whether the optimizer step clips gradients, because they are not complete before it."""

    step_was_skipped: Any = None
    """Whether an engine has skipped its last step; None if the loss scaler knows."""

    shards_checkpoints: Any = False
    """Whether the arguments request sharded checkpoints."""

    saves_by_name: Any = False
    """Whether full checkpoints also get trained weights and optimizer states by name."""

    engine_writes: Any = False
    """Whether an engine writes its files immediately, instead of the background writer."""

    gathers_on_save: Any = True
    """Whether a saved model has full weights. Otherwise `save_weights` writes shards."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.options = options
        self.lightning: Any = None
        self._trainer: Callable[[], Trainer | None] = lambda: None

    def bind(self, trainer: Trainer) -> None:
        """Bind the strategy to the model of a Trainer."""
        self._trainer = weakref.ref(trainer)

    def require_trainer(self) -> Trainer:
        """Return the Trainer that the strategy is bound to."""
        trainer = self._trainer()
        assert trainer is not None, "the Trainer of this strategy does not exist any more"
        return trainer

    def average_unsynchronised(self) -> None:
        """Average gradients that the wrapper has not synchronised, before the optimizer steps.

        These are gradients of parameters that were unfrozen after training began, and all gradients
        of a loss that does not call the wrapper.
        """

    def end_run(self) -> None:
        """Release Lightning's strategy at the end of a run."""
        self.lightning = None

    # Description, and Lightning's strategy.

    def groups(self) -> list[Group]:
        """Return the rows of the plan as (arguments, their name in Lightning, options)."""
        return [("ddp_*", "Trainer(strategy=)", self.options)]

    def rows(self) -> list[Row]:
        """Return (arguments, their name in Lightning, value) for the table of the plan."""
        rows: list[Row] = []
        for arguments, maps_to, options in self.groups():
            value = shown(options)
            if not rows:
                rows.append((arguments, maps_to, f"{self.name}({value})"))
            elif value:
                rows.append((arguments, maps_to, value))
        return rows

    def check(self, args: TrainingArguments, model: nn.Module) -> None:
        """Check that a run can begin, before anything is written.

        Raises:
            ValueError: the strategy does not support the processes or the model.
            ImportError: a package is missing.
            NotImplementedError: the strategy can be planned but not run.
        """
        check_processes(args)

    def build(self) -> LightningStrategy | str:
        """Build Lightning's strategy; `auto` uses Lightning's default.

        Raises:
            ImportError: a package is missing. The message says how to install it.
        """
        return "auto"

    def build_accelerator(self) -> LightningAccelerator | None:
        """Build an accelerator that replaces Lightning's; None keeps Lightning's."""
        return None

    def precision(self, name: str, device: str) -> Any:
        """Build the precision plugin that the strategy needs; None accepts any.

        Args:
            name: Lightning's name of the precision.
            device: type of the device, such as `cuda`.
        """
        return None

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Wrap a model for a custom training loop.

        Raises:
            NotImplementedError: the strategy can only shard the model during a Lightning run.
        """
        if self.configures_model:
            raise NotImplementedError(
                f"accelerator.prepare cannot shard a model for a custom loop: {self.name} only "
                "shards in train(). Use train(), or prepare_model(model, evaluation_mode=True)."
            )
        return model

    # Forward pass.

    @property
    def is_running(self) -> bool:
        """Return whether Lightning is running."""
        return self.lightning is not None

    @property
    def forward_model(self) -> Any:
        """Return the object that training forward passes call: the model, its wrapper, or an
        engine.

        None if the Trainer no longer exists.
        """
        trainer = self._trainer()
        if trainer is None:
            return None
        return to_call(trainer.model, trainer.model_wrapped)

    @property
    def evaluation_model(self) -> Any:
        """Return the object that evaluation forward passes call."""
        return self.forward_model

    def generation_context(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the `generate` of the Trainer's model can run."""
        return contextlib.nullcontext()

    def share_buffers(self) -> None:
        """Broadcast the buffers of rank 0, unless `ddp_broadcast_buffers` is False.

        During training, each rank updates the statistics of layers such as BatchNorm with its own
        batches. A checkpoint contains those of rank 0, so an evaluation must use them too.
        """
        trainer = self.require_trainer()
        if trainer.args.ddp_broadcast_buffers is False or not has_other_processes():
            return
        buffers = [buffer for buffer in trainer.model.buffers() if not is_dtensor(buffer)]
        broadcast_tensors(buffers, transport_device())

    def is_trained_model(self, model: nn.Module) -> bool:
        """Return whether a model is the Trainer's model or a wrapper of it."""
        trainer = self._trainer()
        if trainer is None:
            return False
        return unwrap_model(model) is unwrap_model(trainer.model)

    def forward_model_of(self, model: nn.Module) -> nn.Module:
        """Return `forward_model` for the Trainer's model, and any other model unchanged."""
        trainer = self._trainer()
        if trainer is None:
            return model
        return to_call(model, trainer.model_wrapped)

    @property
    def sharded_model(self) -> nn.Module | None:
        """Return the `forward_model` if its weights are sharded, otherwise None."""
        model = self.forward_model
        if model is None or not sharding.is_sharded(model):
            return None
        return model

    def distribute_model(self, module: pl.LightningModule) -> nn.Module:
        """Shard or wrap the model, unless an earlier run has done so.

        Args:
            module: the LightningModule, after its strategy was set up.

        Returns:
            The object that forward passes call from now on.
        """
        trainer = self.require_trainer()
        model = self.forward_model

        # An existing optimizer holds parameters that are about to be replaced.
        if self.replaces_parameters and not sharding.is_sharded(model):
            trainer.optimizer = None

        trainer.model_wrapped = self._distribute_model(model, module)
        return trainer.model_wrapped

    def _distribute_model(self, model: nn.Module, module: pl.LightningModule) -> nn.Module:
        """Shard or wrap a model, see `distribute_model`. Subclasses override this."""
        return model

    def non_embedding_parameters(self, model: Any) -> int:
        """Count the parameters of a model without its embeddings; 0 if the model cannot."""
        # In a user's module, `num_parameters` may be a number, or a method that counts all
        # parameters.
        count = model.num_parameters
        if not callable(count) or not accepted_arguments(count, exclude_embeddings=True):
            return 0
        return model.num_parameters(exclude_embeddings=True)

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """Return Lightning's device mesh; None if its strategy has none."""
        # Lightning raises a RuntimeError before the strategy is set up.
        with contextlib.suppress(RuntimeError):
            return getattr(self.lightning, "device_mesh", None)
        return None

    def split_sequences(
        self,
        buffers: list[torch.Tensor] | None,
        dims: list[int] | None,
        kept: set[torch.Tensor] | None,
    ) -> contextlib.AbstractContextManager[Any]:
        """Replace tensors by this rank's shards in the `with` block, if ranks share sequences."""
        return contextlib.nullcontext()

    # Gradients: when ranks exchange them, and their norm.

    def micro_batch(
        self, *, synchronize: bool, is_last: bool
    ) -> contextlib.AbstractContextManager[object]:
        """Return the context of a micro-batch, in which gradients are synchronised or not.

        Args:
            synchronize: whether gradients are synchronised in this backward pass.
            is_last: whether the optimizer steps after this micro-batch.
        """
        if synchronize:
            return contextlib.nullcontext()
        return self.no_sync(self.forward_model)

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[object]:
        """Do not synchronise gradients of a model in backward passes within the `with` block."""
        return sharding.unsynchronised(self.forward_model_of(model))

    clip_grad_norm = staticmethod(clip_gradients)
    """`(parameters, max_norm, norm_type)`: clip gradients by their norm over all ranks, and return
    the norm before clipping.
    """

    def grad_norm(self, model: nn.Module) -> torch.Tensor:
        """Return the norm of a model's gradients over all ranks. All processes must call this."""
        return total_norm(
            parameter.grad for parameter in model.parameters() if parameter.grad is not None
        )

    def clip_grad_values(self, parameters: Iterable[torch.Tensor], limit: float) -> None:
        """Clamp the values of gradients to +-`limit`, in place.

        Raises:
            NotImplementedError: an engine manages the gradients.
        """
        for parameter in parameters:
            if parameter.grad is not None:
                local_shard(parameter.grad).clamp_(-limit, limit)

    def last_grad_norm(self) -> torch.Tensor | float:
        """Return the norm before clipping in the last step, for strategies with `clips_in_step`."""
        raise NotImplementedError("Gradients are clipped before the step.")

    # Optimizer and step.

    def make_optimizers(
        self, module: nn.Module, steps: int
    ) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
        """Create the optimizer and the schedule of a training.

        Args:
            module: the LightningModule.
            steps: number of optimizer steps of the whole training.

        Returns:
            The optimizer, and the schedule if it is a torch schedule, for Lightning.
        """
        trainer = self.require_trainer()
        trainer.create_optimizer_and_scheduler(num_training_steps=steps)
        self._check_made_optimizer(trainer)
        return trainer.optimizer, trainer.lr_scheduler

    def check_optimizer(self, args: TrainingArguments, description: str, name: str) -> None:
        """Check that an optimizer supports the parameters of the strategy.

        Args:
            args: the training arguments.
            description: the optimizer and its argument, for the error.
            name: the name of the optimizer or its class.

        Raises:
            ValueError: the strategy does not meet its requirements, see `OptimizerRequirements`.
        """

    def _check_made_optimizer(self, trainer: Trainer) -> None:
        """Check the Trainer's optimizer after its creation, when its class is known."""
        argument = "optimizer_cls_and_kwargs"
        if trainer.optimizer_cls_and_kwargs is None:
            argument = "create_optimizer"
        optimizer_class = type(trainer.optimizer)
        names = " ".join(cls.__name__ for cls in optimizer_class.__mro__)
        description = f"The optimizer {optimizer_class.__name__} ({argument})"
        self.check_optimizer(trainer.args, description, names)

    def step_context(self) -> Callable[[], contextlib.AbstractContextManager[object]]:
        """Return the context of optimizer steps, which partly sharded models need."""
        sharded_model = self.sharded_model
        if sharded_model is None:
            return contextlib.nullcontext
        return tensor_parallel.step_context(sharded_model)

    # Saving and loading of weights. A checkpoint may be sharded. Other folders get full weights.

    def saves_parts(self, *, checkpoint: bool) -> bool:
        """Return whether each rank writes its shards of the weights and optimizer states.

        Args:
            checkpoint: whether a checkpoint is written, instead of a model.
        """
        if not checkpoint or not self.shards_checkpoints:
            return False
        return self.sharded_model is not None

    def full_weights(self, model: nn.Module, *, keep: bool) -> dict[str, torch.Tensor] | None:
        """Gather the weights of a sharded model on the CPU.

        Args:
            model: the model. Must be called on all ranks.
            keep: whether this rank needs the weights. Other ranks get an empty dict.

        Returns:
            The weights by name; None for a model that is not sharded.
        """
        forward_model = self.forward_model_of(model)
        if not sharding.is_sharded(forward_model):
            return None
        return sharding.full_state_dict(forward_model, keep=keep)

    def full_view(self, model: nn.Module) -> nn.Module | sharding.FullModel:
        """Return the user's model, or a `FullModel` of a sharded one."""
        forward_model = self.forward_model_of(model)
        if sharding.is_sharded(forward_model):
            return sharding.FullModel(forward_model)
        return unwrap_model(model)

    def save_weights(
        self, folder: str, *, files: checkpoints.CheckpointFiles, step: int, states_follow: bool
    ) -> None:
        """Write this rank's shards of the weights. Must be called on all ranks.

        Args:
            folder: the folder to write to.
            files: decides whether to write immediately.
            step: number of optimizer steps taken.
            states_follow: whether `save_optimizer` will write to the same folder.
        """
        sharded_model = self.sharded_model
        assert sharded_model is not None
        checkpoints.save_model_parts(sharded_model, folder, files.part_writers)

    def weights_are_in_parts(self, checkpoint: str) -> bool:
        """Return whether only DeepSpeed's files contain the weights of a checkpoint."""
        return False

    def load_weights(self, model: nn.Module, checkpoint: str) -> None:
        """Load the weights of a checkpoint into a model."""
        checkpoints.load_weights(self.full_view(model), checkpoint)

    # The state of the optimizer, and of the schedule.

    def save_optimizer(
        self, folder: str, *, files: checkpoints.CheckpointFiles, checkpoint: bool, step: int
    ) -> None:
        """Write the state of the optimizer. Must be called on all ranks.

        Args:
            folder: the folder to write to.
            files: writes the state, or decides whether to write shards immediately.
            checkpoint: see `saves_parts`.
            step: number of optimizer steps taken.
        """
        trainer = self.require_trainer()
        optimizer = trainer.optimizer
        sharded_model = self.sharded_model
        writes = trainer.args.should_save

        # Without sharding, each rank has the full state, and one writes it.
        if sharded_model is None:
            if writes:
                path = os.path.join(folder, OPTIMIZER_NAME)
                files.write_tensors(optimizer.state_dict(), path)
            return

        # In a sharded checkpoint, each rank writes its shards.
        if self.saves_parts(checkpoint=checkpoint):
            checkpoints.save_optimizer_parts(sharded_model, optimizer, folder, files.part_writers)
            return

        # Otherwise gather the full state, by parameter names or in torch's format.
        if checkpoint and self.saves_by_name:
            states_by_file = checkpoints.gather_states_by_name(sharded_model, optimizer)
        else:
            state = sharding.full_optimizer_state(sharded_model, optimizer, keep=writes)
            states_by_file = {OPTIMIZER_NAME: state}
        if writes:
            for file_name, state in states_by_file.items():
                files.write_tensors(state, os.path.join(folder, file_name))

    def require_fitting(self, checkpoint: str) -> None:
        """Check that this training can resume from a checkpoint, before anything is changed.

        Raises:
            ValueError: it cannot. The message says why.
        """

    def load_optimizer(self, checkpoint: str) -> bool:
        """Load the state of the optimizer.

        Returns:
            False, after a warning, if the checkpoint has no optimizer or no schedule.

        Raises:
            ValueError: the state does not fit the optimizer.
        """
        file = os.path.join(checkpoint, OPTIMIZER_NAME)

        # Checkpoints of transformers with FSDP have the states by parameter name in this file.
        file_by_names = os.path.join(checkpoint, OPTIMIZER_NAME_BIN)
        if os.path.isfile(file_by_names) and not os.path.isfile(file):
            file = file_by_names

        schedule_file = os.path.join(checkpoint, SCHEDULER_NAME)
        has_schedule = os.path.isfile(schedule_file)
        has_parts = checkpoints.has_optimizer_parts(checkpoint)
        has_optimizer = has_parts or os.path.isfile(file)
        if not (has_optimizer and has_schedule):
            logger.warning(
                "%s has no optimizer or schedule; training continues with new ones.", checkpoint
            )
            return False

        trainer = self.require_trainer()
        optimizer = trainer.optimizer
        sharded_model = self.sharded_model
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
                sharding.load_full_optimizer_state(sharded_model, optimizer, state, file=file)
            else:
                require_fitting_optimizer_state(optimizer, state, file, model=trainer.model)
                optimizer.load_state_dict(state)
        return True

    def read_schedule(self, checkpoint: str) -> dict[str, object] | None:
        """Return the state of the schedule; None if the checkpoint has none."""
        path = os.path.join(checkpoint, SCHEDULER_NAME)
        if not os.path.isfile(path):
            return None
        return checkpoints.load_torch(path)

    def schedule_loaded(self) -> None:
        """Fix a schedule after its state was loaded."""

    # Size.

    def bytes_to_save(
        self, optimizer_states: list[object], other_states: list[object], *, processes: int
    ) -> int:
        """Return the estimated size of a checkpoint in bytes.

        Args:
            optimizer_states: tensors of the optimizer, nested in dicts and lists.
            other_states: other values that the saving rank writes.
            processes: the world size.
        """
        model = self.require_trainer().model
        tensors_by_name = dict([*model.named_parameters(), *model.named_buffers()])
        weights = list(tensors_by_name.values())
        is_sharded = self.sharded_model is not None
        saves_parts = is_sharded and self.saves_parts(checkpoint=True)
        if not saves_parts:
            weights = checkpoints.saved_weights(model, tensors_by_name)
        if not is_sharded:
            states = [weights, optimizer_states, *other_states]
            return checkpoints.tensor_bytes(states)

        # States by name are accompanied by a second copy of the trained weights.
        trained_weights: list[torch.Tensor] = []
        if self.saves_by_name:
            for tensor in tensors_by_name.values():
                if tensor.requires_grad:
                    trained_weights.append(tensor)

        # Assume that the shards of all ranks have about the same size, to avoid a collective.
        tensors = [*weights, *trained_weights, *optimizer_states]
        own_parts = map_nested(local_shard, tensors)
        bytes_of_rank = checkpoints.tensor_bytes(own_parts)
        return bytes_of_rank * processes


def shown(value: object) -> str:
    """Format options as text, with `name=value, ...` for a dict."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_inner(item)}" for name, item in value.items())
    return _inner(value)


def _inner(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{shown(value)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_inner, value))}]"
    return str(value)


PROCESS_GROUP_OPTIONS = ("process_group_backend", "timeout")
"""Names of the process group options."""


def process_group(args: TrainingArguments) -> dict[str, str | timedelta]:
    """Return the process group options, for all strategies with several ranks."""
    options: dict[str, str | timedelta] = {}
    if args.ddp_backend is not None:
        options["process_group_backend"] = args.ddp_backend
    options["timeout"] = args.ddp_timeout_delta
    return options


def picked(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the options with these names, in order. Names without an option are skipped."""
    return {name: options[name] for name in names if name in options}
