"""The strategies that arguments can choose, one class and one module each, and the plan of a run.

Each describes itself, builds Lightning's strategy and runs: forward passes, exchange and clipping
of gradients, states. Not here: how layers are split (`lightning_modules/distributed`). Imports
arguments and distributed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..arguments.fsdp_config import FSDPSettings, settings_of
from ..arguments.parallelism import groups_of, spreads_model, was_parallelized
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
    """Return the strategy that validated arguments ask for.

    Args:
        args: the training arguments.
        find_unused_parameters: for DDP, where the arguments leave it open.
        model: its layers and hidden size are used where the arguments leave them open.
        steps: optimizer steps of the training, where the data is known.
    """
    # `from_pretrained` has spread the model; the arguments do not ask for that.
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
    """Return sharding by the layers the model names, if `parallelism_config` shards and `fsdp`
    is not set.
    """
    groups = groups_of(args)
    if groups is None or not (groups.dp_shard_enabled or groups.splits_sequences):
        return None
    return FSDPSettings(version=2, wrap="layers")
