"""The members of `accelerate.Accelerator` that Trainer scripts and subclasses use, over Lightning and torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from ..lightning_modules.collect import map_nested
from ..lightning_modules.models import unwrap_model
from ..lightning_modules.objects import cut_objects, join_objects
from ..lightning_modules.optimizers import steps_in_backward
from ..lightning_modules.precision import HALF, LossScaler
from ..lightning_modules.sharding import whole
from .accelerate_state import StateView, tell_precision
from .exchange import all_gather, pad_to_longest, share_of_inputs
from .plan import PRECISIONS
from .prepared_loaders import prepared

if TYPE_CHECKING:
    from .arguments import TrainingArguments


class Accelerator:
    """As `accelerate.Accelerator`, as far as people reach it through `trainer.accelerator`.

    Outside a run it works on this process alone; while Lightning runs, `bind` connects it to the strategy, so that
    `backward` scales and synchronises as the strategy and the precision plugin want it.

    Args:
        args: the training arguments.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self.args = args
        self.sync_gradients = True
        self.gradient_accumulation_steps = args.gradient_accumulation_steps
        config: Any = args.accelerator_config
        self.even_batches = config.even_batches
        self.sync_each_batch = bool((config.gradient_accumulation_kwargs or {}).get("sync_each_batch", False))
        self.dataloader_config = SimpleNamespace(**config.to_dict(), data_seed=args.data_seed)
        self.parallelism_config = args.parallelism_config
        self.torch_device_mesh = None
        self.state = StateView(args)
        self.end_of_dataloader = False
        self.remainder = -1
        self._backward: Callable[..., None] | None = None
        self._optimizer: Callable[[], Any] = _none
        self._scaler: LossScaler | None = None
        tell_precision(args)

    def __getattr__(self, name: str) -> Any:
        """Say of what is not here that it is not; `hasattr` may ask."""
        raise AttributeError(
            f"trainer.accelerator has no {name!r}: it is not an accelerate.Accelerator, but has those of its members "
            "that Trainers and their libraries use. For a loop of your own make one with accelerate."
        )

    def bind(self, backward: Callable[..., None] | None, optimizer: Callable[[], Any] | None = None) -> None:
        """Connect to a run of Lightning, with its backward pass and its optimizer, or with None leave it."""
        self._backward = backward
        self._optimizer = optimizer or _none

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.args.device

    @property
    def num_processes(self) -> int:
        """Number of processes."""
        return self.args.world_size

    @property
    def process_index(self) -> int:
        """Index of this process among all."""
        return self.args.process_index

    @property
    def local_process_index(self) -> int:
        """Index of this process on this machine."""
        return self.args.local_process_index

    @property
    def is_main_process(self) -> bool:
        """Whether this is process 0."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of this machine."""
        return self.local_process_index == 0

    @property
    def mixed_precision(self) -> str:
        """`no`, `bf16` or `fp16`."""
        return self.args.mixed_precision

    @property
    def scaler(self) -> LossScaler | None:
        """Scales losses under fp16, on the CPU too; None in other precisions."""
        if self.mixed_precision != "fp16":
            return None
        if self._scaler is None:
            self._scaler = LossScaler(self.device.type)
        return self._scaler

    def renew_scaler(self) -> LossScaler | None:
        """A scaler with the scale of the last training, but without what an interrupted step left in it."""
        last = self.scaler
        if last is not None:
            self._scaler = LossScaler(self.device.type)
            self._scaler.load_state_dict(last.state_dict())
        return self.scaler

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether fp16 left out the last optimizer step; never for optimizers that skip it themselves (fused ones)."""
        scaler = self.scaler
        return scaler is not None and scaler.step_was_skipped

    @property
    def distributed_type(self) -> str:
        """`NO`, `MULTI_CPU` or `MULTI_GPU`."""
        return self.args.distributed_state.distributed_type

    def backward(self, loss: torch.Tensor, learning_rate: float | None = None, **kwargs: Any) -> None:
        """Backward pass of one micro-batch, the way that strategy and precision want it.

        Args:
            loss: of the micro-batch.
            learning_rate: for an optimizer that steps in the backward pass, such as LOMO; others do not need it.
            kwargs: for `torch.Tensor.backward`.
        """
        optimizer: Any = None if learning_rate is None else self._optimizer()
        fused = steps_in_backward(optimizer)
        if self._backward is not None:
            self._backward(loss, **kwargs, **({"learning_rate": learning_rate} if fused else {}))
        elif fused:
            optimizer.fused_backward(loss, learning_rate)
        else:
            loss.backward(**kwargs)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Scale gradients down to `max_norm`, without the loss scale of fp16; returns the norm that they had."""
        self.unscale_gradients()
        return whole(nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type))

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Take the loss scale of fp16 out of the gradients; twice in one step is fine, and other precisions too.

        Args:
            optimizer: one optimizer or several, by default that of the run.
        """
        scaler = self.scaler
        if scaler is None:
            return
        given = self._optimizer() if optimizer is None else optimizer
        for one in given if isinstance(given, (list, tuple)) else [given]:
            if one is not None:
                scaler.unscale_(one)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """What forward passes of the model run in, for other code, in a training or not."""
        dtype = HALF.get(PRECISIONS[self.mixed_precision])
        return contextlib.nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)

    def gather(self, tensor: Any) -> Any:
        """The tensors of all processes, joined along the first dimension, on every process; nested ones too.

        Processes must give equal shapes: `pad_across_processes` sees to the second dimension.
        """
        return tensor if self.num_processes == 1 else map_nested(all_gather, tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As `gather`, without the samples that only fill up the last batch of an evaluation.

        With `use_gather_object` there may be more than tensors: see `join_objects` for what becomes of it.
        """
        if use_gather_object:
            return self._gather_objects(input_data)
        gathered = self.gather(input_data)
        if not self.end_of_dataloader or self.remainder <= 0:
            return gathered
        return map_nested(lambda leaf: leaf[: self.remainder] if leaf.ndim else leaf, gathered)

    def _gather_objects(self, data: Any) -> Any:
        if self.num_processes == 1:
            return data
        everything: list[Any] = [None] * self.num_processes
        dist.all_gather_object(everything, data)
        gathered = join_objects(everything)
        last = self.end_of_dataloader and self.remainder > 0
        return cut_objects(gathered, self.remainder) if last else gathered

    @contextlib.contextmanager
    def other_loader(self) -> Iterator[None]:
        """Within it another loader is read; afterwards what is known of the end of the present one is known again."""
        known = self.end_of_dataloader, self.remainder
        try:
            yield
        finally:
            self.end_of_dataloader, self.remainder = known

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Sum, or mean, over all processes, times `scale`."""

        def one(leaf: torch.Tensor) -> torch.Tensor:
            leaf = leaf.clone()
            if self.num_processes > 1:
                dist.all_reduce(leaf)
            return leaf * scale / self.num_processes if reduction == "mean" else leaf * scale

        return map_nested(one, tensor)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Pad tensors along `dim` to the longest of all processes, so that they can be gathered."""
        if self.num_processes == 1:
            return tensor
        return map_nested(lambda leaf: pad_to_longest(leaf, dim, pad_index, pad_first), tensor)

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = False) -> Any:
        """The user's own model."""
        return unwrap_model(model)

    def prepare(self, *objects: Any, device_placement: Any = None) -> Any:
        """Move models to the device, and deal out loaders; see `prepare_model` and `prepare_data_loader`.

        Optimizers and schedules stay as they are: the Trainer's run is prepared by Lightning.
        """
        ready = tuple(self._prepare_one(one) for one in objects)
        return ready[0] if len(ready) == 1 else ready

    def _prepare_one(self, given: Any) -> Any:
        if isinstance(given, nn.Module):
            return self.prepare_model(given)
        return self.prepare_data_loader(given) if isinstance(given, DataLoader) else given

    def prepare_model(self, model: nn.Module, device_placement: Any = None, evaluation_mode: bool = False) -> nn.Module:
        """Move a model to this process's device."""
        return model.to(self.device)

    def prepare_data_loader(
        self, data_loader: DataLoader, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> DataLoader:
        """A loader that gives this process its share, in an order that depends on the seed and the epoch.

        While somebody iterates over it, `gather_for_metrics` knows which samples only fill up the last batch.

        Args:
            data_loader: One of torch's. What the Trainer made stays as it is; so do, in one process, loaders that
                iterate in a way of their own.
            device_placement: False leaves batches where they were read, otherwise they are moved to the device.
            slice_fn_for_dispatch: Not used: a batch is read for one process.

        Raises:
            NotImplementedError: There are several processes, and the loader hands out samples instead of batches.
        """
        return prepared(self, data_loader, placed=device_placement is not False)

    def wait_for_everyone(self) -> None:
        """Wait until all processes have come here."""
        if self.num_processes > 1:
            dist.barrier()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of a machine only."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    @contextlib.contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """This process's contiguous share of a list, tuple, tensor, or dict of them."""
        yield share_of_inputs(inputs, self.process_index, self.num_processes, apply_padding)

    def free_memory(self, *objects: Any) -> list[None]:
        """Drop cached memory of the device."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return [None for _ in objects]


def _none() -> None:
    """Outside of a run there is no optimizer."""
