"""Processes: their ranks, how they share a training, and what they exchange."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from ...lightning_modules.common.nested import map_nested
from ..arguments.fsdp_config import settings_of
from ..arguments.parallelism import ParallelismConfig
from ..arguments.rank_groups import effective_parallelism
from ..distributed.collectives import (
    all_gather,
    has_only_tensors,
    pad_to_longest,
    require_tensor,
    share_of_inputs,
)
from ..distributed.process import first_process_first, forwarded

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)

Function = Callable[..., Any]

Inputs = TypeVar("Inputs")
"""A list, tuple, tensor, array or `Dataset`, or a dict of them."""

Tensors = TypeVar("Tensors")
"""A tensor, or tensors in lists, tuples and dicts."""

_REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    # The sum is divided by the number of processes.
    "mean": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
}


class DistributedType(str, Enum):
    """Kinds of distribution; members equal those of `accelerate.DistributedType`, as strings."""

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
        """Return whether each process has its own device, and the whole model on it."""
        return self.value.startswith("MULTI_") and self is not DistributedType.MULTI_CPU


def distribution(args: TrainingArguments) -> DistributedType:
    """Return the kind of distribution; sharding needs several processes.

    Unlike in the reference, which has FSDP on GPUs only, it is `FSDP` on any device.
    """
    if args.deepspeed:
        return DistributedType.DEEPSPEED
    if args.world_size > 1 and fsdp_version(args) is not None:
        return DistributedType.FSDP
    return DistributedType(args.distributed_state.distributed_type)


def fsdp_version(args: TrainingArguments) -> int | None:
    """Return the FSDP version of the arguments, or None without FSDP."""
    settings = settings_of(args)
    if settings is not None:
        return settings.version

    # A grid shards with version 2.
    groups = effective_parallelism(args)
    if groups is not None and (groups.dp_shard_enabled or groups.sequence_argument):
        return 2
    return None


class Processes:
    """Provide what `accelerate.Accelerator` and its `state` tell and do about processes.

    Args:
        args: the training arguments.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self.args = args

    device: torch.device = forwarded("args.device", "The device of this process.")
    num_processes: int = forwarded("args.world_size", "The number of processes.")
    process_index: int = forwarded("args.process_index", "Index of this process among all.")
    local_process_index: int = forwarded(
        "args.local_process_index", "Index of this process on this machine."
    )
    mixed_precision: str = forwarded("args.mixed_precision", "`no`, `bf16` or `fp16`.")
    parallelism_config: ParallelismConfig | None = forwarded(
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
        """Return a member such as `NO`, `MULTI_GPU` or `FSDP`; members equal their names."""
        return distribution(self.args)

    @property
    def use_distributed(self) -> bool:
        """Return whether there are several processes."""
        return self.distributed_type != DistributedType.NO and self.num_processes > 1

    def wait_for_everyone(self) -> None:
        """Wait for all processes at a barrier."""
        if self.num_processes > 1:
            dist.barrier()

    def print(self, *args: object, **kwargs: Any) -> None:
        """Print on the first process of each machine only."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    def main_process_first(self) -> contextlib.AbstractContextManager[None]:
        """Run the block on process 0 first, then on the others, even if it fails on process 0."""
        return first_process_first(self.is_main_process, self.num_processes)

    def local_main_process_first(self) -> contextlib.AbstractContextManager[None]:
        """Let the first process of each machine run the block before the others there."""
        return first_process_first(self.is_local_main_process, self.num_processes)

    @contextlib.contextmanager
    def split_between_processes(
        self, inputs: Inputs, apply_padding: bool = False
    ) -> Iterator[Inputs]:
        """Yield the share of this process, which is a contiguous part of the inputs.

        Args:
            inputs: a list, tuple, tensor, array or `Dataset`, or a dict of them; other values, such
                as text, stay whole on each process.
            apply_padding: pad shorter shares with the last element, so that they can be gathered.

        Raises:
            ValueError: the values of a dict differ in length.
        """
        yield share_of_inputs(inputs, self.process_index, self.num_processes, apply_padding)

    # Functions that run on some processes, and return None on the others.

    def on_main_process(self, function: Function | None = None) -> Function:
        """Run a function on process 0 only."""
        return self._run_where(lambda: self.is_main_process, function)

    def on_local_main_process(self, function: Function | None = None) -> Function:
        """Run a function on the first process of each machine only."""
        return self._run_where(lambda: self.is_local_main_process, function)

    def _run_where(self, is_selected: Callable[[], bool], function: Function | None) -> Function:
        """Return the function, run only on selected processes; a single process always runs it."""
        if not callable(function):
            raise TypeError(
                f"Only a function can be decorated, not {function!r}. Write "
                "@trainer.accelerator.on_main_process above it."
            )

        @functools.wraps(function)
        def run(*args: object, **kwargs: object) -> object:
            if is_selected() or not self.use_distributed:
                return function(*args, **kwargs)
            return None

        return run

    # Collectives, which all processes have to call.

    def gather(self, tensor: Tensors) -> Tensors:
        """Concatenate tensors of all processes along the first dimension, on every process.

        Args:
            tensor: tensors, nested or not, of equal shapes on all processes; see
                `pad_across_processes`. Scalars become vectors. A single process gets its input
                back.

        Raises:
            TypeError: with several processes, `tensor` holds something other than tensors.
        """
        if self.num_processes == 1:
            return tensor
        return map_nested(all_gather, tensor)

    def reduce(self, tensor: Tensors, reduction: str = "sum", scale: float = 1.0) -> Tensors:
        """Reduce tensors over all processes; return copies.

        Args:
            tensor: tensors, nested or not, of equal shapes on all processes.
            reduction: `sum`, `mean` (of floating point numbers) or `max`.
            scale: no effect except on TPUs, as in the reference.

        Raises:
            TypeError: `tensor` holds something other than tensors.
            ValueError: unknown reduction.
        """
        if reduction not in _REDUCTIONS:
            raise ValueError(
                f"accelerator.reduce(reduction={reduction!r}) is not supported. Use 'sum', 'mean' "
                "or 'max'."
            )
        if scale != 1.0:
            logger.warning(
                "accelerator.reduce: scale=%s is ignored, as it applies to TPUs only.", scale
            )
        return map_nested(functools.partial(self._reduce_tensor, reduction), tensor)

    def _reduce_tensor(self, reduction: str, leaf: object) -> torch.Tensor:
        # A copy, as `all_reduce` works in place.
        tensor = require_tensor(leaf).clone()
        if self.num_processes > 1:
            dist.all_reduce(tensor, _REDUCTIONS[reduction])
            if reduction == "mean":
                tensor /= self.num_processes
        return tensor

    def pad_across_processes(
        self, tensor: Tensors, dim: int = 0, pad_index: int = 0, pad_first: bool = False
    ) -> Tensors:
        """Pad tensors to the longest of all processes along `dim`, so that they can be gathered.

        Args:
            tensor: tensors, nested or not; those without the dimension `dim` are returned
                unchanged.
            dim: dimension to pad; negative ones count from the last.
            pad_index: padding value.
            pad_first: pad at the beginning.

        Raises:
            TypeError: `tensor` holds something other than tensors.
        """
        # Other objects raise a TypeError below, in a single process too.
        if self.num_processes == 1 and has_only_tensors(tensor):
            return tensor
        return map_nested(lambda leaf: pad_to_longest(leaf, dim, pad_index, pad_first), tensor)
