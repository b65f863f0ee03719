"""Version 1 of FSDP: `FullyShardedDataParallel`, through Lightning's `FSDPStrategy`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...lightning_modules.distributed import sharding
from ..arguments.fsdp_config import FSDPSettings
from .base import StrategyPlan, picked, process_group
from .strategy import Strategy, StrategyHost
from .wrapping import check_sharding, layers_of, wrap_option, wrap_policy

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

# torch keeps the last one private.
TORCH_NAMES = {"hybrid_shard_zero2": "_HYBRID_SHARD_ZERO2"}


@dataclass(frozen=True, kw_only=True)
class FSDPPlan(StrategyPlan):
    """Parameters, gradients and optimizer states are sharded over the processes."""

    def for_trainer(self, host: StrategyHost) -> FSDP:
        """See `StrategyPlan.for_trainer`."""
        return FSDP(self, host)

    @property
    def shards_weights(self) -> bool:
        """Yes, but for `NO_SHARD`."""
        return self.options["sharding_strategy"] != "NO_SHARD"

    def build(self) -> Any:
        """An `FSDPStrategy`, which wraps the model, not the LightningModule around it."""
        from ...lightning_modules.distributed.fsdp1 import ModelFSDPStrategy

        return ModelFSDPStrategy(**self.keywords())

    @property
    def saves_parts(self) -> bool:
        """With `SHARDED_STATE_DICT`."""
        return self.options["state_dict_type"] == "sharded"

    @property
    def distributes(self) -> bool:
        """Always."""
        return True

    def precision(self, name: Any, device: str) -> Any:
        """FSDP takes a precision plugin of its own."""
        from ...lightning_modules.distributed.fsdp1 import ForwardFSDPPrecision

        return ForwardFSDPPrecision(name, device)

    def check(self, args: TrainingArguments, model: nn.Module) -> None:
        """See `StrategyPlan.check`."""
        check_sharding(args, model, layers=self.options["auto_wrap_policy"])

    def keywords(self) -> dict[str, Any]:
        """The options as torch and Lightning take them."""
        from torch.distributed.fsdp import BackwardPrefetch

        options = dict(self.options)
        prefetch = options["backward_prefetch"]
        options["backward_prefetch"] = None if prefetch is None else BackwardPrefetch[prefetch]
        options["auto_wrap_policy"] = wrap_policy(options["auto_wrap_policy"])
        # `distribute` sees to it: Lightning would choose modules by the sizes of their parts.
        del options["activation_checkpointing_policy"]
        return options

    def groups(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """What is sharded, which layers, how they communicate, how they are saved."""
        sharding = ("sharding_strategy", "device_mesh", "cpu_offload")
        layers = ("auto_wrap_policy", "activation_checkpointing_policy", "use_orig_params")
        traffic = ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "sync_module_states")
        return [
            ("fsdp", "Trainer(strategy=)", picked(self.options, *sharding)),
            ("fsdp_config", "FSDPStrategy: layers", picked(self.options, *layers)),
            ("fsdp_config", "FSDPStrategy: traffic", picked(self.options, *traffic)),
            ("fsdp_config", "FSDPStrategy: checkpoints", picked(self.options, "state_dict_type")),
            (
                "ddp_backend, ddp_timeout",
                "FSDPStrategy: group",
                picked(self.options, "process_group_backend", "timeout"),
            ),
        ]


class FSDP(Strategy):
    """The model is called through its wrapper, which alone knows which process has which part of a gradient."""

    plan: FSDPPlan

    def _distribute(self, model: nn.Module, module: Any) -> nn.Module:
        if sharding.is_sharded(model):
            return self.lightning.wrap(model, layers=[])
        options = self.plan.options
        return self.lightning.wrap(
            model,
            layers=layers_of(options["auto_wrap_policy"], model),
            checkpointing=options["activation_checkpointing_policy"] is not None,
        )

    def clip(self, parameters: list[torch.Tensor], max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """See `Strategy.clip`."""
        wrapper = self._wrapper(self.called)
        if wrapper is None:
            return super().clip(parameters, max_norm, norm_type)
        return sharding.fsdp_wrapping().clip_gradients(wrapper, parameters, max_norm, norm_type)

    def norm(self, model: nn.Module) -> torch.Tensor:
        """See `Strategy.norm`."""
        wrapper = self._wrapper(model)
        return super().norm(model) if wrapper is None else wrapper.clip_grad_norm_(math.inf)

    def _wrapper(self, model: nn.Module | None) -> Any:
        return model if type(model).__name__ == "FullyShardedDataParallel" else None


def fsdp(args: TrainingArguments, settings: FSDPSettings, model: nn.Module | None) -> FSDPPlan:
    """The plan of `fsdp` in version 1."""
    wrap = wrap_option(settings, model)
    nodes = args.world_size // args.local_world_size
    options: dict[str, Any] = {
        "sharding_strategy": TORCH_NAMES.get(settings.sharding, settings.sharding.upper()),
        "cpu_offload": settings.offload,
        "auto_wrap_policy": wrap,
        "activation_checkpointing_policy": wrap if settings.activation_checkpointing else None,
        "backward_prefetch": None if settings.backward_prefetch is None else settings.backward_prefetch.upper(),
        "forward_prefetch": settings.forward_prefetch,
        "limit_all_gathers": settings.limit_all_gathers,
        "use_orig_params": settings.use_orig_params,
        "sync_module_states": settings.sync_module_states,
        "state_dict_type": settings.state_dict_type,
    }
    if settings.hybrid:
        options["device_mesh"] = (nodes, args.local_world_size)
    return FSDPPlan(name="FSDPStrategy", options={**options, **process_group(args)})
