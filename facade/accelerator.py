"""The members of `accelerate.Accelerator` that Trainer scripts and subclasses use, over Lightning and torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from ..lightning_modules.collect import map_nested
from .models import unwrap_model

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
        self.even_batches = args.accelerator_config.even_batches  # type: ignore[union-attr]  # made in __post_init__
        self.dataloader_config = SimpleNamespace(dispatch_batches=None, even_batches=self.even_batches)
        self.parallelism_config = None
        self.torch_device_mesh = None
        self.optimizer_step_was_skipped = False
        self.state = SimpleNamespace(deepspeed_plugin=None, fsdp_plugin=None, num_processes=args.world_size)
        self.end_of_dataloader = False
        self.remainder = -1
        self._backward: Callable[..., None] | None = None
        self._forward_context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def bind(
        self, backward: Callable[..., None] | None, forward_context: Callable[[], Any] = contextlib.nullcontext
    ) -> None:
        """Connect to a run of Lightning, or with None leave it."""
        self._backward = backward
        self._forward_context = forward_context

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
    def distributed_type(self) -> str:
        """`NO`, `MULTI_CPU` or `MULTI_GPU`."""
        if self.num_processes == 1:
            return "NO"
        return "MULTI_CPU" if self.device.type == "cpu" else "MULTI_GPU"

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Backward pass of one micro-batch, the way that strategy and precision want it."""
        if self._backward is None:
            loss.backward(**kwargs)
        else:
            self._backward(loss, **kwargs)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Scale gradients down to `max_norm`; returns the norm that they had."""
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision plugin's context for a forward pass."""
        return self._forward_context()

    def gather(self, tensor: Any) -> Any:
        """The tensors of all processes, joined along the first dimension, on every process; nested ones too.

        Processes must give equal shapes: `pad_across_processes` sees to the second dimension.
        """
        return tensor if self.num_processes == 1 else map_nested(_all_gather, tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As `gather`, without the samples that only fill up the last batch of an evaluation.

        With `use_gather_object`, lists of objects of any kind: several processes give one list of them all.
        """
        if use_gather_object:
            return self._gather_objects(input_data)
        gathered = self.gather(input_data)
        if not self.end_of_dataloader or self.remainder <= 0:
            return gathered
        return map_nested(lambda leaf: leaf[: self.remainder], gathered)

    def _gather_objects(self, data: Any) -> Any:
        if self.num_processes == 1:
            return data
        everything: list[Any] = [None] * self.num_processes
        dist.all_gather_object(everything, data)
        gathered = [part for parts in everything for part in parts]
        return gathered[: self.remainder] if self.end_of_dataloader and self.remainder > 0 else gathered

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
        return map_nested(lambda leaf: _pad_to_longest(leaf, dim, pad_index, pad_first), tensor)

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = False) -> Any:
        """The user's own model."""
        return unwrap_model(model)

    def prepare(self, *objects: Any, device_placement: Any = None) -> Any:
        """Move models to the device. All else stays as it is: the Trainer shards loaders where it makes them."""
        prepared = tuple(self.prepare_model(o) if isinstance(o, nn.Module) else o for o in objects)
        return prepared[0] if len(prepared) == 1 else prepared

    def prepare_model(self, model: nn.Module, device_placement: Any = None, evaluation_mode: bool = False) -> nn.Module:
        """Move a model to this process's device."""
        return model.to(self.device)

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
        yield _share(inputs, self.process_index, self.num_processes, apply_padding)

    def free_memory(self, *objects: Any) -> list[None]:
        """Drop cached memory of the device."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return [None for _ in objects]


def _all_gather(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        everything: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everything, leaf)
        return everything
    leaf = torch.atleast_1d(leaf).contiguous()
    parts = [torch.empty_like(leaf) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, leaf)
    return torch.cat(parts)


def _pad_to_longest(leaf: torch.Tensor, dim: int, pad_index: int, pad_first: bool) -> torch.Tensor:
    if dim >= leaf.dim():
        return leaf
    length = torch.tensor(leaf.shape[dim], device=leaf.device)
    dist.all_reduce(length, op=dist.ReduceOp.MAX)
    missing = int(length) - leaf.shape[dim]
    if missing == 0:
        return leaf
    shape = list(leaf.shape)
    shape[dim] = missing
    padding = leaf.new_full(shape, pad_index)
    return torch.cat((padding, leaf) if pad_first else (leaf, padding), dim=dim)


def _share(inputs: Any, index: int, processes: int, pad: bool) -> Any:
    if isinstance(inputs, dict):
        return {key: _share(value, index, processes, pad) for key, value in inputs.items()}
    each, extra = divmod(len(inputs), processes)
    start = index * each + min(index, extra)
    share = inputs[start : start + each + (index < extra)]
    longest = each + (extra > 0)
    if not pad or len(share) == longest or not len(inputs):
        return share
    last = inputs[-1:]
    return torch.cat((share, last)) if isinstance(inputs, torch.Tensor) else share + last
