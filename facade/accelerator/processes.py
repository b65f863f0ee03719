"""Ranks, kind of distribution, code that runs on some ranks only, and what all ranks exchange."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ...lightning_modules.common.nested import map_nested
from ..arguments.fsdp_config import settings_of
from ..arguments.parallelism import ParallelismConfig, data_rank, groups_of
from ..distributed.collectives import (
    all_gather,
    has_only_tensors,
    pad_to_longest,
    require_tensor,
    share_of_inputs,
)
from ..distributed.process import forwarded, others_wait
from .refusals import refusal

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)

Function = Callable[..., Any]

_REDUCTIONS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class DistributedType(str, Enum):
    """As `accelerate.DistributedType`, whose members equal these: both are strings."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_NPU = "MULTI_NPU"
    MULTI_XPU = "MULTI_XPU"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    XLA = "XLA"

    @property
    def on_several_devices(self) -> bool:
        """Return whether each process has a device of its own, and the whole model on it."""
        return self.value.startswith("MULTI_") and self is not DistributedType.MULTI_CPU


def distribution(args: TrainingArguments) -> DistributedType:
    """Return the kind of distribution; sharding needs several processes.

    Unlike in the reference, which has FSDP on GPUs only, this is FSDP on any device.
    """
    if args.deepspeed:
        return DistributedType.DEEPSPEED
    if args.world_size > 1 and fsdp_version(args) is not None:
        return DistributedType.FSDP
    return DistributedType(args.distributed_state.distributed_type)


def fsdp_version(args: TrainingArguments) -> int | None:
    """Return the FSDP version of the arguments, or None; a grid with a sharding dimension is
    version 2.
    """
    settings = settings_of(args)
    if settings is not None:
        return settings.version
    groups = groups_of(args)
    return (
        2 if groups is not None and (groups.dp_shard_enabled or groups.splits_sequences) else None
    )


class Processes:
    """The members of `accelerate.Accelerator`, and of its `state`, about processes and what they
    exchange.

    Args:
        args: the training arguments.
    """

    flag_tensor: torch.Tensor | None = None

    def __init__(self, args: TrainingArguments) -> None:
        self.args = args

    device: torch.device = forwarded("args.device", "The device of this process.")
    num_processes: int = forwarded("args.world_size", "The number of processes.")
    process_index: int = forwarded("args.process_index", "Index of this process among all.")
    local_process_index: int = forwarded(
        "args.local_process_index", "Index of this process on this machine."
    )
    mixed_precision: str = forwarded("args.mixed_precision", "`no`, `bf16` or `fp16`.")
    parallelism_config: Any = forwarded(
        "args.parallelism_config", "The `parallelism_config` of the arguments."
    )

    @property
    def is_main_process(self) -> bool:
        """Return whether this is process 0."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Return whether this is the first process of this machine."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Return whether this is the last of all processes."""
        return self.process_index == self.num_processes - 1

    @property
    def distributed_type(self) -> DistributedType:
        """Return `NO`, `MULTI_CPU`, `MULTI_GPU`, `FSDP` or `DEEPSPEED`; members equal these
        strings.
        """
        return distribution(self.args)

    @property
    def use_distributed(self) -> bool:
        """Return whether there are several processes."""
        return self.distributed_type != DistributedType.NO and self.num_processes > 1

    def wait_for_everyone(self) -> None:
        """Wait for all processes at a barrier."""
        if self.num_processes > 1:
            dist.barrier()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of a machine only."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    def main_process_first(self) -> contextlib.AbstractContextManager[None]:
        """Run the block on process 0 first, then on the others, even if it fails on process 0."""
        return others_wait(self.is_main_process, self.num_processes)

    def local_main_process_first(self) -> contextlib.AbstractContextManager[None]:
        """As `main_process_first`, with the first process of each machine."""
        return others_wait(self.is_local_main_process, self.num_processes)

    @contextlib.contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Yield the contiguous share of this process of a list, tuple, tensor, array, `Dataset`, or
        dict of them.

        Args:
            inputs: data to split; other values, such as text, stay whole on each process.
            apply_padding: pad shorter shares with the last element, so that they can be gathered.

        Raises:
            ValueError: the values of a dict differ in length.
        """
        yield share_of_inputs(inputs, self.process_index, self.num_processes, apply_padding)

    # --- the place in a grid: ranks that split layers are consecutive, then come those that shard
    # one copy

    @property
    def tensor_parallel_rank(self) -> int:
        """Return the rank among the processes that split layers; 0 if none are split.

        Raises:
            RuntimeError: no `parallelism_config`; `hasattr` returns False.
        """
        return self.process_index % self._groups("tensor_parallel_rank").tp_size

    @property
    def data_parallel_rank(self) -> int:
        """Return the rank among the copies of the model; errors as of `tensor_parallel_rank`."""
        groups = self._groups("data_parallel_rank")
        if not groups.dp_replicate_enabled:
            return 0
        return data_rank(self.args) // groups.dp_shard_size

    @property
    def data_parallel_shard_rank(self) -> int:
        """Return the rank among the processes that shard one copy; errors as of
        `tensor_parallel_rank`.
        """
        return data_rank(self.args) % self._groups("data_parallel_shard_rank").dp_shard_size

    def _groups(self, name: str) -> ParallelismConfig:
        groups = groups_of(self.args)
        if groups is None:
            raise refusal(name)
        return groups

    # --- functions that run on some processes; on the others they return None

    def on_main_process(self, function: Function | None = None) -> Function:
        """Run a function on process 0 only."""
        return self._where(function, lambda: self.is_main_process)

    def on_local_main_process(self, function: Function | None = None) -> Function:
        """Run a function on the first process of each machine only."""
        return self._where(function, lambda: self.is_local_main_process)

    def on_last_process(self, function: Function) -> Function:
        """Run a function on the last process only."""
        return self._where(function, lambda: self.is_last_process)

    def on_process(
        self, function: Function | None = None, process_index: int | None = None
    ) -> Function:
        """Run a function on one process only; without a function, return the decorator."""
        return self._where(function, lambda: self.process_index == process_index, process_index)

    def on_local_process(
        self, function: Function | None = None, local_process_index: int | None = None
    ) -> Function:
        """As `on_process`, with the rank within each machine."""
        return self._where(
            function, lambda: self.local_process_index == local_process_index, local_process_index
        )

    def _where(
        self, function: Function | None, here: Callable[[], bool], rank: int | None = None
    ) -> Function:
        if function is None and rank is not None:
            return functools.partial(self._where, here=here)
        if not callable(function):
            raise TypeError(
                f"{function!r} is no function. Write "
                "@trainer.accelerator.on_process(process_index=1)."
            )

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if here() or not self.use_distributed:
                return function(*args, **kwargs)
            return None

        return run

    # --- exchanges, which all processes have to call

    def gather(self, tensor: Any) -> Any:
        """Concatenate (nested) tensors of all processes along the first dimension, on every
        process.

        Shapes must be equal on all processes, see `pad_across_processes`. Scalars become vectors. A
        single process gets its input back.

        Raises:
            TypeError: with several processes, `tensor` holds something other than tensors.
        """
        if self.num_processes == 1:
            return tensor
        return map_nested(all_gather, tensor)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Reduce (nested) tensors over all processes; returns copies.

        Args:
            tensor: tensors, nested or not, of equal shapes on all processes.
            reduction: `sum`, `mean` (of floating point numbers) or `max`.
            scale: no effect except on TPUs, as in the reference.

        Raises:
            TypeError: `tensor` holds something other than tensors.
            ValueError: unknown reduction.
        """
        if scale != 1.0:
            logger.warning(
                "accelerator.reduce: scale=%s counts on TPUs only, and is left out here.", scale
            )
        return map_nested(functools.partial(self._reduce_one, reduction), tensor)

    def _reduce_one(self, reduction: str, leaf: Any) -> torch.Tensor:
        leaf = require_tensor(leaf).clone()
        if self.num_processes > 1:
            dist.all_reduce(leaf, _REDUCTIONS[reduction])
            if reduction == "mean":
                leaf /= self.num_processes
        return leaf

    def pad_across_processes(
        self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
    ) -> Any:
        """Pad tensors along `dim` to the longest of all processes, so that they can be gathered.

        Args:
            tensor: tensors, nested or not; those without the dimension `dim` are returned
                unchanged.
            dim: dimension to pad; negative ones count from the last.
            pad_index: padding value.
            pad_first: pad at the beginning.

        Raises:
            TypeError: `tensor` holds something other than tensors.
        """
        if self.num_processes == 1 and has_only_tensors(tensor):
            return tensor
        return map_nested(lambda leaf: pad_to_longest(leaf, dim, pad_index, pad_first), tensor)

    def set_trigger(self) -> None:
        """Set a flag that `check_trigger` reads on all processes."""
        self.flag_tensor = torch.tensor(1, device=self.device)

    def check_trigger(self) -> bool:
        """Return whether any process has called `set_trigger`, and reset the flag."""
        if self.flag_tensor is None:
            self.flag_tensor = torch.tensor(0, device=self.device)
        is_set = bool(self.reduce(self.flag_tensor).item() >= 1)
        if is_set:
            self.flag_tensor = torch.tensor(0, device=self.device)
        return is_set
