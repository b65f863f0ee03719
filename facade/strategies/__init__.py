"""The strategies of Lightning that arguments can choose: one module each.

Here: the plan of a run, and for each strategy what is called, when gradients are exchanged, how they are clipped, how
states are saved. Not here: how layers are split (`lightning_modules/distributed`). Imports arguments and distributed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..arguments.fsdp_config import FSDPSettings, settings_of
from ..arguments.parallelism import is_spread_before, read_parallelism, spreads_model
from .base import StrategyPlan
from .ddp import ddp, single
from .deepspeed import deepspeed
from .fsdp import fsdp
from .model_parallel import model_parallel
from .xla import xla

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

__all__ = ["StrategyPlan", "choose"]


def choose(
    args: TrainingArguments, *, find_unused_parameters: bool = True, model: Any = None, steps: int | None = None
) -> StrategyPlan:
    """The strategy that the arguments ask for; they have been validated.

    Args:
        args: the training arguments.
        find_unused_parameters: for DDP, where the arguments leave it open.
        model: tells its layers and its hidden size, where the arguments leave them to it.
        steps: optimizer steps of the training, where the data is known.
    """
    if is_spread_before(args):
        return model_parallel(args, None, model)
    if args.deepspeed:
        return deepspeed(args, model, steps)
    settings = settings_of(args)
    if args.device.type == "xla" or (settings is not None and settings.xla):
        return xla(args, settings, model)
    if settings is not None and settings.version == 1:
        return fsdp(args, settings, model)
    if settings is not None or spreads_model(args):
        return model_parallel(args, settings or _sharding_of_groups(args), model)
    return ddp(args, find_unused_parameters) if args.world_size > 1 else single(args)


def _sharding_of_groups(args: TrainingArguments) -> FSDPSettings | None:
    """Sharding where `parallelism_config` asks for it and `fsdp` says nothing: that of the layers the model names."""
    groups = read_parallelism(args.parallelism_config)
    if not groups.dp_shard_enabled and not groups.splits_sequences:
        return None
    return FSDPSettings(version=2, wrap="layers")
