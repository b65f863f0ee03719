"""A strategy at work: all that a run asks of it about the model, its gradients, and what is saved of both."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import OPTIMIZER_NAME, SCHEDULER_NAME
from ...lightning_modules.checkpoints.state_guards import loading_optimizer
from ...lightning_modules.common.nested import map_nested
from ...lightning_modules.distributed import sharding
from ...lightning_modules.models import inspection
from ...lightning_modules.optim.gradient_norms import clip_gradients, total_norm
from ...lightning_modules.optim.optimizer_fit import require_fitting_optimizer_state

logger = logging.getLogger(__name__)


class StrategyTraits(Protocol):
    """The plan of a strategy, as far as all strategies at work read it."""

    @property
    def saves_parts(self) -> bool:
        """Whether each process writes its part of a checkpoint."""
        ...

    @property
    def replaces_parameters(self) -> bool:
        """Whether an optimizer that was made before would hold parameters that are not used any more."""
        ...


class StrategyHost(Protocol):
    """The Trainer, as strategies see it: what is trained, and how that is made."""

    model: nn.Module
    model_wrapped: nn.Module
    optimizer: Any
    lr_scheduler: Any
    deepspeed: Any
    _created_lr_scheduler: bool

    def create_optimizer(self) -> Any:
        """Make `optimizer`."""
        ...

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Make `lr_scheduler`."""
        ...

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Make `optimizer` and `lr_scheduler`."""
        ...


class Strategy:
    """How processes work together on the model of a Trainer; one subclass for each way that differs.

    Made when a run begins, and asked until the next one begins: a model may stay spread over processes. What is here
    serves processes that have the whole model each, and models that somebody has spread before (`tp_plan`).

    Args:
        plan: what the arguments ask for.
        host: the Trainer; None for loops of one's own, where nothing is known of models.

    Attributes:
        lightning: Lightning's strategy, while it runs; otherwise None.
    """

    def __init__(self, plan: StrategyTraits, host: StrategyHost | None) -> None:
        self.plan = plan
        self.lightning: Any = None
        self._host = _nobody if host is None else weakref.ref(host)

    # What is called for a forward pass.

    @property
    def runs(self) -> bool:
        """Whether Lightning runs."""
        return self.lightning is not None

    @property
    def called(self) -> Any:
        """What is called for a forward pass: the model, the sharded one, or the engine around it; None without one."""
        host = self._host()
        return None if host is None else inspection.to_call(host.model, host.model_wrapped)

    def is_trained(self, model: nn.Module) -> bool:
        """Tell whether this is the model of the Trainer, or a wrapper of it."""
        host = self._host()
        return host is not None and inspection.unwrap_model(model) is inspection.unwrap_model(host.model)

    def to_call(self, model: nn.Module) -> Any:
        """Return what is called in the place of a model: see `called` for that of the Trainer; others as they are."""
        host = self._host()
        is_own = host is not None and self.is_trained(model)
        return inspection.to_call(model, host.model_wrapped) if host is not None and is_own else model

    @property
    def spread(self) -> nn.Module | None:
        """What is called, if this process has only parts of its weights; otherwise None."""
        called = self.called
        return called if called is not None and sharding.is_sharded(called) else None

    def distribute(self, module: Any) -> nn.Module:
        """Spread the model over the processes; one that is spread already stays as it is.

        Args:
            module: the LightningModule, whose strategy is set up.

        Returns:
            What to call in the place of the model.
        """
        host = self._require_host()
        before = self.called
        if self.plan.replaces_parameters and not sharding.is_sharded(before):
            host.optimizer = None  # made too early, of parameters that are about to be replaced
        host.model_wrapped = self._distribute(before, module)
        return host.model_wrapped

    def _distribute(self, model: nn.Module, module: Any) -> nn.Module:
        """Do to a model, or to what was called for it before, what `distribute` says."""
        return model

    def half_of_inputs(self) -> torch.dtype | None:
        """Return the format of inputs, where the model was cast to it; None where forward passes are cast."""
        return None

    def parameters_beside_embeddings(self, model: Any) -> int:
        """Count the numbers of a model of `transformers`, but for those of embeddings."""
        return model.num_parameters(exclude_embeddings=True)

    @property
    def device_mesh(self) -> Any:
        """The processes as a grid; None where Lightning's strategy has none."""
        with contextlib.suppress(RuntimeError):  # it is not set up yet
            return getattr(self.lightning, "device_mesh", None)
        return None

    @property
    def splits_sequences(self) -> bool:
        """Whether processes share sequences now."""
        return False

    def split_sequences(self, buffers: Any, dims: Any, kept: Any) -> contextlib.AbstractContextManager[Any]:
        """Let each process have its part of tensors in the block; all of them where no sequences are shared."""
        return contextlib.nullcontext()

    # Gradients: when processes exchange them, how long they are, and the step.

    @property
    def ddp(self) -> nn.parallel.DistributedDataParallel | None:
        """Lightning's wrapper, in which the model is called, and which exchanges its gradients; None without one."""
        return None

    def begin_step(self) -> None:
        """Prepare for a window of micro-batches."""

    def micro_batch(self, *, exchange: bool, steps: bool) -> contextlib.AbstractContextManager[Any]:
        """Exchange gradients or not in the block, which has forward and backward pass of a micro-batch of the model.

        Args:
            exchange: processes exchange the gradients now.
            steps: the optimizer steps after it.
        """
        return contextlib.nullcontext() if exchange else self.no_sync(self.called)

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Keep the gradients of a model in this process during the backward passes of the block."""
        return sharding.unsynchronised(self.to_call(model))

    @property
    def clips_in_step(self) -> bool:
        """Whether gradients are clipped in the step, as nobody has all of them before."""
        return False

    def clip(self, parameters: list[torch.Tensor], max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale gradients down to a norm of `max_norm` over all processes; returns the norm that they had."""
        return clip_gradients(parameters, max_norm, norm_type)

    def norm(self, model: nn.Module) -> torch.Tensor:
        """Measure the norm of the gradients of a model over all processes, all of which have to call it."""
        return total_norm(parameter.grad for parameter in model.parameters() if parameter.grad is not None)

    def norm_of_last_step(self) -> torch.Tensor | float:
        """Return the norm that gradients had before they were clipped, where the step does it."""
        raise NotImplementedError("Gradients are clipped before the step.")

    def make_optimizers(self, module: Any, steps: int) -> tuple[Any, Any]:
        """Make optimizer and schedule of a training.

        Args:
            module: the LightningModule.
            steps: optimizer steps of the whole training.

        Returns:
            The optimizer, and the schedule if it is one of torch, for Lightning to know.
        """
        host = self._require_host()
        host.create_optimizer_and_scheduler(num_training_steps=steps)
        return host.optimizer, host.lr_scheduler

    @property
    def steps_parameters(self) -> bool:
        """Whether the optimizer holds the parameters of the model, and not parts of its own in their place."""
        return True

    def step_context(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        """Return the context of an optimizer step: one of its own where parameters are partly sharded."""
        spread = self.spread
        if spread is None:
            return contextlib.nullcontext
        from ...lightning_modules.distributed.tensor_parallel import step_context

        return step_context(spread)

    @property
    def step_was_skipped(self) -> bool | None:
        """Whether an engine has left out its last step; None where the loss scaler knows."""
        return None

    # What is saved and loaded. A checkpoint may get parts of all processes, other folders get whole weights.

    @property
    def all_write(self) -> bool:
        """Whether several processes have to write a checkpoint together."""
        return self.spread is not None

    @property
    def gathers_on_save(self) -> bool:
        """Whether a saved model has whole weights; otherwise `save_weights` writes what there is."""
        return True

    def saves_parts(self, *, checkpoint: bool) -> bool:
        """Tell whether `save_weights` and `save_optimizer` write the part of each process.

        Args:
            checkpoint: it is a checkpoint that is written, not a model.
        """
        return checkpoint and self.plan.saves_parts and self.spread is not None

    def whole_weights(self, model: nn.Module, *, keep: bool) -> dict[str, Any] | None:
        """Gather the weights of a model that is spread, in host memory; None for others, which have them themselves.

        Args:
            model: all processes have to call this with it.
            keep: whether this process wants them; otherwise it only helps, and gets an empty dict.
        """
        called = self.to_call(model)
        return sharding.whole_state_dict(called, keep=keep) if sharding.is_sharded(called) else None

    def whole_view(self, model: nn.Module) -> Any:
        """Return the user's model, which if it is spread over processes appears as if it were not."""
        called = self.to_call(model)
        return sharding.WholeModel(called) if sharding.is_sharded(called) else inspection.unwrap_model(model)

    def save_weights(self, folder: str, *, step: int, states_follow: bool) -> None:
        """Write the part that each process has of the weights; all have to call it.

        Args:
            folder: where to.
            step: optimizer steps taken.
            states_follow: `save_optimizer` is about to write to the same folder.
        """
        spread = self.spread
        assert spread is not None
        checkpoints.save_model_parts(spread, folder)

    def weights_are_in_parts(self, checkpoint: str) -> bool:
        """Tell whether a checkpoint has the weights in the states of an engine alone, where they can be read."""
        return False

    def load_weights(self, model: nn.Module, checkpoint: str) -> None:
        """Fill a model from a checkpoint."""
        checkpoints.load_weights(self.whole_view(model), checkpoint)

    def save_optimizer(
        self, folder: str, *, write: Callable[[Any, str], None] | None, checkpoint: bool, step: int
    ) -> None:
        """Write the state of the optimizer; all processes have to call it.

        Args:
            folder: where to.
            write: writes a state to a file; None in processes that do not save.
            checkpoint: see `saves_parts`.
            step: optimizer steps taken.
        """
        optimizer, spread = self._require_host().optimizer, self.spread
        if spread is not None and self.saves_parts(checkpoint=checkpoint):
            checkpoints.save_optimizer_parts(spread, optimizer, folder)
            return
        if spread is not None:
            state = sharding.whole_optimizer_state(spread, optimizer, keep=write is not None)
        else:
            state = optimizer.state_dict() if write is not None else {}
        if write is not None:
            write(state, os.path.join(folder, OPTIMIZER_NAME))

    def require_fitting(self, checkpoint: str) -> None:
        """Look whether this training can go on from the states in a checkpoint, before anything is touched.

        Raises:
            ValueError: it cannot; says why.
        """

    def load_optimizer(self, checkpoint: str) -> bool:
        """Load the state of the optimizer; returns False, with a warning, where there is none, or no schedule.

        Raises:
            ValueError: it does not fit the optimizer.
        """
        host, spread = self._require_host(), self.spread
        file, schedule = (os.path.join(checkpoint, name) for name in (OPTIMIZER_NAME, SCHEDULER_NAME))
        parts = checkpoints.has_optimizer_parts(checkpoint)
        if not (parts or os.path.isfile(file)) or not os.path.isfile(schedule):
            logger.warning("%s has no optimizer or schedule: training goes on with new ones.", checkpoint)
            return False
        optimizer = host.optimizer
        with loading_optimizer(optimizer, file):
            if parts:
                model, together = (host.model, False) if spread is None else (spread, True)
                checkpoints.load_optimizer_parts(model, optimizer, checkpoint, together=together)
            elif spread is not None:
                sharding.load_whole_optimizer_state(spread, optimizer, checkpoints.load_torch(file), file=file)
            else:
                state = checkpoints.load_torch(file)
                require_fitting_optimizer_state(optimizer, state, file, model=host.model)
                optimizer.load_state_dict(state)
        return True

    def read_schedule(self, checkpoint: str) -> dict[str, Any] | None:
        """Return the state of the schedule; None where there is none."""
        path = os.path.join(checkpoint, SCHEDULER_NAME)
        return checkpoints.load_torch(path) if os.path.isfile(path) else None

    def schedule_loaded(self) -> None:
        """Mend a schedule that has its state again."""

    def bytes_to_save(self, states: list[Any], further: list[Any], *, processes: int) -> int:
        """Count the bytes of a checkpoint.

        Args:
            states: those of the optimizer.
            further: what else is written by the process that saves.
            processes: how many there are.
        """
        model = self._require_host().model
        if self.spread is None:
            return checkpoints.bytes_of(
                [checkpoints.saved_weights(model, model.state_dict(keep_vars=True)), states, *further]
            )
        named = dict([*model.named_parameters(), *model.named_buffers()])
        weights = named.values() if self.saves_parts(checkpoint=True) else checkpoints.saved_weights(model, named)
        # Parts of about the same size: only all processes together could say it exactly.
        parts = map_nested(sharding.own_part, [*weights, *states])
        return checkpoints.bytes_of(parts) * processes

    def _require_host(self) -> StrategyHost:
        host = self._host()
        assert host is not None, "its Trainer is gone"
        return host


def _nobody() -> None:
    """In the place of a reference to a Trainer."""
    return None
