"""Ranks, kind of distribution, and functions that run on some ranks only."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..arguments.fsdp_config import settings_of
from ..arguments.parallelism import data_rank, groups_of
from ..distributed.collectives import share_of_inputs
from ..distributed.process import forwarded, others_wait
from .refusals import refusal

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

Function = Callable[..., Any]


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
    """Return the FSDP version of the arguments, or None; a grid with a sharding dimension is version 2."""
    settings = settings_of(args)
    if settings is not None:
        return settings.version
    groups = groups_of(args)
    return 2 if groups is not None and (groups.dp_shard_enabled or groups.splits_sequences) else None


class Processes:
    """The members of `accelerate.Accelerator`, and of its `state`, about processes."""

    args: TrainingArguments

    device: torch.device = forwarded("args.device", "The device of this process.")
    num_processes: int = forwarded("args.world_size", "The number of processes.")
    process_index: int = forwarded("args.process_index", "Index of this process among all.")
    local_process_index: int = forwarded("args.local_process_index", "Index of this process on this machine.")
    mixed_precision: str = forwarded("args.mixed_precision", "`no`, `bf16` or `fp16`.")
    parallelism_config: Any = forwarded("args.parallelism_config", "The `parallelism_config` of the arguments.")

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
        """Return `NO`, `MULTI_CPU`, `MULTI_GPU`, `FSDP` or `DEEPSPEED`; members equal these strings."""
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
        """Yield the contiguous share of this process of a list, tuple, tensor, array, `Dataset`, or dict of them.

        Args:
            inputs: data to split; other values, such as text, stay whole on each process.
            apply_padding: pad shorter shares with the last element, so that they can be gathered.

        Raises:
            ValueError: the values of a dict differ in length.
        """
        yield share_of_inputs(inputs, self.process_index, self.num_processes, apply_padding)


class Grid(Processes):
    """The members of `accelerate.Accelerator` about the dimensions of parallelism.

    Ranks that split layers (tensor parallel) are consecutive; then come those that shard one copy of the model.
    """

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
        return data_rank(self.args) // groups.dp_shard_size if groups.dp_replicate_enabled else 0

    @property
    def data_parallel_shard_rank(self) -> int:
        """Return the rank among the processes that shard one copy; errors as of `tensor_parallel_rank`."""
        return data_rank(self.args) % self._groups("data_parallel_shard_rank").dp_shard_size

    def _groups(self, name: str) -> Any:
        groups = groups_of(self.args)
        if groups is None:
            raise refusal(name)
        return groups


class ProcessDecorators(Processes):
    """Decorators for functions that run on some processes; on the others they return None.

    The rank is read when the function is called.
    """

    def on_main_process(self, function: Function | None = None) -> Function:
        """Run a function on process 0 only."""
        return self._where(function, lambda: self.is_main_process)

    def on_local_main_process(self, function: Function | None = None) -> Function:
        """Run a function on the first process of each machine only."""
        return self._where(function, lambda: self.is_local_main_process)

    def on_last_process(self, function: Function) -> Function:
        """Run a function on the last process only."""
        return self._where(function, lambda: self.is_last_process)

    def on_process(self, function: Function | None = None, process_index: int | None = None) -> Function:
        """Run a function on one process only; without a function, return the decorator."""
        return self._where(function, lambda: self.process_index == process_index, process_index)

    def on_local_process(self, function: Function | None = None, local_process_index: int | None = None) -> Function:
        """As `on_process`, with the rank within each machine."""
        return self._where(function, lambda: self.local_process_index == local_process_index, local_process_index)

    def _where(self, function: Function | None, here: Callable[[], bool], rank: int | None = None) -> Function:
        if function is None and rank is not None:
            return functools.partial(self._where, here=here)
        if not callable(function):
            raise TypeError(f"{function!r} is no function. Write @trainer.accelerator.on_process(process_index=1).")

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if here() or not self.use_distributed else None

        return run
