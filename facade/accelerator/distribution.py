"""How the work is distributed, by the names of the reference."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from ..arguments.fsdp_config import settings_of
from ..arguments.parallelism import read_parallelism

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

__all__ = ["DistributedType", "distribution", "fsdp_version"]

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
    groups = read_parallelism(args.parallelism_config)
    return 2 if groups is not None and (groups.dp_shard_enabled or groups.cp_enabled) else None
