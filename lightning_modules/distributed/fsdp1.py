"""Lightning strategy that wraps a user's model in FSDP1, `FullyShardedDataParallel`.

Lightning's own strategy wraps the LightningModule instead, so that `training_step` is the forward
pass of the FSDP root. With manual optimization, the backward pass runs inside of `training_step`,
and gradients of the root's own parameters would never be reduced.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    StateDictType,
)

from ..common.collectives import broadcast_weights
from ..common.dtensor import meta_tensors
from ..common.nested import map_nested
from ..internals.lightning_import import FSDPPrecision, FSDPStrategy
from ..internals.precision import HALF, ForwardCasting
from ..models.activation_checkpointing import checkpoint_layers
from ..optim import gradient_norms
from ..optim.optimizer_fit import ParameterShape, require_fitting_optimizer_state
from .device_meshes import cached_device_mesh

_FLAT_PARAMETER = "_flat_param"
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class ModelFSDPStrategy(FSDPStrategy):
    """FSDP strategy whose `wrap` shards the user's model. It also works on the CPU."""

    def setup_environment(self) -> None:
        """Set up the processes, and create the device mesh on any device, not only on GPUs."""
        sizes = self.kwargs.pop("device_mesh", None)
        super().setup_environment()
        if sizes is not None:
            self.kwargs["device_mesh"] = cached_device_mesh(self.root_device.type, tuple(sizes))

    def wrap(
        self, model: nn.Module, *, layers: list[str], checkpointing: bool = False
    ) -> nn.Module:
        """Shard a model. A model that is already sharded is returned unchanged.

        The caller passes the names of modules to wrap, because torch's size-based policies would
        see the sizes of shards, which differ between ranks.

        Args:
            model: its modules are replaced by sharded ones.
            layers: names of modules that are wrapped (gathered) separately. Other parameters belong
                to the root.
            checkpointing: apply activation checkpointing to the layers.
        """
        options = dict(self.kwargs)
        if isinstance(model, FullyShardedDataParallel):
            return model

        # CPU offloading and `sync_module_states` only work on GPUs.
        cpu_offload = self.cpu_offload
        if self.root_device.type == "cpu":
            cpu_offload = None
            if options.get("sync_module_states"):
                broadcast_weights(model)
                options["sync_module_states"] = False

        if checkpointing:
            checkpoint_layers(model, layers)

        # torch calls the policy with `recurse=True` to ask whether to visit submodules, and with
        # `recurse=False` to ask whether to wrap the module.
        chosen = {model.get_submodule(name) for name in layers}
        if chosen:
            options["auto_wrap_policy"] = lambda module, recurse, **_: recurse or module in chosen
        else:
            options["auto_wrap_policy"] = None
        return FullyShardedDataParallel(
            model,
            cpu_offload=cpu_offload,
            mixed_precision=self.mixed_precision_config,
            sharding_strategy=self.sharding_strategy,
            device_id=self.root_device,
            **options,
        )


class ForwardFSDPPrecision(ForwardCasting, FSDPPrecision):
    """FSDP precision plugin that casts only forward passes, by `precision.casting`.

    Args:
        precision: `32-true`, `bf16-mixed` or `16-mixed`.
        device: type of the device, such as `cuda`.

    Attributes:
        scaler: the `LossScaler` for `16-mixed`, with `gradients_are_sharded` set.
    """

    def __init__(
        self, precision: Literal["32-true", "bf16-mixed", "16-mixed"], device: str
    ) -> None:
        # With 16-mixed, Lightning would create a loss scaler that only works on GPUs.
        super().__init__("32-true")
        self.precision = precision
        self.scaler: Any = None
        self.device = device

    @property
    def mixed_precision_config(self) -> MixedPrecision:
        """Return the dtypes of gathered parameters and reduced gradients.

        Shards and optimizer states keep the dtype of the model.
        """
        dtype = HALF.get(self.precision)
        return MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype)


def full_state_dict(model: nn.Module, *, keep: bool) -> dict[str, torch.Tensor]:
    """Gather the full weights, as `sharding.full_state_dict`."""
    with _full_state_dicts(model, on_all_ranks=False):
        state = model.state_dict()
    if not keep:
        return {}

    # FSDP returns tied weights as separate copies: tie them again.
    first_names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = first_names.setdefault(id(parameter), _original_name(name))
        if first in state:
            state[_original_name(name)] = state[first]
    return {
        name: value.cpu() if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }


def full_shapes(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return meta tensors with the unsharded shapes of parameters and buffers, by name."""
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        return meta_tensors(_named_tensors(model))


def gathered_weights(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Gather the weights that are not in a wrapped layer, for code that bypasses the wrapper.

    Wrapped layers gather theirs in their own forward passes. Changes are lost.
    """
    return FullyShardedDataParallel.summon_full_params(model, recurse=False, writeback=False)


def load_full(model: nn.Module, state_dict: Mapping[str, Any]) -> None:
    """Load full tensors into a model, ignoring unknown names."""
    with torch.no_grad(), FullyShardedDataParallel.summon_full_params(model, writeback=True):
        for name, tensor in _named_tensors(model):
            if name in state_dict:
                tensor.copy_(state_dict[name])


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers by name, tied ones under each of their names."""
    for name, tensor in model.named_parameters(remove_duplicate=False):
        yield _original_name(name), tensor
    for name, tensor in model.named_buffers(remove_duplicate=False):
        yield _original_name(name), tensor


def full_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, keep: bool
) -> dict[str, Any]:
    """Gather the full optimizer state, as `sharding.full_optimizer_state`."""
    with _full_state_dicts(model, on_all_ranks=False):
        state_by_name = FullyShardedDataParallel.optim_state_dict(model, optimizer)
    if not keep:
        return {}

    def copied(leaf: object) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        # Copy, because `torch.save` would write the whole buffer into which shards were gathered.
        return leaf.to("cpu", copy=True)

    # Replace names by numbers, as in the optimizer state of an unsharded model.
    names = _parameter_names(model, optimizer) or _parameter_ids(state_by_name)
    states: dict[int, Any] = {}
    for number, name in enumerate(names):
        if name in state_by_name["state"]:
            states[number] = map_nested(copied, state_by_name["state"][name])

    groups: list[dict[str, Any]] = []
    begin = 0
    flat_groups = optimizer.state_dict()["param_groups"]
    for saved_group, group in zip(flat_groups, state_by_name["param_groups"], strict=True):
        end = begin + len(group["params"])
        groups.append({**saved_group, "params": list(range(begin, end))})
        begin = end
    return {"state": states, "param_groups": groups}


def load_full_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any], *, file: str
) -> None:
    """Shard and load a full optimizer state, as `sharding.load_full_optimizer_state`."""
    # Get the names of the parameters, and the number in each group.
    names = _parameter_names(model, optimizer)
    groups = optimizer.param_groups
    if names is None:
        with _full_state_dicts(model, on_all_ranks=True):
            named_state = FullyShardedDataParallel.optim_state_dict(model, optimizer)
        names = _parameter_ids(named_state)
        groups = named_state["param_groups"]

    # Check that the state fits the unsharded shapes.
    full_tensors = full_shapes(model)
    in_order = iter(names)
    shapes: list[list[ParameterShape]] = []
    for group in groups:
        names_of_group = itertools.islice(in_order, len(group["params"]))
        shapes.append(
            [
                ParameterShape(name, full_tensors[name].shape, full_tensors[name].dtype)
                for name in names_of_group
            ]
        )
    require_fitting_optimizer_state(optimizer, state, file, groups=shapes)

    # Load it by name.
    numbers = _parameter_ids(state)
    name_of = dict(zip(numbers, names, strict=True))
    state_by_name: dict[str, Any] = {
        "state": {name_of[number]: values for number, values in state["state"].items()},
        "param_groups": [],
    }
    for group in state["param_groups"]:
        state_by_name["param_groups"].append(
            {**group, "params": [name_of[number] for number in group["params"]]}
        )
    with _full_state_dicts(model, on_all_ranks=True):
        named_state = FullyShardedDataParallel.optim_state_dict_to_load(
            model, optimizer, state_by_name
        )
    optimizer.load_state_dict(named_state)


def clip_gradients(
    model: Any, parameters: list[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """Clip gradients by their norm over all ranks, as `torch.nn.utils.clip_grad_norm_`.

    Must be called on all ranks.

    Args:
        model: the outermost `FullyShardedDataParallel`.
        parameters: any parameters, of the model or not.
        max_norm: maximum norm of the gradients after clipping.
        norm_type: order of the norm. `inf` is the maximum norm.

    Returns:
        The norm before clipping.
    """
    ids_of_model = {id(parameter) for parameter in model.parameters()}
    ids_to_clip = {id(parameter) for parameter in parameters}
    if ids_to_clip == ids_of_model:
        return model.clip_grad_norm_(max_norm, norm_type)
    if ids_to_clip.isdisjoint(ids_of_model) or model.sharding_strategy.name == "NO_SHARD":
        return gradient_norms.clip_gradients(parameters, max_norm, norm_type)

    # FSDP can only clip all parameters together. For a subset, combine the norms of all ranks'
    # shards here.
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = _global_norm(gradients, norm_type, model)
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def _global_norm(gradients: list[torch.Tensor], norm_type: float, model: Any) -> torch.Tensor:
    """Return the gradient norm over all ranks. Some ranks may have no gradients."""
    norm = nn.utils.get_total_norm(gradients, norm_type).to(model.compute_device)
    group = model.process_group
    if math.isinf(norm_type):
        dist.all_reduce(norm, dist.ReduceOp.MAX, group=group)
        return norm
    powers = norm**norm_type
    dist.all_reduce(powers, group=group)
    return powers ** (1.0 / norm_type)


@contextlib.contextmanager
def _full_state_dicts(model: nn.Module, *, on_all_ranks: bool) -> Iterator[None]:
    """Make state dicts contain full tensors, only on rank 0 unless `on_all_ranks`.

    For a model on the CPU all ranks get them, because torch crashes there with `offload_to_cpu`.
    """
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    options = {"offload_to_cpu": not on_cpu, "rank0_only": not (on_cpu or on_all_ranks)}
    with FullyShardedDataParallel.state_dict_type(
        model,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(**options),
        FullOptimStateDictConfig(**options),
    ):
        yield


def _parameter_ids(state: Mapping[str, Any]) -> list[Any]:
    """Return the names (or numbers) of the parameters in an optimizer state, in order."""
    names: list[Any] = []
    for group in state["param_groups"]:
        names += group["params"]
    return names


def _parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str] | None:
    """Return the names of an optimizer's parameters, in order; None if FSDP flattened them."""
    name_of = {id(parameter): _original_name(name) for name, parameter in model.named_parameters()}
    if any(name.endswith(_FLAT_PARAMETER) for name in name_of.values()):
        return None
    names: list[str] = []
    for group in optimizer.param_groups:
        names += [name_of[id(parameter)] for parameter in group["params"]]
    return names


def _original_name(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
