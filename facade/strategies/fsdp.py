"""FSDP1 (`FullyShardedDataParallel`) with Lightning's `FSDPStrategy`."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...lightning_modules.common.enums import optimizer_name
from ...lightning_modules.distributed import sharding
from ...lightning_modules.optim import OptimizerRequirements, optimizer_requirements
from ..arguments.fsdp_config import FSDPSettings
from .strategy import PROCESS_GROUP_OPTIONS, Group, Strategy, picked, process_group
from .wrapping import check_sharding, layers_of, wrap_option

if TYPE_CHECKING:
    from typing import Self

    from ...lightning_modules.distributed.fsdp1 import ForwardFSDPPrecision, ModelFSDPStrategy
    from ..arguments import TrainingArguments

TORCH_NAMES = {"hybrid_shard_zero2": "_HYBRID_SHARD_ZERO2"}
"""Torch names of sharding strategies that differ from the upper-case argument."""


class FSDP(Strategy):
    """FSDP1. Forward passes call a wrapper, which also clips gradients.

    Only the wrapper knows which shard of a gradient a rank has.
    """

    configures_model = replaces_parameters = True
    can_restart = False

    @classmethod
    def of(cls, args: TrainingArguments, settings: FSDPSettings, model: nn.Module | None) -> Self:
        """Return the strategy for `fsdp` in version 1."""
        wrap = wrap_option(settings, model)
        checkpointed = None
        if settings.activation_checkpointing:
            checkpointed = wrap
        prefetch = settings.backward_prefetch
        if prefetch is not None:
            prefetch = prefetch.upper()

        options: dict[str, Any] = {
            "sharding_strategy": TORCH_NAMES.get(settings.sharding, settings.sharding.upper()),
            "cpu_offload": settings.offload,
            "auto_wrap_policy": wrap,
            "activation_checkpointing_policy": checkpointed,
            "backward_prefetch": prefetch,
            "forward_prefetch": settings.forward_prefetch,
            "limit_all_gathers": settings.limit_all_gathers,
            "use_orig_params": settings.use_orig_params,
            "sync_module_states": settings.sync_module_states,
            "state_dict_type": settings.state_dict_type,
        }

        # With hybrid sharding, the model is sharded within a machine and replicated across
        # machines.
        if settings.hybrid:
            nodes = args.world_size // args.distributed_state.local_world_size
            options["device_mesh"] = (nodes, args.distributed_state.local_world_size)
        return cls("FSDPStrategy", options | process_group(args))

    @property
    def shards_weights(self) -> bool:
        """Return whether parameters are sharded: always, except with `NO_SHARD`."""
        return self.options["sharding_strategy"] != "NO_SHARD"

    def build(self) -> ModelFSDPStrategy:
        """Build an `FSDPStrategy` that wraps the model instead of the LightningModule."""
        from ...lightning_modules.distributed.fsdp1 import ModelFSDPStrategy

        return ModelFSDPStrategy(**self.keywords())

    @property
    def shards_checkpoints(self) -> bool:
        """See `Strategy.shards_checkpoints`."""
        return self.options["state_dict_type"] == "sharded"

    def precision(self, name: Any, device: str) -> ForwardFSDPPrecision:
        """See `Strategy.precision`."""
        from ...lightning_modules.distributed.fsdp1 import ForwardFSDPPrecision

        return ForwardFSDPPrecision(name, device)

    def check(self, args: TrainingArguments, model: nn.Module) -> None:
        """See `Strategy.check`."""
        check_sharding(args, model, layers=self.options["auto_wrap_policy"])
        if args.parameter_rules and not self.options["use_orig_params"]:
            raise ValueError(
                "parameter_rules with use_orig_params=False: version 1 of fsdp flattens "
                "parameters. Set fsdp_config={'version': 2}."
            )
        optimizer = optimizer_name(args.optim)
        self.check_optimizer(args, f"optim={optimizer!r}", optimizer)

    def check_optimizer(self, args: TrainingArguments, description: str, name: str) -> None:
        """See `Strategy.check_optimizer`. With `NO_SHARD`, parameters can keep their shapes."""
        whole = not self.shards_weights or args.world_size == 1
        if whole and self.options["use_orig_params"]:
            return
        if OptimizerRequirements.FULL_PARAMETERS in optimizer_requirements(name):
            raise ValueError(
                f"{description} needs parameters in their shapes, but version 1 of fsdp flattens "
                "them. Set fsdp_config={'version': 2}, or choose another optimizer, such as "
                "'adamw_torch'."
            )

    def keywords(self) -> dict[str, Any]:
        """Return the options in the form that torch and Lightning accept."""
        from torch.distributed.fsdp import BackwardPrefetch

        options = dict(self.options)
        prefetch = options["backward_prefetch"]
        if prefetch is not None:
            options["backward_prefetch"] = BackwardPrefetch[prefetch]

        # `distribute_model` applies both, because Lightning would choose modules by the sizes of
        # shards.
        del options["auto_wrap_policy"]
        del options["activation_checkpointing_policy"]
        return options

    def groups(self) -> list[Group]:
        """See `Strategy.groups`."""
        sharing = ("sharding_strategy", "device_mesh", "cpu_offload")
        layers = ("auto_wrap_policy", "activation_checkpointing_policy", "use_orig_params")
        traffic = (
            "backward_prefetch",
            "forward_prefetch",
            "limit_all_gathers",
            "sync_module_states",
        )
        return [
            ("fsdp", "Trainer(strategy=)", picked(self.options, *sharing)),
            ("fsdp_config", "FSDPStrategy: layers", picked(self.options, *layers)),
            ("fsdp_config", "FSDPStrategy: traffic", picked(self.options, *traffic)),
            ("fsdp_config", "FSDPStrategy: checkpoints", picked(self.options, "state_dict_type")),
            (
                "ddp_backend, ddp_timeout",
                "FSDPStrategy: group",
                picked(self.options, *PROCESS_GROUP_OPTIONS),
            ),
        ]

    def _distribute_model(self, model: nn.Module, module: nn.Module) -> nn.Module:
        # An earlier run has wrapped the model and its layers.
        if sharding.is_sharded(model):
            return self.lightning.wrap(model, layers=[])
        options = self.options
        return self.lightning.wrap(
            model,
            layers=layers_of(options["auto_wrap_policy"], model),
            checkpointing=options["activation_checkpointing_policy"] is not None,
        )

    def generation_context(self) -> AbstractContextManager[None]:
        """See `Strategy.generation_context`. `generate` belongs to the model, not to its wrapper,
        which gathers the weights only in its own forward pass.
        """
        wrapper = self.forward_model
        if not sharding.is_wrapped_by_fsdp1(wrapper):
            return super().generation_context()
        return sharding.fsdp_wrapping().gathered_weights(wrapper)

    def clip_grad_norm(
        self, parameters: list[torch.Tensor], max_norm: float, norm_type: float = 2.0
    ) -> torch.Tensor:
        """See `Strategy.clip_grad_norm`."""
        wrapper = self.forward_model
        if not sharding.is_wrapped_by_fsdp1(wrapper):
            return super().clip_grad_norm(parameters, max_norm, norm_type)
        return sharding.fsdp_wrapping().clip_gradients(wrapper, parameters, max_norm, norm_type)

    def grad_norm(self, model: Any) -> torch.Tensor:
        """See `Strategy.grad_norm`."""
        if not sharding.is_wrapped_by_fsdp1(model):
            return super().grad_norm(model)
        # Clipping to infinity changes nothing, and returns the norm.
        return model.clip_grad_norm_(math.inf)
