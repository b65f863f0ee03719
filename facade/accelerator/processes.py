"""Which process this is, how the work is distributed, and what only some of the processes do."""

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
from .refusals import refusal

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

Function = Callable[..., Any]


_ON_SEVERAL_DEVICES = frozenset({"MULTI_GPU", "MULTI_NPU", "MULTI_XPU", "MULTI_MLU", "MULTI_MUSA", "MULTI_HPU"})


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
        """Whether each process has a device of its own, and the whole model on it."""
        return self.value in _ON_SEVERAL_DEVICES


def distribution(args: TrainingArguments) -> DistributedType:
    """What the arguments make of their processes; sharding needs several of them, also on the CPU.

    Unlike in the reference, which knows FSDP on GPUs only, this is FSDP wherever weights are sharded.
    """
    if args.deepspeed:
        return DistributedType.DEEPSPEED
    if args.world_size > 1 and fsdp_version(args) is not None:
        return DistributedType.FSDP
    return DistributedType(args.distributed_state.distributed_type)


def fsdp_version(args: TrainingArguments) -> int | None:
    """1 or 2, where the arguments ask for FSDP; a grid with a dimension to shard over is version 2."""
    settings = settings_of(args)
    if settings is not None:
        return settings.version
    groups = groups_of(args)
    return 2 if groups is not None and (groups.dp_shard_enabled or groups.splits_sequences) else None


class Processes:
    """The members of `accelerate.Accelerator`, and of its `state`, about processes."""

    args: TrainingArguments

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
    def is_last_process(self) -> bool:
        """Whether this is the last of all processes."""
        return self.process_index == self.num_processes - 1

    @property
    def distributed_type(self) -> DistributedType:
        """`NO`, `MULTI_CPU`, `MULTI_GPU`, `FSDP` or `DEEPSPEED`; also equal to these words."""
        return distribution(self.args)

    @property
    def use_distributed(self) -> bool:
        """Whether there are several processes."""
        return self.distributed_type != DistributedType.NO and self.num_processes > 1

    @property
    def mixed_precision(self) -> str:
        """`no`, `bf16` or `fp16`."""
        return self.args.mixed_precision

    def wait_for_everyone(self) -> None:
        """Wait until all processes have come here."""
        if self.num_processes > 1:
            dist.barrier()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of a machine only."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    def main_process_first(self) -> contextlib.AbstractContextManager[None]:
        """Run the block on process 0, and only then on the others, also if it fails there."""
        return self._first(self.is_main_process)

    def local_main_process_first(self) -> contextlib.AbstractContextManager[None]:
        """As `main_process_first`, on each machine by its first process."""
        return self._first(self.is_local_main_process)

    @contextlib.contextmanager
    def _first(self, goes_first: bool) -> Iterator[None]:
        if not goes_first:
            self.wait_for_everyone()
        try:
            yield
        finally:
            if goes_first:
                self.wait_for_everyone()

    @contextlib.contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """This process's contiguous share of a list, tuple, tensor, array or `Dataset`, or of a dict of them.

        Args:
            inputs: what is shared; one process has all of it. Other values, such as text, are whole on each process.
            apply_padding: fill up shorter shares with the last one, so that they can be gathered.

        Raises:
            ValueError: the values of a dict are not equally long.
        """
        yield share_of_inputs(inputs, self.process_index, self.num_processes, apply_padding)


class Grid(Processes):
    """The members of `accelerate.Accelerator` about the dimensions of parallelism.

    Processes that share the layers of one copy of the model have consecutive numbers, and so have, of the copies, those
    that shard one among them.
    """

    @property
    def parallelism_config(self) -> Any:
        """That of the arguments."""
        return self.args.parallelism_config

    @property
    def tensor_parallel_rank(self) -> int:
        """Among the processes that split layers; 0 where none are split.

        Raises:
            RuntimeError: there is no `parallelism_config`; `hasattr` says no.
        """
        groups = self._groups("tensor_parallel_rank")
        return self.process_index % groups.tp_size

    @property
    def data_parallel_rank(self) -> int:
        """Among the copies of the model; 0 where there is one. Otherwise see `tensor_parallel_rank`."""
        groups = self._groups("data_parallel_rank")
        return data_rank(self.args) // groups.dp_shard_size if groups.dp_replicate_enabled else 0

    @property
    def data_parallel_shard_rank(self) -> int:
        """Among the processes that shard one copy; 0 where they do not. Otherwise see `tensor_parallel_rank`."""
        groups = self._groups("data_parallel_shard_rank")
        return data_rank(self.args) % groups.dp_shard_size

    def _groups(self, name: str) -> Any:
        groups = groups_of(self.args)
        if groups is None:
            raise refusal(name)
        return groups


class ProcessDecorators(Processes):
    """Functions that some processes run; on the others they do nothing and return None.

    Which process it is, is asked when the function is called.
    """

    def on_main_process(self, function: Function | None = None) -> Function:
        """Have a function run by process 0 only."""
        return self._where(function, lambda: self.is_main_process)

    def on_local_main_process(self, function: Function | None = None) -> Function:
        """Have a function run by the first process of each machine only."""
        return self._where(function, lambda: self.is_local_main_process)

    def on_last_process(self, function: Function) -> Function:
        """Have a function run by the last process only."""
        return self._where(function, lambda: self.is_last_process)

    def on_process(self, function: Function | None = None, process_index: int | None = None) -> Function:
        """Have a function run by one process only; without it, the decorator. A single process runs all."""
        if function is None and process_index is not None:
            return functools.partial(self.on_process, process_index=process_index)
        return self._where(function, lambda: self.process_index == process_index)

    def on_local_process(self, function: Function | None = None, local_process_index: int | None = None) -> Function:
        """As `on_process`, on each machine."""
        if function is None and local_process_index is not None:
            return functools.partial(self.on_local_process, local_process_index=local_process_index)
        return self._where(function, lambda: self.local_process_index == local_process_index)

    def _where(self, function: Function | None, here: Callable[[], bool]) -> Function:
        if not callable(function):
            raise TypeError(
                f"{function!r} is no function. Write @trainer.accelerator.on_main_process above one, or for one "
                "process @trainer.accelerator.on_process(process_index=1)."
            )

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if here() or not self.use_distributed else None

        return run
