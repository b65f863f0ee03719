"""The members of `accelerate.Accelerator` that Trainer scripts and subclasses use, over
Lightning and torch.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ...lightning_modules.checkpoints.tied_weights import separate_tied_weights
from ...lightning_modules.common.collectives import gather_objects
from ...lightning_modules.common.followed import followed
from ...lightning_modules.common.local_paths import StrPath, require_local
from ...lightning_modules.common.nested import map_nested
from ...lightning_modules.data.batch_samplers import rounds_filled
from ...lightning_modules.data.loaders import loader_after
from ...lightning_modules.distributed import sharding
from ...lightning_modules.evaluation.collecting import cut_objects, join_objects
from ...lightning_modules.internals.precision import HALF, LossScaler, start_casting, stop_casting
from ...lightning_modules.models import inspection
from ...lightning_modules.optim import steps_in_backward
from ...lightning_modules.training.micro_batch_loss import MicroBatchLoss
from ...lightning_modules.training.out_of_memory import release_memory
from ..arguments.exports import export_precision
from ..arguments.parallelism import copies_of_batches
from ..distributed.collectives import all_gather, has_only_tensors
from ..distributed.process import forwarded
from ..strategies import choose
from ..strategies.ddp import STRATEGY_OUTSIDE_OF_RUNS
from ..strategies.plan import PRECISIONS
from .gradient_state import GradientState
from .prepared import PreparedOptimizer, PreparedScheduler, prepared_loader
from .processes import Processes, logger
from .refusals import REFUSED, refusal
from .state import StateView

if TYPE_CHECKING:
    from ..arguments import TrainingArguments
    from ..strategies.strategy import Strategy


class Accelerator(Processes):
    """As `accelerate.Accelerator`, for the members that are used through `trainer.accelerator`.

    Outside a run it prepares custom loops; while Lightning runs, `bind` connects it to the
    strategy, so that `backward` scales and synchronises as strategy and precision plugin do.
    Missing members raise an AttributeError with the reason and the alternative;
    docs/user/accelerator.md lists them.

    Args:
        args: the training arguments.
    """

    # Members that have one value.
    project_dir: str | None = None
    logging_dir: str | None = None
    delayed_fp8_autocast = False
    has_fp8_handler = False
    fp8_enabled = False
    fp8_backend = "NO"
    device_placement = True
    step_scheduler_with_optimizer = True

    # Of a run of Lightning.
    strategy: Strategy = STRATEGY_OUTSIDE_OF_RUNS
    """Strategy of the current run, or of the last one."""
    micro_batch: MicroBatchLoss | None = None
    """Weighs the loss of the micro-batch that the Trainer trains now; None outside of
    `Trainer.training_step`.
    """
    _backward: Callable[..., None] | None = None
    _optimizer: Callable[[], Any] = staticmethod(lambda: None)
    _scaler: LossScaler | None = None
    _run_needs_no_scaler = False

    # Of a custom loop.
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
    torch_device_mesh: Any = forwarded(
        "strategy.device_mesh", "The device mesh of the running strategy, or None."
    )

    def __init__(self, args: TrainingArguments) -> None:
        super().__init__(args)
        config: Any = args.accelerator_config
        self.gradient_state = GradientState(dict(config.gradient_accumulation_kwargs or {}))
        self.apply_accumulation(args)

        loading = config.to_dict()
        loading["data_seed"] = args.data_seed
        loading["use_stateful_dataloader"] = False
        self.dataloader_config = SimpleNamespace(**loading)

        self.state = StateView(args)
        self._models: list[nn.Module] = []
        self._optimizers: list[PreparedOptimizer] = []
        self._schedulers: list[PreparedScheduler] = []
        self._dataloaders: list[DataLoader] = []
        export_precision(args)

    def apply_accumulation(self, args: TrainingArguments) -> None:
        """Set the accumulation of the arguments; 1 as in later versions, where the Trainer
        divides losses itself.
        """
        self.gradient_accumulation_steps = (
            1 if followed().hides_accumulation else args.gradient_accumulation_steps
        )

    def __getattr__(self, name: str) -> Any:
        """Raise the error of a missing member; `hasattr` returns False."""
        raise refusal(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse members that would have no effect; allow attributes of subclasses and scripts."""
        if name in REFUSED and not hasattr(type(self), name):
            raise refusal(name)
        super().__setattr__(name, value)

    def __deepcopy__(self, memo: Any) -> Accelerator:
        """Return this object: there is one for each Trainer, as in the reference."""
        return self

    def bind(
        self,
        backward: Callable[..., None] | None,
        optimizer: Any = None,
        strategy: Strategy | None = None,
    ) -> None:
        """Connect to a run of Lightning, or disconnect with None.

        Args:
            backward: the backward pass of the run; None for torch's own.
            optimizer: returns the optimizer of the run.
            strategy: of the run; kept after it.
        """
        self._backward = backward
        self._optimizer = optimizer or (lambda: None)
        self.strategy = strategy or self.strategy
        self._run_needs_no_scaler = False  # what `scaler` reads
        if strategy is not None:
            self._run_needs_no_scaler = self.scaler is None

    @property
    def trackers(self) -> list[Any]:
        """Return an empty list: the trackers of `report_to` are callbacks."""
        return []

    log_with = trackers

    @property
    def multi_device(self) -> bool:
        """Return whether there are several processes, each with its own device and the whole
        model on it.
        """
        return self.use_distributed and self.distributed_type.on_several_devices

    def maybe_context_parallel(
        self, buffers: Any = None, buffer_seq_dims: Any = None, no_restore_buffers: Any = None
    ) -> contextlib.AbstractContextManager[Any]:
        """Split sequences over ranks within the block (`cp_size`, `sp_size`); do nothing outside of
        a training.

        Args:
            buffers: tensors that are replaced in place by the part of this rank.
            buffer_seq_dims: the sequence dimension of each buffer.
            no_restore_buffers: set of buffers that stay split after the block.
        """
        return self.strategy.split_sequences(buffers, buffer_seq_dims, no_restore_buffers)

    @contextlib.contextmanager
    def profile(self, profile_handler: Any = None) -> Iterator[Any]:
        """Profile the block with torch's profiler.

        Args:
            profile_handler: object like `accelerate.utils.ProfileKwargs`, with `build()` and
                `output_trace_dir`, the folder for the trace of each process.
        """
        if profile_handler is None:
            with torch.profiler.profile() as profiler:
                yield profiler
            return

        with profile_handler.build() as profiler:
            yield profiler
        folder = profile_handler.output_trace_dir
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
            profiler.export_chrome_trace(os.path.join(folder, f"profile_{self.process_index}.json"))
            self.wait_for_everyone()

    def end_training(self) -> None:
        """Destroy the process group at the end of a custom loop; no collective may follow."""
        self.state.destroy_process_group()

    # --- loaders that are read

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As `gather`, without the samples that pad the last batch of a loader, and with each batch
        once.

        Args:
            input_data: tensors, nested or not. Other objects are pickled and joined by
                `join_objects`, which unlike the reference joins the values of dicts.
            use_gather_object: pickle tensors, too, so that their shapes may differ.
        """
        are_objects = use_gather_object or not has_only_tensors(input_data)
        copies = copies_of_batches(self.args)
        if self.num_processes == 1:
            gathered = input_data
        elif are_objects:
            gathered = join_objects(gather_objects(input_data)[::copies])
        else:
            gathered = map_nested(functools.partial(all_gather, every=copies), input_data)

        # The last batch may be padded with repeated samples.
        samples = self.remainder
        if samples <= 0 or not self.end_of_dataloader:
            return gathered
        if not are_objects:
            return _truncate(gathered, samples)
        if self.num_processes == 1:
            return gathered
        return cut_objects(gathered, samples)

    @contextlib.contextmanager
    def keep_loader_position(self) -> Iterator[None]:
        """Restore `end_of_dataloader` and `remainder` after another loader was read in the
        block.
        """
        known = self.gradient_state.loader_end
        try:
            yield
        finally:
            self.gradient_state.loader_end = known

    # --- backward pass

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
        if self._scaler is None:
            self._scaler = LossScaler(self.device.type)
        return self._scaler

    def renew_scaler(self) -> LossScaler | None:
        """Replace the scaler, keeping the scale, to drop the state of an interrupted step."""
        last = self.scaler
        if last is not None:
            self._scaler = LossScaler(self.device.type)
            self._scaler.load_state_dict(last.state_dict())
        return self.scaler

    @property
    def native_amp(self) -> bool:
        """Return whether forward passes are cast."""
        return self.mixed_precision != "no"

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Return whether fp16 skipped the last optimizer step; False for fused optimizers, which
        skip it themselves.
        """
        if not self.in_run and self._optimizers:
            return any(optimizer.step_was_skipped for optimizer in self._optimizers)
        if self.strategy.step_was_skipped is not None:
            return self.strategy.step_was_skipped
        scaler = self.scaler
        return scaler is not None and scaler.step_was_skipped

    def autocast(self, autocast_handler: Any = None) -> contextlib.AbstractContextManager[Any]:
        """Return the autocast context of the model's forward passes, for other code.

        Args:
            autocast_handler: object like `accelerate.utils.AutocastKwargs`, with `enabled` and
                `cache_enabled`.
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
            loss: of the micro-batch.
            learning_rate: for optimizers that step in the backward pass, such as LOMO.
            kwargs: for `torch.Tensor.backward`.
        """
        # Weight of this micro-batch.
        if self._open_windows and not self.in_run:
            loss = loss / self.gradient_accumulation_steps
        elif self.micro_batch is not None:
            self.micro_batch.is_weighed_by_trainer = True
            loss = self.micro_batch.weigh(loss)

        # An optimizer that steps in the backward pass gets the learning rate.
        stepping: Any = None
        if learning_rate is not None:
            stepping = self._stepping_in_backward()
        if stepping is not None:
            kwargs["learning_rate"] = learning_rate

        if self._backward is not None:
            self._backward(loss, **kwargs)
            return
        if stepping is not None:
            stepping.fused_backward(loss, learning_rate)
            return

        # A custom loop, whose prepared optimizers unscale.
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
        if learning_rate is None or self._stepping_in_backward() is None:
            raise ValueError(
                "lomo_backward needs a learning_rate, and an optimizer such as that of "
                "optim='lomo'."
            )
        self.backward(loss, learning_rate=learning_rate)

    @property
    def has_lomo_optimizer(self) -> bool:
        """Return whether the optimizer steps in the backward pass."""
        return self._stepping_in_backward() is not None

    def _stepping_in_backward(self) -> Any:
        optimizers = [self._optimizer(), *(prepared.optimizer for prepared in self._optimizers)]
        for optimizer in optimizers:
            if steps_in_backward(optimizer):
                return optimizer
        return None

    @contextlib.contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Accumulate gradients in a custom loop: synchronise and step at the end of a window.

        Without effect in a training, where the Trainer counts.

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

        exchanges = self.sync_gradients or (self.use_distributed and self.sync_each_batch)
        with contextlib.ExitStack() as stack:
            if not exchanges:
                for model in models:
                    stack.enter_context(self.no_sync(model))
            self._open_windows += 1
            try:
                yield
            finally:
                self._open_windows -= 1

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Skip gradient synchronisation of a model in the backward passes of the block."""
        return self.strategy.no_sync(model)

    @contextlib.contextmanager
    def trigger_sync_in_backward(self, model: nn.Module) -> Iterator[None]:
        """Synchronise gradients in the next backward pass, although the forward passes ran in
        `no_sync`.

        Args:
            model: a DistributedDataParallel, or the model of the run inside one; others are
                unaffected.
        """
        wrapper = self.strategy.forward_model_of(model)
        if not isinstance(wrapper, nn.parallel.DistributedDataParallel):
            yield
            return
        names = ("require_backward_grad_sync", "require_forward_param_sync")
        before = {name: getattr(wrapper, name) for name in names}
        for name in names:
            setattr(wrapper, name, True)
        wrapper.reducer.prepare_for_backward([])
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(wrapper, name, value)

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Divide gradients by the loss scale of fp16; idempotent within a step, no effect in other
        precisions.

        Args:
            optimizer: one optimizer or several; by default that of the run, or all prepared ones.
        """
        scaler = self.scaler
        # None: nothing has been scaled yet
        if scaler is None or getattr(scaler, "_scale", True) is None:
            return

        if optimizer is None:
            optimizer = self._optimizer()
        if optimizer is None:
            optimizer = self._optimizers
        optimizers = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
        for one in optimizers:
            scaler.unscale_(one.optimizer if isinstance(one, PreparedOptimizer) else one)

    def clip_grad_norm_(
        self, parameters: Any, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Unscale gradients and clip them to `max_norm`; returns the norm before clipping.

        With sharded gradients this is a collective, and the norm is global. DeepSpeed clips within
        its step, to `max_grad_norm` of the arguments; then this returns the norm of the last step.
        """
        if not self._run_needs_no_scaler:
            self.unscale_gradients()
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        return self.strategy.clip_grad_norm(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Unscale gradients and clamp their values to `clip_value`, also sharded ones.

        Raises:
            NotImplementedError: DeepSpeed holds the gradients.
        """
        self.unscale_gradients()
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        self.strategy.clip_grad_values(parameters, clip_value)

    # --- custom loops

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Prepare models, optimizers, schedules and loaders, each by its own method; return others
        unchanged.

        Args:
            args: the objects; several are returned as a tuple in their order.
            device_placement: for each of them, whether it is moved to the device.

        Raises:
            ValueError: `device_placement` has another length, or a model lies on several devices.
        """
        placements: list[bool | None] = [None] * len(args)
        if device_placement is not None:
            placements = list(device_placement)

        prepared = []
        for unprepared, placement in zip(args, placements, strict=True):
            prepared.append(self._prepare_one(unprepared, placement))

        # Schedules last: each looks for its optimizer among the prepared ones.
        for index, item in enumerate(prepared):
            if isinstance(item, LRScheduler):
                prepared[index] = self.prepare_scheduler(item)

        if len(prepared) == 1:
            return prepared[0]
        return tuple(prepared)

    def _prepare_one(self, unprepared: Any, device_placement: bool | None) -> Any:
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
        """Move a model to the device, cast its forward passes, and wrap it in
        `DistributedDataParallel`.

        The model of a training, which Lightning prepares, and sharded models are returned
        unchanged.

        Args:
            model: any model; its mode is kept.
            device_placement: False leaves it on its device.
            evaluation_mode: do not wrap it: it is not trained.

        Raises:
            ValueError: several processes, and the model lies on several devices.
            NotImplementedError: it would have to be sharded for a custom loop.
        """
        is_of_run = self.strategy.is_running and self.strategy.is_trained_model(model)
        if is_of_run or sharding.is_sharded(model) or model in self._models:
            return model

        # Device.
        is_on_several = self.verify_device_map(model)
        if is_on_several and self.num_processes > 1:
            raise ValueError(
                "The model lies on several devices: start one process, or load it without "
                "device_map."
            )
        if device_placement is not False and not is_on_several:
            model = model.to(self.device)

        # Precision.
        if self.native_amp:
            start_casting(model, self.autocast)

        # Exchange of gradients.
        is_trained = not evaluation_mode and any(
            parameter.requires_grad for parameter in model.parameters()
        )
        if is_trained and self.num_processes > 1:
            model = choose(self.args, find_unused_parameters=False).wrap(model, self.device)
        self._models.append(model)
        return model

    def prepare_data_loader(
        self,
        data_loader: DataLoader,
        device_placement: bool | None = None,
        slice_fn_for_dispatch: Any = None,
    ) -> DataLoader:
        """Shard a loader over the processes, in an order that depends on seed and epoch.

        While it is iterated, `gather_for_metrics` drops the samples that pad the last batch.

        Args:
            data_loader: a torch DataLoader. Loaders of the Trainer are returned unchanged, and in
                one process those with an iteration of their own.
            device_placement: False does not move batches to the device.
            slice_fn_for_dispatch: not used: a batch is read for one process.

        Raises:
            NotImplementedError: several processes, and the loader yields samples instead of
                batches.
        """
        loader = prepared_loader(self, data_loader, placed=device_placement is not False)
        if not any(loader is prepared for prepared in self._dataloaders):
            self._dataloaders.append(loader)
        return loader

    def prepare_optimizer(
        self, optimizer: Optimizer, device_placement: bool | None = None
    ) -> PreparedOptimizer:
        """Wrap an optimizer so that it steps at the end of an `accumulate` window, see
        `PreparedOptimizer`.

        Args:
            optimizer: any; prepared ones are returned unchanged.
            device_placement: False does not move its state to the device of the parameters.
        """
        if isinstance(optimizer, PreparedOptimizer):
            return optimizer
        if device_placement is not False and optimizer.state:
            optimizer.load_state_dict(optimizer.state_dict())

        prepared = PreparedOptimizer(optimizer, self)
        self._optimizers.append(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> PreparedScheduler:
        """Wrap a schedule so that it steps with its prepared optimizer, see `PreparedScheduler`."""
        if isinstance(scheduler, PreparedScheduler):
            return scheduler

        # It may have been made for the optimizer, or for the prepared one; else it follows all of
        # them.
        scheduled = getattr(scheduler, "optimizer", None)
        optimizers = [
            one for one in self._optimizers if scheduled is one or scheduled is one.optimizer
        ]
        if not optimizers:
            optimizers = list(self._optimizers)

        prepared = PreparedScheduler(scheduler, self, optimizers)
        self._schedulers.append(prepared)
        return prepared

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Return a loader without its first batches; those of a map-style dataset are not read."""
        return loader_after(dataloader, num_batches)

    @contextlib.contextmanager
    def join_uneven_inputs(
        self, joinables: list[Any], even_batches: bool | None = None
    ) -> Iterator[None]:
        """Allow uneven numbers of batches: finished processes shadow the collectives of the others.

        Unlike in the reference, on the CPU too.

        Args:
            joinables: the prepared models.
            even_batches: of the prepared loaders within the block; by default that of the
                accelerator.
        """
        if self.num_processes == 1:
            yield
            return

        are_even = self.even_batches
        if even_batches is not None:
            are_even = even_batches
        joined = Join(joinables, enable=not are_even, throw_on_early_termination=False)
        with self._override_even_batches(even_batches), joined:
            yield

    @contextlib.contextmanager
    def _override_even_batches(self, even_batches: bool | None) -> Iterator[None]:
        if even_batches is None:
            yield
            return

        samplers: list[Any] = [loader.batch_sampler for loader in self._dataloaders]
        if not all(hasattr(sampler, "even_batches") for sampler in samplers):
            logger.warning(
                "even_batches=%s changes nothing for streams, and where process 0 reads.",
                even_batches,
            )
        with rounds_filled(samplers, even_batches):
            yield

    def verify_device_map(self, model: nn.Module) -> bool:
        """Return whether a model, or a part of it, lies on several devices (`device_map`)."""
        return any(len(getattr(module, "hf_device_map", ())) > 1 for module in model.modules())

    def free_memory(self, *objects: Any) -> list[None]:
        """Release prepared objects and the cached memory of the device; returns a None for each
        argument.
        """
        self._models.clear()
        self._optimizers.clear()
        self._schedulers.clear()
        self._dataloaders.clear()
        self.step = 0

        release_memory()
        return [None] * len(objects)

    clear = free_memory

    # --- models and files

    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> Any:
        """Return the user's model inside DistributedDataParallel, FSDP, DeepSpeed and DataParallel.

        Args:
            model: wrapped or not.
            keep_fp32_wrapper: False also removes the casts of forward passes that `prepare` added,
                but not of a run.
            keep_torch_compile: False also unwraps `torch.compile`. Otherwise a compiled model stays
                compiled; unlike in the reference, `model` is not modified.
        """
        inner = inspection.unwrap_model(model)
        if not keep_fp32_wrapper:
            stop_casting(inner)
        if inspection.inside_compiled(model) is None or not keep_torch_compile:
            return inner

        compiled: Any = model
        if compiled._orig_mod is inner:
            return compiled
        return type(compiled)(inner, compiled.dynamo_ctx)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return the full state dict of a model under the names of the unwrapped one.

        With sharded weights this is a collective: process 0 gets them in host memory, the others an
        empty dict.

        Args:
            model: wrapped or not.
            unwrap: False keeps the names of the wrapper, if the model is not sharded.
        """
        weights = self.strategy.states.whole_weights(model, keep=self.is_main_process)
        if weights is not None:
            return weights
        if unwrap:
            model = inspection.unwrap_model(model)
        return model.state_dict()

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Write an object to a file, on the saving process only.

        Args:
            obj: anything `torch.save` takes; with `safe_serialization`, tensors by name.
            f: path; for torch's format also an open file.
            safe_serialization: write safetensors. Tensors that share memory are written once.
        """
        if not self._writes:
            return
        if safe_serialization:
            from safetensors.torch import save_file

            save_file(separate_tied_weights(obj)[0], f, metadata={"format": "pt"})
        else:
            torch.save(obj, f)

    def save_model(
        self,
        model: nn.Module,
        save_directory: StrPath,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write the weights of a model, not its configuration, to a folder, on the saving process
        only.

        Args:
            model: wrapped or not; with a sharded one this is a collective.
            save_directory: created if missing; older weight shards in it are removed.
            max_shard_size: of a file, in bytes or such as "5GB"; larger weights are split, with an
                index.
            safe_serialization: `model.safetensors`, otherwise `pytorch_model.bin`.

        Raises:
            RuntimeError: some weights are on the meta device.
        """
        weights = self.get_state_dict(model)
        if not self._writes:
            return
        from huggingface_hub import save_torch_state_dict

        # safetensors holds a shared tensor once: the other names of tied weights go into the
        # metadata.
        aliases: dict[str, str] | None = None
        if safe_serialization:
            weights, aliases = separate_tied_weights(weights)

        require_local(save_directory, "save_directory")
        os.makedirs(save_directory, exist_ok=True)
        save_torch_state_dict(
            weights,
            os.fspath(save_directory),
            max_shard_size=max_shard_size,
            metadata=aliases,
            safe_serialization=safe_serialization,
        )

    @property
    def _writes(self) -> bool:
        return self.is_local_main_process if self.args.save_on_each_node else self.is_main_process

    @property
    def should_save_model(self) -> bool:
        """Return whether this process has to call `save_model`; True on all if weights may be
        sharded.
        """
        return self.is_local_main_process or self.args.parallelism_config is not None


def _truncate(gathered: Any, samples: int) -> Any:
    """Return the first samples of each tensor; unchanged if one is a scalar."""
    try:
        return map_nested(lambda leaf: leaf[:samples], gathered)
    except IndexError:
        return gathered
