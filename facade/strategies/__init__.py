"""Strategies that the arguments can select, one class and module each, and the plan of a run.

A strategy builds Lightning's strategy, and handles forward passes, gradient synchronisation and
clipping, and states. How layers are sharded is in `lightning_modules/distributed`. Imports
arguments and distributed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..arguments.fsdp_config import FSDPSettings, settings_of
from ..arguments.rank_groups import effective_parallelism, spreads_model, was_parallelized
from .ddp import DDP, SingleDevice
from .deepspeed import DeepSpeed
from .fsdp import FSDP
from .model_parallel import ModelParallel
from .strategy import Strategy
from .xla import XLA

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

__all__ = ["Strategy", "choose"]


def choose(
    args: TrainingArguments,
    *,
    find_unused_parameters: bool = True,
    model: Any = None,
    steps: int | None = None,
) -> Strategy:
    """Return the strategy that validated arguments request.

    Args:
        args: the training arguments.
        find_unused_parameters: option of DDP, used if the arguments do not set it.
        model: the model. Its layers and hidden size are used if the arguments do not set them.
        steps: number of optimizer steps of the training, if it is known.
    """
    # `from_pretrained` has parallelized the model, which the arguments do not show.
    if was_parallelized(args):
        return ModelParallel.of(args, None, model)
    if args.deepspeed:
        return DeepSpeed.of(args, model, steps)
    settings = settings_of(args)
    if args.device.type == "xla" or (settings is not None and settings.xla):
        return XLA.of(args)
    if settings is not None and settings.version == 1:
        return FSDP.of(args, settings, model)
    if settings is not None or spreads_model(args):
        return ModelParallel.of(args, settings or _sharding_of_groups(args), model)
    return DDP.of(args, find_unused_parameters) if args.world_size > 1 else SingleDevice.of(args)


def _sharding_of_groups(args: TrainingArguments) -> FSDPSettings | None:
    """Return FSDP settings if `parallelism_config` shards the model and `fsdp` is not set."""
    groups = effective_parallelism(args)
    if groups is None or not (groups.dp_shard_enabled or groups.sequence_argument):
        return None
    return FSDPSettings(version=2, wrap="layers")
