"""FSDP2, tensor and context parallelism with Lightning's `ModelParallelStrategy`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...lightning_modules import checkpoints
from ...lightning_modules.common.collectives import broadcast_weights
from ...lightning_modules.distributed import sharding
from ...lightning_modules.distributed.tensor_parallel import (
    agree_on_generators,
    split,
    sum_before_accumulation,
)
from ...lightning_modules.models.wrappers import base_of_adapter
from ..arguments.fsdp_config import FSDPSettings
from ..arguments.parallelism import ParallelismConfig, read_parallelism
from ..arguments.rank_groups import effective_parallelism
from .strategy import PROCESS_GROUP_OPTIONS, Group, Strategy, picked, process_group
from .wrapping import (
    check_sequences,
    check_sharding,
    check_split,
    layers_of,
    split_option,
    wrap_option,
)

if TYPE_CHECKING:
    from typing import Self

    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.device_mesh import DeviceMesh

    from ..arguments import TrainingArguments

# Names of options, grouped by the function or class they are passed to.
_MESH = ("data_parallel_size", "tensor_parallel_size")
_CONTEXT_PARALLEL = ("context_parallel_size", "rotation")
_SEQUENCE_PARALLEL = ("sequence_parallel_size",)
_GROUP = ("save_distributed_checkpoint", *PROCESS_GROUP_OPTIONS)
_TENSOR_PARALLEL = ("plan",)
_SHARDING = ("shard", "reshard_after_forward", "offload", "replicate_size")
_LAYERS = ("layers", "activation_checkpointing", "forward_prefetch")
_DTYPES = ("param_dtype", "reduce_dtype")

_WITHOUT_DTENSORS = "torch.optim.Adafactor"
"""An optimizer whose in-place operations are not supported by DTensors."""


class ModelParallel(Strategy):
    """FSDP2, tensor parallelism, or both. The model is changed in place.

    The ranks form a device mesh. One dimension shards parameters, the other is for tensor
    parallelism. Neighbouring ranks of the first dimension may share sequences.
    """

    configures_model = replaces_parameters = shards_weights = True
    can_restart = False

    @classmethod
    def of(
        cls, args: TrainingArguments, settings: FSDPSettings | None, model: nn.Module | None
    ) -> Self:
        """Return the strategy for `fsdp` in version 2, `parallelism_config`, or both.

        Args:
            args: the training arguments.
            settings: the FSDP settings; None for tensor parallelism without FSDP.
            model: the model, for the names of its layers.
        """
        # Without `parallelism_config`, all ranks shard one copy of the model. With hybrid sharding,
        # each machine shards a copy.
        groups = effective_parallelism(args)
        if groups is None or groups.total_size == 1:
            copies = 1
            if settings is not None and settings.hybrid:
                copies = args.world_size // args.distributed_state.local_world_size
            groups = ParallelismConfig(
                dp_replicate_size=copies, dp_shard_size=args.world_size // copies
            )

        # Ranks that share sequences also shard the model, so Lightning counts them as data
        # parallel.
        options: dict[str, Any] = {
            "data_parallel_size": groups.data_parallel_size * groups.cp_size * groups.sp_size,
            "tensor_parallel_size": groups.tp_size,
        }

        name = "ModelParallelStrategy"
        if groups.cp_enabled:
            name = "ContextParallelStrategy"
            options["context_parallel_size"] = groups.cp_size
            options["rotation"] = groups.rotation
        if groups.sp_enabled:
            name = "SequenceParallelStrategy"
            options["sequence_parallel_size"] = groups.sp_size
        if groups.tp_enabled:
            options["plan"] = split_option(model)

        options["save_distributed_checkpoint"] = False
        if settings is not None:
            options |= _sharding_options(args, settings, groups, model)
            options["save_distributed_checkpoint"] = settings.state_dict_type == "sharded"
        return cls(name, options | process_group(args))

    def build(self) -> ModelParallelStrategy:
        """Build a `ModelParallelStrategy`. The model is sharded in `configure_model`."""
        if "sequence_parallel_size" in self.options:
            from ...lightning_modules.distributed.ulysses_attention import SequenceParallelStrategy

            return SequenceParallelStrategy(
                **picked(self.options, *_MESH, *_SEQUENCE_PARALLEL, *_GROUP)
            )
        if self._shares_sequences:
            from ...lightning_modules.distributed.ring_attention import ContextParallelStrategy

            return ContextParallelStrategy(
                **picked(self.options, *_MESH, *_CONTEXT_PARALLEL, *_GROUP)
            )
        from ...lightning_modules.distributed.device_meshes import ModelParallelStrategy

        return ModelParallelStrategy(**picked(self.options, *_MESH, *_GROUP))

    @property
    def _shares_sequences(self) -> bool:
        return "context_parallel_size" in self.options or "sequence_parallel_size" in self.options

    @property
    def shards_checkpoints(self) -> bool:
        """See `Strategy.shards_checkpoints`."""
        return self.options["save_distributed_checkpoint"]

    @property
    def saves_by_name(self) -> bool:
        """See `Strategy.saves_by_name`. True for PEFT models, because `accelerate` can only resume
        them from these files.
        """
        return (
            "shard" in self.options
            and not self.shards_checkpoints
            and checkpoints.is_peft_model(self.sharded_model)
        )

    def check(self, args: TrainingArguments, model: nn.Module) -> None:
        """See `Strategy.check`."""
        check_sharding(args, model, layers=self.options.get("layers"))
        check_split(model, self.options["tensor_parallel_size"])
        if args.optim == _WITHOUT_DTENSORS:
            raise ValueError(
                f"optim={args.optim!r} does not support sharded parameters. Pass 'adafactor' "
                "instead."
            )
        if "context_parallel_size" in self.options:
            from ...lightning_modules.distributed.ring_attention import require_ring_attention

            check_sequences(model, "cp_size", self.options["context_parallel_size"])
            require_ring_attention(args.device.type)

        # Ulysses attention shards the heads that a rank has after tensor parallelism.
        if "sequence_parallel_size" in self.options:
            size = self.options["sequence_parallel_size"]
            check_sequences(
                model, "sp_size", size, head_shards=size * self.options["tensor_parallel_size"]
            )

    def groups(self) -> list[Group]:
        """See `Strategy.groups`: the mesh, then the arguments of `fully_shard`."""
        return [
            ("fsdp, parallelism_config", "Trainer(strategy=)", picked(self.options, *_MESH)),
            ("parallelism_config", "context_parallel()", picked(self.options, *_CONTEXT_PARALLEL)),
            (
                "parallelism_config",
                "ulysses_attention()",
                picked(self.options, *_SEQUENCE_PARALLEL),
            ),
            ("parallelism_config", "parallelize_module()", picked(self.options, *_TENSOR_PARALLEL)),
            ("fsdp, fsdp_config", "fully_shard()", picked(self.options, *_SHARDING)),
            ("fsdp_config", "fully_shard(): layers", picked(self.options, *_LAYERS)),
            ("bf16, fp16", "fully_shard(mp_policy=)", picked(self.options, *_DTYPES)),
            (
                "ddp_backend, ddp_timeout",
                "ModelParallelStrategy: group",
                picked(self.options, *_GROUP),
            ),
        ]

    def _distribute_model(self, model: nn.Module, module: Any) -> nn.Module:
        mesh = module.device_mesh
        if not sharding.is_sharded(model):
            # All shards must come from the same model.
            broadcast_weights(model, torch.device(mesh.device_type))
            if self.options["tensor_parallel_size"] > 1:
                split(model, mesh["tensor_parallel"])
                model.to(mesh.device_type)  # for layers that are not split
            # Ranks that share a sequence must draw the same random numbers.
            if self._shares_sequences:
                agree_on_generators(self.lightning.context_mesh)
        if "shard" in self.options:
            return self._shard(model, mesh)
        return sharding.resharded(model)

    def _shard(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        """Shard a model by `fully_shard`."""
        options = self.options

        # float32 is the dtype of the parameters, so nothing is cast.
        dtype = None
        if options["param_dtype"] != "float32":
            dtype = getattr(torch, options["param_dtype"])
        return sharding.shard_fully(
            model,
            _sharding_mesh(mesh, copies=options["replicate_size"]),
            layers=layers_of(options["layers"], model),
            reshard_after_forward=options["reshard_after_forward"],
            offload=options["offload"],
            dtype=dtype,
            checkpointing=options["activation_checkpointing"],
            forward_prefetch=options["forward_prefetch"],
        )

    @property
    def splits_sequences(self) -> bool:
        """See `Strategy.splits_sequences`."""
        return self.is_running and self._shares_sequences

    def split_sequences(
        self,
        buffers: list[torch.Tensor] | None,
        dims: list[int] | None,
        kept: set[torch.Tensor] | None,
    ) -> contextlib.AbstractContextManager[Any]:
        """See `ContextParallelStrategy`."""
        if not self.splits_sequences:
            return super().split_sequences(buffers, dims, kept)
        return self.lightning.split_sequences(buffers or (), dims or (), kept)


def _sharding_mesh(mesh: DeviceMesh, *, copies: int) -> DeviceMesh:
    """Return the mesh to shard over, with a second dimension for copies of the model."""
    from ...lightning_modules.distributed.device_meshes import cached_device_mesh

    data_mesh = mesh["data_parallel"]
    if copies == 1:
        return data_mesh
    sizes = (copies, data_mesh.size() // copies)
    return cached_device_mesh(data_mesh.device_type, sizes, mesh_dim_names=("replicate", "shard"))


def _sharding_options(
    args: TrainingArguments,
    settings: FSDPSettings,
    groups: ParallelismConfig,
    model: nn.Module | None,
) -> dict[str, object]:
    """Return the options of `fully_shard`."""
    dtype = {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}[args.mixed_precision]
    return {
        "shard": settings.sharding,
        "reshard_after_forward": settings.reshard_after_forward,
        "offload": settings.offload,
        "replicate_size": groups.dp_replicate_size,
        "layers": wrap_option(settings, model),
        "activation_checkpointing": settings.activation_checkpointing,
        "forward_prefetch": settings.forward_prefetch,
        "param_dtype": dtype,
        "reduce_dtype": dtype,
    }


def prepare_spread_model(args: TrainingArguments, model: nn.Module) -> ParallelismConfig | None:
    """Prepare a model that `from_pretrained` has parallelized for training.

    Returns:
        The parallelism of the model; None for other models, which are not changed.

    Raises:
        ValueError: the arguments would parallelize it again, or its shards are plain tensors
            without a device mesh.
        NotImplementedError: the model uses pipeline parallelism.
    """
    base = base_of_adapter(model)
    kind = type(base).__name__
    if not getattr(base, "is_distributed_loading_by_transformers", False):
        if (getattr(base, "_tp_size", None) or 1) > 1 and not sharding.has_dtensors(base):
            raise ValueError(
                f"from_pretrained(tp_plan=...) has split {kind} into plain tensors. Load it "
                f"without, and pass parallelism_config={{'tp_size': {args.world_size}}}."
            )
        return None

    sizes = base.config.distributed_config
    if sizes.pp_size > 1:
        raise NotImplementedError(
            f"DistributedConfig(pp_size={sizes.pp_size}): use fsdp_size, tp_size or ep_size."
        )

    # The arguments may repeat these sizes but not contradict them.
    groups = ParallelismConfig(sizes.dp_replicate_size, sizes.fsdp_size, sizes.tp_size)
    again = [name for name in ("fsdp", "deepspeed") if getattr(args, name)]
    config = args.parallelism_config
    if config is not None and read_parallelism(config) not in (ParallelismConfig(), groups):
        again.append("parallelism_config")
    if again:
        raise ValueError(
            f"{', '.join(again)} parallelizes the model, but "
            f"from_pretrained(distributed_config=...) has parallelized {kind} already. Remove one."
        )

    # Register hooks that synchronise gradients of parameters that are not sharded.
    if sizes.tp_size > 1:
        sum_before_accumulation(base)
    sharding.resharded(base)
    if groups.data_parallel_size > 1:
        sharding.average_replicas(model)
    return groups
