"""`Accelerator`, the object of `trainer.accelerator`, over Lightning and torch."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ...lightning_modules.checkpoints.tied_weights import separate_tied_weights
from ...lightning_modules.common.collectives import gather_objects
from ...lightning_modules.common.local_paths import StrPath, require_local
from ...lightning_modules.common.nested import map_nested
from ...lightning_modules.common.version_behavior import version_behavior
from ...lightning_modules.data.loaders import skip_batches
from ...lightning_modules.distributed import sharding
from ...lightning_modules.evaluation.joined_objects import cut_objects, join_objects
from ...lightning_modules.internals.precision import HALF, LossScaler, start_casting, stop_casting
from ...lightning_modules.models.wrappers import inside_compiled, unwrap_model
from ...lightning_modules.optim import steps_in_backward
from ...lightning_modules.training.micro_batch_loss import MicroBatchLoss
from ...lightning_modules.training.out_of_memory import release_memory
from ..arguments.exports import export_precision
from ..arguments.rank_groups import copies_of_batches
from ..distributed.collectives import all_gather, has_only_tensors
from ..distributed.process import forwarded
from ..strategies import choose
from ..strategies.ddp import STRATEGY_OUTSIDE_OF_RUNS
from ..strategies.plan import PRECISIONS
from .gradient_state import GradientState
from .prepared import PreparedOptimizer, PreparedScheduler, prepared_loader
from .processes import Processes
from .refusals import REFUSED, refusal
from .state import StateView

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from ..arguments import TrainingArguments
    from ..arguments.accelerator import AcceleratorConfig
    from ..strategies.strategy import Strategy


class AutocastHandler(Protocol):
    """An object such as `accelerate.utils.AutocastKwargs`."""

    @property
    def enabled(self) -> bool:
        """Whether the block casts."""
        ...

    @property
    def cache_enabled(self) -> bool | None:
        """Whether casts of weights are cached; None for the setting of torch."""
        ...


class SteppingInBackward(Protocol):
    """An optimizer that steps in its own backward pass, such as LOMO."""

    def fused_backward(self, loss: torch.Tensor, lr: float) -> None:
        """Run the backward pass, and update each parameter in it."""
        ...


class Accelerator(Processes):
    """The members of `accelerate.Accelerator` that scripts and libraries use.

    Outside a run it prepares models and loaders for custom loops. For a run of Lightning it gets
    the strategy, and `training` connects it, so that `backward` scales and synchronises as strategy
    and precision plugin do. Unsupported members raise an AttributeError with the reason and the
    alternative; docs/user/accelerator.md lists them.

    Args:
        args: the training arguments.
    """

    # Members with a fixed value.
    project_dir: str | None = None
    logging_dir: str | None = None
    delayed_fp8_autocast = False
    has_fp8_handler = False
    fp8_enabled = False
    fp8_backend = "NO"
    device_placement = True
    step_scheduler_with_optimizer = True

    # State of a run of Lightning.
    strategy: Strategy = STRATEGY_OUTSIDE_OF_RUNS
    """Strategy of the current run, or of the last one."""
    micro_batch: MicroBatchLoss | None = None
    """Weighs the loss of the current micro-batch; None outside of `Trainer.training_step`."""
    _backward: Callable[..., None] | None = None
    """The backward pass of the run."""
    _optimizer_of_run: Callable[[], Optimizer | None] = staticmethod(lambda: None)
    _scaler: LossScaler | None = None
    _run_needs_no_scaler = False

    # State of a custom loop.
    step = 0
    """Micro-batches since the last step at the end of a loader."""
    _open_windows = 0
    """Depth of nested `accumulate` blocks."""

    sync_gradients: bool = forwarded(
        "gradient_state.sync_gradients",
        "Whether the optimizer steps after this micro-batch.",
        writable=True,
    )
    gradient_accumulation_steps: int = forwarded(
        "gradient_state.num_steps", "The micro-batches in an accumulation window.", writable=True
    )
    sync_each_batch: bool = forwarded(
        "gradient_state.sync_each_batch", "See `GradientState.sync_each_batch`."
    )
    end_of_dataloader: bool = forwarded(
        "gradient_state.end_of_dataloader", "See `GradientState.end_of_dataloader`.", writable=True
    )
    remainder: int = forwarded(
        "gradient_state.remainder", "See `GradientState.remainder`.", writable=True
    )

    split_batches: bool = forwarded(
        "dataloader_config.split_batches", "Each batch is split over all processes."
    )
    dispatch_batches: bool | None = forwarded(
        "dataloader_config.dispatch_batches", "Process 0 reads all batches."
    )
    even_batches: bool = forwarded(
        "dataloader_config.even_batches",
        "The last round of loaders prepared from now on is padded.",
        writable=True,
    )
    use_seedable_sampler: bool = forwarded(
        "dataloader_config.use_seedable_sampler", "The order depends on the seed."
    )
    non_blocking: bool = forwarded(
        "dataloader_config.non_blocking", "Copies to the device are asynchronous."
    )
    use_stateful_dataloader: bool = forwarded(
        "dataloader_config.use_stateful_dataloader", "Always False."
    )

    deepspeed_plugin: None = forwarded(
        "state.deepspeed_plugin", "See `StateView.deepspeed_plugin`."
    )
    is_fsdp2: bool = forwarded("state.is_fsdp2", "See `StateView.is_fsdp2`.")
    is_composable_parallelism_enabled: bool = forwarded("state.is_fsdp2", "As `is_fsdp2`.")
    torch_device_mesh: DeviceMesh | None = forwarded(
        "strategy.device_mesh", "The device mesh of the running strategy, or None."
    )

    def __init__(self, args: TrainingArguments) -> None:
        super().__init__(args)
        config = cast("AcceleratorConfig", args.accelerator_config)
        self.gradient_state = GradientState(dict(config.gradient_accumulation_kwargs or {}))
        self.apply_accumulation(args)

        # Scripts change these settings for the loaders that they prepare afterwards.
        loader_settings = config.to_dict()
        loader_settings["data_seed"] = args.data_seed
        loader_settings["use_stateful_dataloader"] = False
        self.dataloader_config = SimpleNamespace(**loader_settings)

        self.state = StateView(args)

        # What was prepared.
        self._models: list[nn.Module] = []
        self._optimizers: list[PreparedOptimizer] = []
        self._schedulers: list[PreparedScheduler] = []
        self._dataloaders: list[DataLoader] = []
        export_precision(args)

    def apply_accumulation(self, args: TrainingArguments) -> None:
        """Set the accumulation of the arguments.

        It is 1 where a newer version of transformers is followed, whose Trainer divides losses.
        """
        self.gradient_accumulation_steps = args.gradient_accumulation_steps
        if version_behavior().hides_accumulation:
            self.gradient_accumulation_steps = 1

    def __getattr__(self, name: str) -> Any:
        """Raise the error of an unsupported member; `hasattr` returns False."""
        raise refusal(name)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse members that would have no effect; allow attributes of subclasses and scripts."""
        if name in REFUSED and not hasattr(type(self), name):
            raise refusal(name)
        super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict[int, object]) -> Accelerator:
        """Return this object: a Trainer has one accelerator, as in the reference."""
        return self

    @contextlib.contextmanager
    def training(
        self, backward: Callable[..., None] | None, optimizer: Callable[[], Optimizer | None]
    ) -> Iterator[None]:
        """Connect to a training of Lightning in the block.

        Args:
            backward: the backward pass of the run; None for that of torch.
            optimizer: returns the optimizer of the run.
        """
        self._backward = backward
        self._optimizer_of_run = optimizer
        # Cached, because each step asks.
        self._run_needs_no_scaler = self.scaler is None
        self.gradient_state.loader_end = None
        try:
            with self.keep_loader_position():
                yield
        finally:
            self._backward = None
            self._optimizer_of_run = lambda: None
            self._run_needs_no_scaler = False

    @property
    def trackers(self) -> list[object]:
        """Return an empty list: the trackers of `report_to` are callbacks."""
        return []

    log_with = trackers

    @property
    def multi_device(self) -> bool:
        """Return whether several processes each have a device with the whole model on it."""
        return self.use_distributed and self.distributed_type.on_several_devices

    def maybe_context_parallel(
        self,
        buffers: list[torch.Tensor] | None = None,
        buffer_seq_dims: list[int] | None = None,
        no_restore_buffers: set[torch.Tensor] | None = None,
    ) -> contextlib.AbstractContextManager[Any]:
        """Split sequences over ranks within the block, by `cp_size` or `sp_size`.

        Outside of a training nothing is split.

        Args:
            buffers: tensors that are replaced in place by the part of this rank.
            buffer_seq_dims: the sequence dimension of each buffer.
            no_restore_buffers: set of buffers that stay split after the block.
        """
        return self.strategy.split_sequences(buffers, buffer_seq_dims, no_restore_buffers)

    def end_training(self) -> None:
        """Destroy the process group at the end of a custom loop; no collective may follow."""
        self.state.destroy_process_group()

    # Metrics.

    def gather_for_metrics(self, input_data: object, use_gather_object: bool = False) -> Any:
        """Gather tensors from all processes, without repeated samples.

        Left out are the samples that pad the last batch of a loader, and batches that several
        processes share.

        Args:
            input_data: tensors, nested or not. Other objects are pickled and joined by
                `join_objects`, which unlike the reference joins the values of dicts.
            use_gather_object: pickle tensors, too, so that their shapes may differ.
        """
        # Processes that split layers or sequences share a batch: only the first of them counts.
        are_objects = use_gather_object or not has_only_tensors(input_data)
        copies = copies_of_batches(self.args)
        if self.num_processes == 1:
            gathered = input_data
        elif are_objects:
            gathered = join_objects(gather_objects(input_data)[::copies])
        else:
            gathered = map_nested(functools.partial(all_gather, every=copies), input_data)

        # The last batch may be padded.
        samples = self.remainder
        if samples <= 0 or not self.end_of_dataloader:
            return gathered
        if not are_objects:
            return _first_samples(gathered, samples)
        if self.num_processes == 1:
            return gathered
        return cut_objects(gathered, samples)

    @contextlib.contextmanager
    def keep_loader_position(self) -> Iterator[None]:
        """Restore `end_of_dataloader` and `remainder` after the block has read other loaders, even
        if it has not read them to their end.
        """
        loader_end = self.gradient_state.loader_end
        active_loaders = list(self.gradient_state.active_loaders)
        try:
            yield
        finally:
            self.gradient_state.loader_end = loader_end
            self.gradient_state.active_loaders = active_loaders

    # Backward pass.

    @property
    def in_run(self) -> bool:
        """Return whether Lightning runs, and handles accumulation, precision and strategy."""
        return self._backward is not None or self.strategy.is_running

    @property
    def scaler(self) -> LossScaler | None:
        """Return the loss scaler of fp16, on the CPU too; None in other precisions."""
        if (
            self._run_needs_no_scaler
            or self.mixed_precision != "fp16"
            or self.strategy.scales_losses
        ):
            return None
        # Created on first use, because the precision of the arguments may change until then.
        if self._scaler is None:
            self._scaler = LossScaler(self.device.type)
        return self._scaler

    def renew_scaler(self) -> LossScaler | None:
        """Replace the scaler, keeping the scale, to drop the state of an interrupted step."""
        old_scaler = self.scaler
        if old_scaler is not None:
            self._scaler = LossScaler(self.device.type)
            self._scaler.load_state_dict(old_scaler.state_dict())
        return self.scaler

    @property
    def native_amp(self) -> bool:
        """Return whether forward passes are cast."""
        return self.mixed_precision != "no"

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Return whether fp16 skipped the last optimizer step.

        False for fused optimizers, which skip it themselves.
        """
        # A custom loop.
        if not self.in_run and self._optimizers:
            return any(optimizer.step_was_skipped for optimizer in self._optimizers)

        # A run: an engine such as DeepSpeed knows, or else the scaler.
        if self.strategy.step_was_skipped is not None:
            return self.strategy.step_was_skipped
        scaler = self.scaler
        return scaler is not None and scaler.step_was_skipped

    def autocast(
        self, autocast_handler: AutocastHandler | None = None
    ) -> contextlib.AbstractContextManager[object]:
        """Return the autocast context of the model's forward passes, for other code.

        Args:
            autocast_handler: settings; None casts, and caches as torch does.
        """
        dtype = HALF.get(PRECISIONS[self.mixed_precision])
        if dtype is None:
            return contextlib.nullcontext()
        if autocast_handler is None:
            return torch.autocast(self.device.type, dtype=dtype)
        return torch.autocast(
            self.device.type,
            dtype=dtype,
            enabled=autocast_handler.enabled,
            cache_enabled=autocast_handler.cache_enabled,
        )

    def backward(
        self, loss: torch.Tensor, learning_rate: float | None = None, **kwargs: Any
    ) -> None:
        """Run the backward pass of one micro-batch through strategy and precision plugin.

        In an `accumulate` block of a custom loop the loss is divided by the length of the window.
        In a training a mean over the micro-batch is divided so that the losses of the step add up
        to the mean over all of it.

        Args:
            loss: the loss of the micro-batch.
            learning_rate: for optimizers that step in the backward pass, such as LOMO.
            kwargs: for `torch.Tensor.backward`.
        """
        # The weight of this micro-batch.
        if self._open_windows and not self.in_run:
            loss = loss / self.gradient_accumulation_steps
        elif self.micro_batch is not None:
            self.micro_batch.is_scaled_by_trainer = True
            loss = self.micro_batch.scale(loss)

        # An optimizer that steps in the backward pass gets the learning rate.
        stepping_optimizer = None
        if learning_rate is not None:
            stepping_optimizer = self._optimizer_stepping_in_backward()
        if stepping_optimizer is not None:
            kwargs["learning_rate"] = learning_rate

        # A run: Lightning's strategy and precision plugin.
        if self._backward is not None:
            self._backward(loss, **kwargs)
            return

        # A custom loop.
        if stepping_optimizer is not None and learning_rate is not None:
            stepping_optimizer.fused_backward(loss, learning_rate)
            return

        # The loss is scaled only if prepared optimizers unscale the gradients.
        if self._optimizers and not self._run_needs_no_scaler:
            scaler = self.scaler
            if scaler is not None:
                loss = scaler.scale(loss)
        loss.backward(**kwargs)

    def lomo_backward(self, loss: torch.Tensor, learning_rate: float) -> None:
        """Run the backward pass of LOMO, which also steps.

        Raises:
            ValueError: no learning rate, or no such optimizer.
        """
        if learning_rate is None or self._optimizer_stepping_in_backward() is None:
            raise ValueError(
                f"lomo_backward needs a learning_rate (it is {learning_rate!r}) and an optimizer "
                "that steps in the backward pass, such as that of optim='lomo'."
            )
        self.backward(loss, learning_rate=learning_rate)

    @property
    def has_lomo_optimizer(self) -> bool:
        """Return whether the optimizer steps in the backward pass."""
        return self._optimizer_stepping_in_backward() is not None

    def _optimizer_stepping_in_backward(self) -> SteppingInBackward | None:
        optimizers = [self._optimizer_of_run()]
        for prepared in self._optimizers:
            optimizers.append(prepared.optimizer)
        for optimizer in optimizers:
            if steps_in_backward(optimizer):
                return cast("SteppingInBackward", optimizer)
        return None

    @contextlib.contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Accumulate gradients in a custom loop: synchronise and step at the end of a window.

        No effect in a training, where the Trainer counts micro-batches.

        Args:
            models: models whose gradients stay local until the end of the window.
        """
        if self.in_run:
            yield
            return

        # Count the micro-batch. The last one of a loader ends the window.
        state = self.gradient_state
        if state.sync_with_dataloader and state.end_of_dataloader:
            self.step = 0
            self.sync_gradients = True
        else:
            self.step += 1
            self.sync_gradients = self.step % state.num_steps == 0

        # Within the window gradients stay local, unless each micro-batch exchanges them.
        synchronizes = self.sync_gradients or (self.use_distributed and self.sync_each_batch)
        with contextlib.ExitStack() as stack:
            if not synchronizes:
                for model in models:
                    stack.enter_context(self.no_sync(model))
            self._open_windows += 1
            try:
                yield
            finally:
                self._open_windows -= 1

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[object]:
        """Skip gradient synchronisation of a model in the backward passes of the block."""
        return self.strategy.no_sync(model)

    @contextlib.contextmanager
    def trigger_sync_in_backward(self, model: nn.Module) -> Iterator[None]:
        """Synchronise gradients in the next backward pass, despite forward passes in `no_sync`.

        Args:
            model: a DistributedDataParallel, or the model of the run inside one; others are
                unaffected.
        """
        wrapper = self.strategy.forward_model_of(model)
        if not isinstance(wrapper, nn.parallel.DistributedDataParallel):
            yield
            return

        # The forward passes have left the reducer unprepared.
        backward_sync = wrapper.require_backward_grad_sync
        forward_sync = wrapper.require_forward_param_sync
        wrapper.require_backward_grad_sync = True
        wrapper.require_forward_param_sync = True
        wrapper.reducer.prepare_for_backward([])
        try:
            yield
        finally:
            wrapper.require_backward_grad_sync = backward_sync
            wrapper.require_forward_param_sync = forward_sync

    def unscale_gradients(self, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> None:
        """Divide gradients by the loss scale of fp16; no effect in other precisions.

        Further calls within a step have no effect.

        Args:
            optimizer: one optimizer or several; by default that of the run, or all prepared ones.
        """
        # The scaler has no scale before the first loss is scaled.
        scaler = self.scaler
        if scaler is None or getattr(scaler, "_scale", True) is None:
            return

        if optimizer is None:
            optimizer = self._optimizer_of_run()
        if optimizer is None:
            optimizer = self._optimizers
        if not isinstance(optimizer, (list, tuple)):
            optimizer = [cast("Optimizer", optimizer)]

        # The scaler knows an optimizer by its parameters, which the wrapped one has.
        for each in optimizer:
            if isinstance(each, PreparedOptimizer):
                scaler.unscale_(each.optimizer)
            else:
                scaler.unscale_(each)

    def clip_grad_norm_(
        self,
        parameters: torch.Tensor | Iterable[torch.Tensor],
        max_norm: float,
        norm_type: float = 2,
    ) -> torch.Tensor:
        """Unscale gradients and clip them to `max_norm`; return the norm before clipping.

        With sharded gradients this is a collective, and the norm is global. DeepSpeed clips within
        its step, to `max_grad_norm` of the arguments; then this returns the norm of the last step.
        """
        if not self._run_needs_no_scaler:
            self.unscale_gradients()
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        return self.strategy.clip_grad_norm(list(parameters), max_norm, norm_type)

    def clip_grad_value_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float
    ) -> None:
        """Unscale gradients and clamp their values to `clip_value`, also sharded ones.

        Raises:
            NotImplementedError: DeepSpeed holds the gradients.
        """
        self.unscale_gradients()
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        self.strategy.clip_grad_values(parameters, clip_value)

    # Custom loops.

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Prepare models, optimizers, schedules and loaders, each by its own method.

        Other objects are returned unchanged.

        Args:
            args: the objects; several are returned as a tuple in their order.
            device_placement: for each of them, whether it is moved to the device.

        Raises:
            ValueError: `device_placement` has another length, or a model is on several devices.
        """
        # None leaves the decision to the method of each kind of object.
        placements: list[bool | None] = [None] * len(args)
        if device_placement is not None:
            placements = list(device_placement)

        prepared = []
        for unprepared, placement in zip(args, placements, strict=True):
            prepared.append(self._prepare_object(unprepared, placement))

        # Schedules last: each looks for its optimizer among the prepared ones.
        for index, item in enumerate(prepared):
            if isinstance(item, LRScheduler):
                prepared[index] = self.prepare_scheduler(item)

        if len(prepared) == 1:
            return prepared[0]
        return tuple(prepared)

    def _prepare_object(self, unprepared: object, device_placement: bool | None) -> object:
        if isinstance(unprepared, DataLoader):
            return self.prepare_data_loader(unprepared, device_placement=device_placement)
        if isinstance(unprepared, nn.Module):
            return self.prepare_model(unprepared, device_placement=device_placement)
        if isinstance(unprepared, Optimizer):
            return self.prepare_optimizer(unprepared, device_placement=device_placement)
        return unprepared

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Move a model to the device, cast its forward passes, and wrap it for several processes.

        The wrapper is `DistributedDataParallel`. The model of a training, which Lightning prepares,
        and sharded models are returned unchanged.

        Args:
            model: any model; its mode is kept.
            device_placement: False leaves it on its device.
            evaluation_mode: do not wrap it, as it is not trained.

        Raises:
            ValueError: several processes, and the model is on several devices.
            NotImplementedError: it would have to be sharded for a custom loop.
        """
        is_trained_in_run = self.strategy.is_running and self.strategy.is_trained_model(model)
        if is_trained_in_run or sharding.is_sharded(model) or model in self._models:
            return model

        # Device.
        is_on_several = self.verify_device_map(model)
        if is_on_several and self.num_processes > 1:
            raise ValueError(
                "The model is on several devices. Start a single process, or load the model "
                "without device_map."
            )
        if device_placement is not False and not is_on_several:
            model = model.to(self.device)

        # Precision.
        if self.native_amp:
            start_casting(model, self.autocast)

        # Exchange of gradients.
        is_trained = False
        if not evaluation_mode:
            is_trained = any(parameter.requires_grad for parameter in model.parameters())
        if is_trained and self.num_processes > 1:
            model = choose(self.args, find_unused_parameters=False).wrap(model, self.device)
        self._models.append(model)
        return model

    def prepare_data_loader(
        self,
        data_loader: DataLoader,
        device_placement: bool | None = None,
        slice_fn_for_dispatch: object = None,
    ) -> DataLoader:
        """Shard a loader over the processes, in an order that depends on seed and epoch.

        While it is iterated, `gather_for_metrics` drops the samples that pad the last batch.

        Args:
            data_loader: a torch DataLoader. Loaders of the Trainer are returned unchanged, as are,
                in a single process, those that override the iteration of torch.
            device_placement: False does not move batches to the device.
            slice_fn_for_dispatch: ignored: process 0 reads whole batches for the others, so no
                batch is sliced.

        Raises:
            NotImplementedError: several processes, and the loader yields samples instead of
                batches.
        """
        # None means the default of the accelerator, which moves batches.
        moves_batches = device_placement is not False
        loader = prepared_loader(self, data_loader, moves_batches=moves_batches)
        if not any(loader is prepared for prepared in self._dataloaders):
            self._dataloaders.append(loader)
        return loader

    def prepare_optimizer(
        self, optimizer: Optimizer, device_placement: bool | None = None
    ) -> PreparedOptimizer:
        """Wrap an optimizer so that it steps at the end of a window; see `PreparedOptimizer`.

        Args:
            optimizer: any; prepared ones are returned unchanged.
            device_placement: False does not move its state to the device of the parameters.
        """
        if isinstance(optimizer, PreparedOptimizer):
            return optimizer

        # Loading a state moves it to the device of the parameters.
        if device_placement is not False and optimizer.state:
            optimizer.load_state_dict(optimizer.state_dict())

        prepared = PreparedOptimizer(optimizer, self)
        self._optimizers.append(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: LRScheduler | PreparedScheduler) -> PreparedScheduler:
        """Wrap a schedule so that it steps with its optimizer; see `PreparedScheduler`."""
        if isinstance(scheduler, PreparedScheduler):
            return scheduler

        # The schedule may have been created for the optimizer, or for the prepared one. Without one
        # of them it steps with all prepared optimizers.
        scheduled = getattr(scheduler, "optimizer", None)
        optimizers: list[PreparedOptimizer] = []
        for optimizer in self._optimizers:
            if scheduled is optimizer or scheduled is optimizer.optimizer:
                optimizers.append(optimizer)
        if not optimizers:
            optimizers = list(self._optimizers)

        prepared = PreparedScheduler(scheduler, self, optimizers)
        self._schedulers.append(prepared)
        return prepared

    def skip_first_batches(self, dataloader: DataLoader, num_batches: int = 0) -> DataLoader:
        """Return a loader without its first batches; those of a map-style dataset are not read."""
        return skip_batches(dataloader, num_batches)

    def verify_device_map(self, model: nn.Module) -> bool:
        """Return whether a model, or a part of it, is on several devices (`device_map`)."""
        for module in model.modules():
            device_map = getattr(module, "hf_device_map", ())
            if len(device_map) > 1:
                return True
        return False

    def free_memory(self, *objects: object) -> list[None]:
        """Release prepared objects and the cached memory of the device.

        Returns:
            A None for each argument, to assign to the variables of the script.
        """
        self._models.clear()
        self._optimizers.clear()
        self._schedulers.clear()
        self._dataloaders.clear()
        self.step = 0

        release_memory()
        return [None] * len(objects)

    clear = free_memory

    # Models and files.

    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> Any:
        """Return the user's model inside DistributedDataParallel, FSDP, DeepSpeed and DataParallel.

        Args:
            model: wrapped or not.
            keep_fp32_wrapper: False also removes the casts of forward passes that `prepare` added;
                those of a run stay.
            keep_torch_compile: False also unwraps `torch.compile`. Otherwise a compiled model stays
                compiled; unlike in the reference, `model` is not modified.
        """
        inner = unwrap_model(model)
        if not keep_fp32_wrapper:
            stop_casting(inner)
        if inside_compiled(model) is None or not keep_torch_compile:
            return inner

        # A wrapper inside the compiled model was removed, so the inner model gets the same
        # compilation. The class is private to torch.
        compiled: Any = model
        if compiled._orig_mod is inner:
            return compiled
        return type(compiled)(inner, compiled.dynamo_ctx)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, torch.Tensor]:
        """Return the full state dict of a model, with the names of the unwrapped one.

        With sharded weights this is a collective: process 0 gets them in host memory, the others an
        empty dict.

        Args:
            model: wrapped or not.
            unwrap: False keeps the names of the wrapper, if the model is not sharded.
        """
        weights = self.strategy.full_weights(model, keep=self.is_main_process)
        if weights is not None:
            return weights
        if unwrap:
            model = unwrap_model(model)
        return model.state_dict()

    def save(self, obj: object, f: StrPath | IO[bytes], safe_serialization: bool = False) -> None:
        """Write an object to a file, on the saving process only.

        Args:
            obj: any object for `torch.save`; with `safe_serialization`, tensors by name.
            f: path; for torch's format also an open file.
            safe_serialization: write safetensors. Tensors that share memory are written once.
        """
        if not self.args.should_save:
            return
        if not safe_serialization:
            torch.save(obj, f)
            return

        from safetensors.torch import save_file

        from ...lightning_modules.checkpoints.weights import weights_written_to

        path = cast("StrPath", f)
        tensors, _ = separate_tied_weights(cast("Mapping[str, torch.Tensor]", obj))
        with weights_written_to(Path(path).parent):
            save_file(tensors, path, metadata={"format": "pt"})

    def save_model(
        self,
        model: nn.Module,
        save_directory: StrPath,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write the weights of a model to a folder, on the saving process only.

        The configuration of the model is not written.

        Args:
            model: wrapped or not; with a sharded one this is a collective.
            save_directory: created if missing; older weight shards in it are removed.
            max_shard_size: the largest size of a file, in bytes or such as "5GB"; larger weights
                are split, with an index.
            safe_serialization: write `model.safetensors`; with False `pytorch_model.bin`.

        Raises:
            RuntimeError: some weights are on the meta device.
        """
        # All processes gather, and one writes.
        weights = self.get_state_dict(model)
        if not self.args.should_save:
            return

        from huggingface_hub import save_torch_state_dict

        from ...lightning_modules.checkpoints.weights import weights_written_to

        # safetensors holds a shared tensor once: the other names of tied weights go into the
        # metadata.
        aliases: dict[str, str] | None = None
        if safe_serialization:
            weights, aliases = separate_tied_weights(weights)

        require_local(save_directory, "save_directory")
        os.makedirs(save_directory, exist_ok=True)
        with weights_written_to(Path(save_directory)):
            save_torch_state_dict(
                weights,
                os.fspath(save_directory),
                max_shard_size=max_shard_size,
                metadata=aliases,
                safe_serialization=safe_serialization,
            )

    @property
    def should_save_model(self) -> bool:
        """Return whether this process has to call `save_model`; all if weights may be sharded."""
        # Gathering sharded weights is a collective.
        return self.is_local_main_process or self.args.parallelism_config is not None


def _first_samples(tensors: object, samples: int) -> object:
    """Return the first samples of each tensor; all are unchanged if one is a scalar."""
    try:
        return map_nested(lambda tensor: tensor[:samples], tensors)
    except IndexError:
        return tensors
