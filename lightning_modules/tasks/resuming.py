"""Exact resumption under `lightning.Trainer`, by a callback and a LightningModule that adds it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..checkpoints.folder_io import FolderReader, convert_to_double
from ..common.collectives import gather_objects
from ..common.nested import leaves
from ..common.parameter_rules import plain_name
from ..common.safe_serialization import from_plain
from ..common.torch_files import pack, unpack
from ..data.epoch_loader import EpochLoader
from ..data.generators import capture_generators, restore_generators
from ..data.stateful_parts import drawing_parts, part_states, restore_parts
from ..internals.lightning_import import (
    Callback,
    GradientAccumulationScheduler,
    LightningModule,
    Strategy,
    TorchCheckpointIO,
    Trainer,
    TrainerFn,
    callbacks_of,
)
from ..internals.loop_states import (
    IN_WINDOWS,
    METRICS,
    POSITIONS,
    PROCESS_STATES,
    LoopPosition,
    begin_epoch,
    create_validation_loaders,
    has_ended_validation,
    is_inside_validation,
    is_restored_by_finder,
    load_again,
    loaders_given_to_fit,
    loop_position_of,
    normalize_counters,
    pop_loader_states,
    restart_loaders,
    resume_inside_epoch,
    step_plateau_schedules,
)
from ..training.accumulation import WindowLoader
from .loader_positions import (
    end_epoch_with_streams,
    epoch_loaders,
    facade_position,
    from_facade_position,
    is_inside_of_epoch,
    position_state,
    restore_position,
    validate_after_last_batch,
)
from .missing_optimizer_states import explain_missing_optimizer_states
from .upstream_bugs import warn_of_upstream_bugs

_log = logging.getLogger(__name__)


class ResumingCallback(Callback):
    """Resumes a training exactly.

    Restores Lightning's loops, the random generators of all processes, and the position in each
    `EpochLoader`. Does nothing unless the module, the data module or a training loader is from this
    library.

    A checkpoint may be written at any hook: `loop_position_of` derives the position from
    Lightning's counters, and `normalize_counters` and `resume_inside_epoch` make Lightning's loops
    resume there.
    """

    def __init__(self) -> None:
        # The state of this process from the checkpoint; only set until the training starts.
        self._process_state: dict[str, Any] | None = None
        self._position: dict[str, Any] = {}
        # States that Lightning has saved for loaders of other libraries.
        self._loader_states: list[dict[str, Any]] = []
        self._metrics: dict[str, torch.Tensor] | None = None
        self._loop_position = LoopPosition(0, 0)
        # The random generators, and the states of the data, at the start of the current validation.
        self._rng_before_validation: dict[str, Any] | None = None
        self._data_before_validation: list[dict[str, Any]] | None = None
        # The `ckpt_path` of this run, if Lightning has loaded it before the hook `on_fit_start`.
        self._resumed_path: Any = None
        # Whether Lightning has read the checkpoint of this run, or trains without one.
        self._is_loaded = False
        # The `id` of the optimizers that have stepped in this batch, after its backward passes.
        self._stepped_optimizers: set[int] = set()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Allow `ckpt_path` to be a folder, unless the strategy has its own checkpoint format."""
        self._is_loaded = False
        self._resumed_path = None
        if _uses_resumable_modules(trainer):
            _use_folder_reader(trainer)
        elif _may_use_epoch_loaders(trainer):
            convert_to_double(pl_module)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the states of all processes, and the metrics that plateau schedules monitor."""
        has_weights_only = "optimizer_states" not in checkpoint
        is_added_already = PROCESS_STATES in checkpoint
        if not _is_fitting(trainer) or has_weights_only or is_added_already:
            return
        if not _uses_resumable_modules(trainer) and not epoch_loaders(trainer):
            return

        # A resumed training repeats an interrupted validation, so save the generators from its
        # start.
        rng = self._rng_before_validation
        validation_data = self._data_before_validation
        if has_ended_validation(trainer):
            rng = None
            validation_data = None
        add_process_states(checkpoint, trainer, rng=rng)

        module_accumulates = self._module_accumulates(trainer)
        if validation_data is None:
            validation_data = part_states(*_validation_parts(trainer))
        position = position_state(
            trainer, module_accumulates=module_accumulates, validation_data=validation_data
        )
        positions = gather_objects(pack(position))
        checkpoint[POSITIONS] = dict(enumerate(positions))

        # Metrics that are not synchronised differ between processes.
        metrics = {name: value.detach().cpu() for name, value in trainer.callback_metrics.items()}
        checkpoint[METRICS] = dict(enumerate(gather_objects(metrics)))

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Store the state until the training starts, and normalize the loop counters."""
        self._is_loaded = True
        states = checkpoint.get(PROCESS_STATES) or {}
        if not _is_fitting(trainer) or not (states or _uses_resumable_modules(trainer)):
            return
        # A trainer may have several of these callbacks; the first one resumes.
        callbacks = callbacks_of(trainer)
        first = next(callback for callback in callbacks if isinstance(callback, ResumingCallback))
        if self is not first:
            return
        if not is_restored_by_finder(trainer):
            self._resumed_path = trainer.ckpt_path

        rank = trainer.global_rank
        if states and rank not in states:
            _log.warning(
                "The checkpoint has no state of process %s, so its random numbers differ from "
                "those of an uninterrupted training. Resume with the same number of processes.",
                rank,
            )
        process_state: dict[str, Any] = {}
        if rank in states:
            process_state = unpack(states[rank])
        self._process_state = process_state

        # Also replaces the metrics of an earlier fit if the checkpoint has none.
        metrics = checkpoint.get(METRICS) or {}
        self._metrics = metrics.get(rank, metrics.get(0))

        fit_loop = checkpoint["loops"]["fit_loop"]
        self._loop_position = loop_position_of(fit_loop)
        warn_of_upstream_bugs(
            callbacks_of(trainer), self._loop_position, is_inside_validation(fit_loop)
        )
        normalize_counters(fit_loop, self._loop_position)
        self._loader_states = pop_loader_states(checkpoint)

        positions = checkpoint.get(POSITIONS) or {}
        if positions:
            # A new rank uses the position of rank 0, because all ranks share the order of the
            # samples.
            self._position = from_plain(unpack(positions.get(rank, positions[0])))
        else:
            self._position = from_facade_position(process_state.get("data"), self._loop_position)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the checkpoint again after a finder, and make loaders record their states.

        Lightning calls finders before other callbacks, and may read a batch before the training
        starts.
        """
        if self._resumed_path is not None and is_restored_by_finder(trainer):
            load_again(trainer, self._resumed_path)
        for loader in loaders_given_to_fit(trainer):
            if isinstance(loader, EpochLoader):
                loader.tracked = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the position in the data, and the generators."""
        self._is_loaded = True
        for loader in epoch_loaders(trainer):
            loader.tracked = True
            # Use our reader, which excludes loader states from weights-only files.
            _use_folder_reader(trainer)

        process_state = self._process_state
        self._process_state = None
        if process_state is None:
            return

        # Metrics, accumulation and data. The generators come last, because loaders draw from them.
        loop_position = self._loop_position
        self._restore_metrics(trainer)
        if loop_position.done > 0:
            _schedule_accumulation(trainer, loop_position.epoch)
        restore_position(trainer, loop_position, self._position, self._loader_states)
        validation_data = self._position.get("validation")
        if validation_data:
            create_validation_loaders(trainer)
            restore_parts(validation_data, *_validation_parts(trainer))
        if process_state.get("rng") is not None:
            modules = _modules_by_name(trainer)
            restore_generators(process_state["rng"], modules, distributed=trainer.world_size > 1)

        # Lightning's loops start at the position.
        if loop_position.at_end:
            validate_after_last_batch(trainer)
        if loop_position.done == 0:
            begin_epoch(trainer)
        if is_inside_of_epoch(loop_position, self._position):
            resume_inside_epoch(trainer, loop_position)
        else:
            restart_loaders(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the epoch of the loaders.

        Loaders do not notice if Lightning ends an epoch early. With `overfit_batches` they stay in
        the first epoch, whose batches are repeated.
        """
        epoch = trainer.current_epoch
        if getattr(trainer, "overfit_batches", 0):
            epoch = 0
        for loader in epoch_loaders(trainer):
            if epoch != loader.epoch:
                loader.set_epoch(epoch)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Find the end of streams, and assume that gradients are unused.

        `loss.backward()` calls no hook.
        """
        end_epoch_with_streams(trainer)
        self._stepped_optimizers.clear()

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record that no optimizer has used the gradients yet."""
        self._stepped_optimizers.clear()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Record that an optimizer uses its gradients."""
        self._stepped_optimizers.add(id(optimizer))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Store the generators, because a resumed training repeats an interrupted validation."""
        self._rng_before_validation = _capture_generators(trainer)
        self._data_before_validation = part_states(*_validation_parts(trainer))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Mark the validation as complete.

        Lightning does not, if a stream is shorter than `limit_val_batches`.
        """
        trainer.fit_loop.epoch_loop.val_loop.batch_progress.is_last_batch = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop the generators from the start of the validation."""
        self._rng_before_validation = None
        self._data_before_validation = None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Log why a checkpoint could not be loaded, if Lightning's error does not explain it."""
        if _is_fitting(trainer) and not self._is_loaded:
            explain_missing_optimizer_states(trainer)

    def _module_accumulates(self, trainer: Trainer) -> bool:
        """Return whether a module under manual optimization has gradients that no step has used."""
        module = trainer.lightning_module
        if module.automatic_optimization:
            return False
        have_stepped = self._stepped_optimizers.issuperset(map(id, trainer.optimizers))
        has_gradients = any(parameter.grad is not None for parameter in module.parameters())
        return has_gradients and not have_stepped

    def _restore_metrics(self, trainer: Trainer) -> None:
        """Restore the last logged metrics, and step plateau schedules if they are due."""
        if self._metrics is not None:
            device = trainer.strategy.root_device
            for name, value in self._metrics.items():
                trainer.callback_metrics[name] = value.to(device)

        if not self._loop_position.owes_schedules:
            return
        if self._metrics is not None:
            step_plateau_schedules(trainer)
        elif any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs):
            _log.warning(
                "The checkpoint was written before the schedule that follows a metric was stepped "
                "for its epoch, and has no metrics: the learning rate may differ from that of an "
                "uninterrupted training."
            )


class ResumableModule(LightningModule):
    """LightningModule whose checkpoints include random generators and positions in the data.

    If the loaders are `EpochLoader`s, `fit(module, ckpt_path=...)` continues exactly like an
    uninterrupted training, even within an epoch. Other loaders resume as in plain Lightning. Hooks
    may be overridden without calling `super()`, except `on_load_checkpoint`, which restores tied
    weights that are stored only once.
    """

    resumes_exactly = True
    """Read by `ResumingCallback`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Allow overrides of `configure_callbacks` to omit `super()`, as in Lightning."""
        super().__init_subclass__(**kwargs)
        if "configure_callbacks" in vars(cls):
            configure_callbacks = _with_required_callbacks(cls.configure_callbacks)
            cls.configure_callbacks = configure_callbacks  # type: ignore[method-assign] - wraps the method of a subclass

    def required_callbacks(self) -> list[Callback]:
        """Return the callbacks that this module needs."""
        return [ResumingCallback()]

    def configure_callbacks(self) -> list[Callback]:
        """Return the `required_callbacks` that the trainer does not have yet."""
        return _with_required_callbacks(LightningModule.configure_callbacks)(self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Rename weights to the names of this module, for strategies that load them directly."""
        super().on_load_checkpoint(checkpoint)
        # Lightning only calls callbacks if this entry exists.
        checkpoint.setdefault("callbacks", {})
        # Some strategies have loaded the weights already.
        if "state_dict" in checkpoint:
            checkpoint["state_dict"] = self._with_names_of_module(checkpoint["state_dict"])

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load weights; weights of compiled and uncompiled models are interchangeable."""
        renamed = self._with_names_of_module(state_dict)
        return super().load_state_dict(renamed, strict=strict, assign=assign)

    def _with_names_of_module(self, stored: Mapping[str, object]) -> dict[str, object]:
        """Return weights under the names of this module.

        A safetensors file stores tied weights under one name; the others are added.
        """
        module_weights = self.state_dict(keep_vars=True)

        # Wrappers of compiled modules are part of the names.
        names_of_module = {plain_name(name): name for name in module_weights}
        renamed: dict[str, Any] = {}
        for stored_name, value in stored.items():
            name = names_of_module.get(plain_name(stored_name), stored_name)
            renamed[name] = value

        # Tied weights are the same object in the module, and only one of them is stored.
        stored_names: dict[int, str] = {}
        for name, value in module_weights.items():
            if name in renamed:
                stored_names[id(value)] = name
        for name, value in module_weights.items():
            if name not in renamed and id(value) in stored_names:
                renamed[name] = renamed[stored_names[id(value)]]
        return renamed


def _with_required_callbacks(configure: Callable[[Any], Any]) -> Callable[[Any], list[Callback]]:
    """Return `configure_callbacks` with the `required_callbacks` of the module added.

    Callbacks that the trainer or the override already provides are not added.
    """

    @functools.wraps(configure)
    def configure_callbacks(self: ResumableModule) -> list[Callback]:
        configured = configure(self)
        callbacks: list[Callback] = [configured]
        if isinstance(configured, Sequence):
            callbacks = list(configured)

        present = {type(callback) for callback in [*callbacks, *callbacks_of(self.trainer)]}
        for callback in self.required_callbacks():
            if type(callback) not in present:
                callbacks.append(callback)
        return callbacks

    return configure_callbacks


def add_process_states(
    checkpoint: dict[str, Any], trainer: Trainer, rng: dict[str, Any] | None = None
) -> None:
    """Add the state of every process to a checkpoint of Lightning, unless it has weights only.

    Args:
        checkpoint: the checkpoint created by Lightning.
        trainer: the trainer, during `fit`.
        rng: the generators; by default their current states.
    """
    if "optimizer_states" not in checkpoint:
        return
    if rng is None:
        rng = _capture_generators(trainer)
    state = {"rng": rng, "data": facade_position(trainer)}
    states = gather_objects(pack(state))
    checkpoint[PROCESS_STATES] = dict(enumerate(states))

    if isinstance(trainer.train_dataloader, WindowLoader):
        checkpoint[IN_WINDOWS] = True
    if epoch_loaders(trainer) or state["data"] is not None:
        pop_loader_states(checkpoint)


def _capture_generators(trainer: Trainer) -> dict[str, object]:
    """Return the generators of this process, and those in attributes of the modules."""
    modules = _modules_by_name(trainer)
    return capture_generators(modules, distributed=trainer.world_size > 1)


def _validation_parts(trainer: Trainer) -> list[object]:
    """Return the collators and datasets of the validation loaders, if they have been created."""
    parts: list[object] = []
    for loader in leaves(trainer.val_dataloaders):
        parts.extend(drawing_parts(loader))
    return parts


def _modules_by_name(trainer: Trainer) -> dict[str, nn.Module]:
    """Return the modules that may draw in a step, by their names in the Trainer API."""
    modules: dict[str, nn.Module] = dict(trainer.lightning_module.named_modules())
    modules["trainer"] = modules.pop("")
    return modules


def _use_folder_reader(trainer: Trainer) -> None:
    """Make the trainer read folders too, and write only tensors and plain values.

    A strategy or plugin with its own checkpoint format is not changed.
    """
    strategy = trainer.strategy
    reads_files = type(strategy).load_checkpoint is Strategy.load_checkpoint
    if reads_files and type(strategy.checkpoint_io) is TorchCheckpointIO:
        strategy.checkpoint_io = FolderReader(trainer)


def _is_fitting(trainer: Trainer) -> bool:
    return trainer.state.fn == TrainerFn.FITTING


def _uses_resumable_modules(trainer: Trainer) -> bool:
    """Return whether the module or the data module is one of this library."""
    modules = (trainer.lightning_module, getattr(trainer, "datamodule", None))
    return any(getattr(module, "resumes_exactly", False) for module in modules)


def _may_use_epoch_loaders(trainer: Trainer) -> bool:
    """Return whether training loaders are `EpochLoader`s, or will be created by a method."""
    if not _is_fitting(trainer):
        return False
    loaders = loaders_given_to_fit(trainer)
    return not loaders or any(isinstance(loader, EpochLoader) for loader in loaders)


def _schedule_accumulation(trainer: Trainer, epoch: int) -> None:
    """Set the number of accumulated batches like `GradientAccumulationScheduler` at the start of an
    epoch.

    The hook of that callback is not called for an epoch that is resumed.
    """
    for callback in callbacks_of(trainer):
        if isinstance(callback, GradientAccumulationScheduler):
            trainer.accumulate_grad_batches = callback.get_accumulate_grad_batches(epoch)
