"""The interface of all strategies: description, Lightning's strategy, model, gradients, and what
is saved.
"""

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
from ...lightning_modules.common.dtensor import own_part
from ...lightning_modules.common.file_names import (
    OPTIMIZER_NAME,
    OPTIMIZER_NAME_BIN,
    SCHEDULER_NAME,
)
from ...lightning_modules.common.nested import map_nested
from ...lightning_modules.distributed import sharding, tensor_parallel
from ...lightning_modules.models import inspection
from ...lightning_modules.optim.gradient_norms import clip_gradients, total_norm
from ...lightning_modules.optim.optimizer_fit import require_fitting_optimizer_state
from .wrapping import check_processes

if TYPE_CHECKING:
    from typing import Self

    from .. import Trainer
    from ..arguments import TrainingArguments

Row = tuple[str, str, str]

logger = logging.getLogger(__name__)


class Strategy:
    """How processes train a model together; one subclass and one module for each way that differs.

    It describes itself (`rows`), builds Lightning's strategy (`build`), and while Lightning runs,
    and until the next run begins, answers for the model of the Trainer that it is bound to. The
    base class serves ranks that have the whole model each.

    Args:
        name: the class in Lightning, such as `DDPStrategy`.
        options: plain values: what Lightning's strategy is built with, and what is done to the
            model for it.

    Attributes:
        exchanges: ranks exchange gradients, so that micro-batches are announced to the strategy.
        accelerator: Lightning's accelerator, where the strategy works on no other; None where it
            follows the device.
        distributes: the model is spread over the ranks when Lightning configures it.
        replaces_parameters: an optimizer that was made before holds parameters that are not used
            any more.
        restarts: a training can start again in the middle, as each rank has a whole copy of the
            model.
        manages_processes: the strategy finds ranks and devices itself, without a cluster
            environment.
        scales_losses: the strategy has a loss scaler of its own.
        half_of_inputs: the format of inputs, where the model was cast to it; None where forward
            passes are cast.
        lightning: Lightning's strategy, while it runs; otherwise None.
    """

    exchanges = True
    accelerator: str | None = None
    distributes = replaces_parameters = False
    restarts = True
    manages_processes = False
    scales_losses = False
    half_of_inputs: torch.dtype | None = None

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.options = options
        self.lightning: Any = None
        self._trainer: Callable[[], Trainer | None] = lambda: None
        # what is called, and whether it is
        self._sharded: tuple[Callable[[], Any], bool] = lambda: None, False

    def bind(self, trainer: Trainer) -> Self:
        """Answer for the model of a Trainer from now on; return the strategy."""
        self._trainer = weakref.ref(trainer)
        return self

    def end_run(self) -> None:
        """Forget Lightning's strategy, whose run has ended."""
        self.lightning = None

    # Description, and Lightning's strategy.

    def groups(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """Return (arguments, their name in Lightning, options) of what belongs together; one row
        each.
        """
        return [("ddp_*", "Trainer(strategy=)", self.options)]

    def rows(self) -> list[Row]:
        """Return (arguments, their name in Lightning, value) for the table of the plan."""
        rows: list[Row] = []
        for arguments, becomes, options in self.groups():
            value = shown(options)
            if not rows:
                rows.append((arguments, becomes, f"{self.name}({value})"))
            elif value:
                rows.append((arguments, becomes, value))
        return rows

    shards_weights: Any = False
    """Whether a rank holds only a part of the weights, so that all must run each forward pass
    together.
    """

    def check(self, args: TrainingArguments, model: nn.Module) -> None:
        """Check that a run can begin, before anything is written.

        Raises:
            ValueError: the processes or the model are not those that the strategy needs.
            ImportError: a package is missing.
            NotImplementedError: the strategy can be planned, but not run.
        """
        check_processes(args)

    def build(self) -> Any:
        """Make the strategy as Lightning takes it; `auto` where Lightning's default will do.

        Raises:
            ImportError: it needs a package that is not there; says how to install it.
        """
        return "auto"

    def build_accelerator(self) -> Any:
        """Make an accelerator as an object, where Lightning's own does not do; None where its
        name will do.
        """
        return None

    def precision(self, name: str, device: str) -> Any:
        """Make the precision plugin that the strategy insists on; None where any will do.

        Args:
            name: Lightning's name of the precision.
            device: type of the device, such as `cuda`.
        """
        return None

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Wrap a model for a training loop without Lightning.

        Raises:
            NotImplementedError: Lightning alone can spread the model.
        """
        if self.distributes:
            raise NotImplementedError(
                f"accelerator.prepare cannot shard a model for an own loop: {self.name} shards "
                "that of train(). Use train(), or prepare_model(model, evaluation_mode=True)."
            )
        return model

    # Forward pass.

    @property
    def runs(self) -> bool:
        """Return whether Lightning runs."""
        return self.lightning is not None

    @property
    def called(self) -> Any:
        """The callable of a forward pass: the model, the sharded one, or the engine around it;
        None without one.
        """
        trainer = self._trainer()
        return None if trainer is None else inspection.to_call(trainer.model, trainer.model_wrapped)

    @property
    def evaluated(self) -> Any:
        """The callable of a forward pass in an evaluation."""
        return self.called

    def is_trained(self, model: nn.Module) -> bool:
        """Tell whether this is the model of the Trainer, or a wrapper of it."""
        trainer = self._trainer()
        return trainer is not None and inspection.unwrap_model(model) is inspection.unwrap_model(
            trainer.model
        )

    def to_call(self, model: nn.Module) -> Any:
        """Return what is called in the place of a model: see `called` for that of the Trainer;
        others as they are.
        """
        trainer = self._trainer()
        if trainer is None or not self.is_trained(model):
            return model
        return inspection.to_call(model, trainer.model_wrapped)

    @property
    def spread(self) -> nn.Module | None:
        """The callable of a forward pass if this rank holds only parts of its weights; otherwise
        None.
        """
        called = self.called
        if called is None or not self._is_sharded(called):
            return None
        return called

    def _is_sharded(self, called: Any) -> bool:
        """As `is_sharded`, which looks at each parameter; during a run the answer stays the
        same.
        """
        if not self.runs:
            return sharding.is_sharded(called)
        if self._sharded[0]() is not called:
            self._sharded = weakref.ref(called), sharding.is_sharded(called)
        return self._sharded[1]

    def distribute(self, module: Any) -> nn.Module:
        """Spread the model over the processes; one that is spread already stays as it is.

        Args:
            module: the LightningModule, whose strategy is set up.

        Returns:
            What to call in the place of the model.
        """
        trainer = self._require_trainer()
        before = self.called
        if self.replaces_parameters and not sharding.is_sharded(before):
            trainer.optimizer = None  # made too early, of parameters that are about to be replaced
        trainer.model_wrapped = self._distribute(before, module)
        self._sharded = lambda: None, False
        return trainer.model_wrapped

    def _distribute(self, model: nn.Module, module: Any) -> nn.Module:
        """Do to a model, or to what was called for it before, what `distribute` says."""
        return model

    def parameters_beside_embeddings(self, model: Any) -> int:
        """Count the numbers of a model of `transformers`, but for those of embeddings."""
        return model.num_parameters(exclude_embeddings=True)

    @property
    def device_mesh(self) -> Any:
        """The processes as a grid; None where Lightning's strategy has none."""
        with contextlib.suppress(RuntimeError):  # it is not set up yet
            return getattr(self.lightning, "device_mesh", None)
        return None

    splits_sequences: Any = False
    """Whether processes share sequences now."""

    def split_sequences(
        self, buffers: Any, dims: Any, kept: Any
    ) -> contextlib.AbstractContextManager[Any]:
        """Let each process have its part of tensors in the block; all of them where no sequences
        are shared.
        """
        return contextlib.nullcontext()

    # Gradients: when processes exchange them, how long they are, and the step.

    def micro_batch(self, *, exchange: bool, steps: bool) -> contextlib.AbstractContextManager[Any]:
        """Exchange gradients or not in the block, which has forward and backward pass of a
        micro-batch of the model.

        Args:
            exchange: processes exchange the gradients now.
            steps: the optimizer steps after it.
        """
        return contextlib.nullcontext() if exchange else self.no_sync(self.called)

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Keep the gradients of a model in this process during the backward passes of the block."""
        return sharding.unsynchronised(self.to_call(model))

    clips_in_step: Any = False
    """Whether gradients are clipped in the step, as no rank has all of them before."""

    clip = staticmethod(clip_gradients)
    """`(parameters, max_norm, norm_type)`: scale gradients down over all processes; return the
    norm that they had.
    """

    def norm(self, model: nn.Module) -> torch.Tensor:
        """Measure the norm of the gradients of a model over all processes, all of which have to
        call it.
        """
        return total_norm(
            parameter.grad for parameter in model.parameters() if parameter.grad is not None
        )

    def clip_values(self, parameters: Iterable[torch.Tensor], limit: float) -> None:
        """Clamp the values of gradients to +-`limit`, in place.

        Raises:
            NotImplementedError: an engine holds the gradients.
        """
        for parameter in parameters:
            if parameter.grad is not None:
                own_part(parameter.grad).clamp_(-limit, limit)

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
        trainer = self._require_trainer()
        trainer.create_optimizer_and_scheduler(num_training_steps=steps)
        self._check_made_optimizer(trainer)
        return trainer.optimizer, trainer.lr_scheduler

    def check_optimizer(self, args: TrainingArguments, given: str, name: str) -> None:
        """Check that an optimizer can step what the strategy gives it.

        Args:
            args: the training arguments.
            given: the optimizer and its argument, for the error.
            name: of the optimizer or its class.

        Raises:
            ValueError: the strategy cannot give it what it demands, see `OptimizerDemands`.
        """

    def _check_made_optimizer(self, trainer: Trainer) -> None:
        """Check the optimizer of the Trainer, whose class only `create_optimizer` tells."""
        argument = (
            "create_optimizer"
            if trainer.optimizer_cls_and_kwargs is None
            else "optimizer_cls_and_kwargs"
        )
        kind = type(trainer.optimizer)
        names = " ".join(cls.__name__ for cls in kind.__mro__)
        self.check_optimizer(trainer.args, f"The optimizer {kind.__name__} ({argument})", names)

    steps_parameters: Any = True
    """Whether the optimizer holds the parameters of the model, and not parts of its own in their
    place.
    """

    def step_context(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        """Return the context of an optimizer step: one of its own where parameters are partly
        sharded.
        """
        return (
            contextlib.nullcontext
            if self.spread is None
            else tensor_parallel.step_context(self.spread)
        )

    step_was_skipped: Any = None
    """Whether an engine has left out its last step; None where the loss scaler knows."""

    # Saving and loading. A checkpoint may get parts of all processes, other folders get whole
    # weights.

    writes_itself: Any = False
    """Whether an engine writes checkpoints, at once."""

    _shards_checkpoints: Any = False
    """Whether the arguments ask for checkpoints that have the part of each rank."""

    gathers_on_save: Any = True
    """Whether a saved model has whole weights; otherwise `save_weights` writes what there is."""

    def saves_parts(self, *, checkpoint: bool) -> bool:
        """Tell whether `save_weights` and `save_optimizer` write the part of each process.

        Args:
            checkpoint: it is a checkpoint that is written, not a model.
        """
        return checkpoint and self._shards_checkpoints and self.spread is not None

    @property
    def saves_by_name(self) -> bool:
        """Return whether `save_optimizer` writes trained weights and states by name into whole
        checkpoints.
        """
        return False

    def whole_weights(self, model: nn.Module, *, keep: bool) -> dict[str, Any] | None:
        """Gather the weights of a model that is spread, in host memory; None for others, which have
        them themselves.

        Args:
            model: all processes have to call this with it.
            keep: whether this process wants them; otherwise it only helps, and gets an empty dict.
        """
        called = self.to_call(model)
        if not self._is_sharded(called):
            return None
        return sharding.whole_state_dict(called, keep=keep)

    def whole_view(self, model: nn.Module) -> Any:
        """Return the user's model, which if it is spread over processes appears as if it were
        not.
        """
        called = self.to_call(model)
        return (
            sharding.WholeModel(called)
            if sharding.is_sharded(called)
            else inspection.unwrap_model(model)
        )

    def save_weights(
        self, folder: str, *, files: checkpoints.CheckpointFiles, step: int, states_follow: bool
    ) -> None:
        """Write the part that each process has of the weights; all have to call it.

        Args:
            folder: where to.
            files: says whether to write at once.
            step: optimizer steps taken.
            states_follow: `save_optimizer` is about to write to the same folder.
        """
        spread = self.spread
        assert spread is not None
        checkpoints.save_model_parts(spread, folder, files)

    def weights_are_in_parts(self, checkpoint: str) -> bool:
        """Return whether the weights of a checkpoint are in the files of DeepSpeed only, and can
        be read from them.
        """
        return False

    def load_weights(self, model: nn.Module, checkpoint: str) -> None:
        """Fill a model from a checkpoint."""
        checkpoints.load_weights(self.whole_view(model), checkpoint)

    def save_optimizer(
        self, folder: str, *, files: checkpoints.CheckpointFiles, checkpoint: bool, step: int
    ) -> None:
        """Write the state of the optimizer; all processes have to call it.

        Args:
            folder: where to.
            files: writes it, or says whether to write parts at once.
            checkpoint: see `saves_parts`.
            step: optimizer steps taken.
        """
        spread = self.spread
        trainer = self._require_trainer()
        optimizer = trainer.optimizer
        write = None
        if trainer.args.should_save:
            write = files.write_tensors

        # The part of each process.
        if spread is not None and self.saves_parts(checkpoint=checkpoint):
            checkpoints.save_optimizer_parts(spread, optimizer, folder, files)
            return

        # All of it, by the names of parameters.
        if spread is not None and checkpoint and self.saves_by_name:
            for name, named in checkpoints.gather_states_by_name(spread, optimizer).items():
                if write is not None:
                    write(named, os.path.join(folder, name))
            return

        # All of it, in the form of torch.
        state = {}
        if spread is not None:
            state = sharding.whole_optimizer_state(spread, optimizer, keep=write is not None)
        elif write is not None:
            state = optimizer.state_dict()
        if write is not None:
            write(state, os.path.join(folder, OPTIMIZER_NAME))

    def require_fitting(self, checkpoint: str) -> None:
        """Check that this training can resume from the states in a checkpoint, before anything is
        changed.

        Raises:
            ValueError: it cannot; says why.
        """

    def load_optimizer(self, checkpoint: str) -> bool:
        """Load the state of the optimizer; returns False, with a warning, where there is none, or
        no schedule.

        Raises:
            ValueError: it does not fit the optimizer.
        """
        # The file of states by name is of a model that FSDP shards.
        file = os.path.join(checkpoint, OPTIMIZER_NAME)
        by_names = os.path.join(checkpoint, OPTIMIZER_NAME_BIN)
        if os.path.isfile(by_names) and not os.path.isfile(file):
            file = by_names

        schedule = os.path.join(checkpoint, SCHEDULER_NAME)
        parts = checkpoints.has_optimizer_parts(checkpoint)
        if not (parts or os.path.isfile(file)) or not os.path.isfile(schedule):
            logger.warning(
                "%s has no optimizer or schedule: training goes on with new ones.", checkpoint
            )
            return False

        spread = self.spread
        trainer = self._require_trainer()
        optimizer = trainer.optimizer
        with loading_optimizer(optimizer, file):
            if parts:
                model = trainer.model if spread is None else spread
                checkpoints.load_optimizer_parts(
                    model, optimizer, checkpoint, together=spread is not None
                )
            elif spread is not None:
                sharding.load_whole_optimizer_state(
                    spread, optimizer, checkpoints.load_torch(file), file=file
                )
            else:
                state = checkpoints.load_torch(file)
                require_fitting_optimizer_state(optimizer, state, file, model=trainer.model)
                optimizer.load_state_dict(state)
        return True

    def read_schedule(self, checkpoint: str) -> dict[str, Any] | None:
        """Return the state of the schedule; None where there is none."""
        path = os.path.join(checkpoint, SCHEDULER_NAME)
        return checkpoints.load_torch(path) if os.path.isfile(path) else None

    def schedule_loaded(self) -> None:
        """Repair a schedule after its state was loaded."""

    def bytes_to_save(self, states: list[Any], further: list[Any], *, processes: int) -> int:
        """Count the bytes of a checkpoint.

        Args:
            states: those of the optimizer.
            further: what else is written by the process that saves.
            processes: how many there are.
        """
        model = self._require_trainer().model
        spread = self.spread
        named = dict([*model.named_parameters(), *model.named_buffers()])
        weights = list(named.values())
        if spread is None or not self.saves_parts(checkpoint=True):
            weights = checkpoints.saved_weights(model, named)
        if spread is None:
            return checkpoints.tensor_bytes([weights, states, *further])

        # States by name are beside a second copy of the trained weights.
        again: list[torch.Tensor] = []
        if self.saves_by_name:
            again = [weight for weight in named.values() if weight.requires_grad]

        # Parts of about the same size: only all processes together could say it exactly.
        parts = map_nested(sharding.own_part, [*weights, *again, *states])
        return checkpoints.tensor_bytes(parts) * processes

    def _require_trainer(self) -> Trainer:
        trainer = self._trainer()
        assert trainer is not None, "its Trainer is gone"
        return trainer


def shown(value: Any) -> str:
    """Write options as text: `name=value, ...` for a dict, and so on inside of it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_inner(item)}" for name, item in value.items())
    return _inner(value)


def _inner(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{shown(value)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_inner, value))}]"
    return str(value)


PROCESS_GROUP_OPTIONS = ("process_group_backend", "timeout")
"""Names of the options about the process group."""


def process_group(args: TrainingArguments) -> dict[str, Any]:
    """Return the options about the process group, which all strategies of several processes
    have.
    """
    options: dict[str, Any] = {}
    if args.ddp_backend is not None:
        options["process_group_backend"] = args.ddp_backend
    options["timeout"] = args.ddp_timeout_delta
    return options


def picked(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Pick those of the options that are there, in the order of `names`."""
    return {name: options[name] for name in names if name in options}
