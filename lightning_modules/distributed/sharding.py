"""Shard a model with torch's FSDP, and gather full tensors.

`fully_shard` turns parameters into DTensors. Full tensors are saved and loaded, so that a
checkpoint can be loaded with any world size.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ..common.dtensor import gather_dtensor, is_dtensor, meta_tensors, shard_like
from ..common.nested import map_nested
from ..models.activation_checkpointing import checkpoint_layers
from ..models.tied_parameters import tied_names
from ..models.wrappers import own_attribute, unwrap_model, without_inner_wrappers
from ..optim.optimizer_fit import require_fitting_optimizer_state
from . import deepspeed_weights

if TYPE_CHECKING:
    from types import ModuleType

    from torch.distributed.device_mesh import DeviceMesh


def modules_by_class(model: nn.Module, names: set[str]) -> list[str]:
    """Return names of submodules whose class has one of these names, inner ones first."""
    tied = tied_modules(model)
    matching: list[str] = []
    for name, module in _submodules(model):
        if type(module).__name__ in names and module not in tied:
            matching.append(name)
    return matching


def modules_by_size(model: nn.Module, smallest: int) -> list[str]:
    """Return names of submodules with at least `smallest` parameters.

    Parameters of modules that are already in the list are not counted again.
    """
    names: list[str] = []
    counted: set[int] = set()
    tied = tied_modules(model)
    for name, module in _submodules(model):
        # Containers are never called, so their parameters would not be gathered.
        if module in tied or isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            continue
        sizes: dict[int, int] = {}
        for parameter in module.parameters():
            if id(parameter) not in counted:
                sizes[id(parameter)] = parameter.numel()
        if sum(sizes.values()) >= smallest:
            names.append(name)
            counted.update(sizes)
    return names


def tied_modules(model: nn.Module) -> set[nn.Module]:
    """Return submodules that share a parameter with a module outside of them.

    They cannot be sharded separately.
    """
    tied: set[nn.Module] = set()
    for names in tied_names(model):
        for path, module in _submodules(model):
            inside = sum(name.startswith(f"{path}.") for name in names)
            if 0 < inside < len(names):
                tied.add(module)
    return tied


def shard_fully(
    model: nn.Module,
    mesh: DeviceMesh,
    *,
    layers: list[str],
    reshard_after_forward: bool = True,
    offload: bool = False,
    dtype: torch.dtype | None = None,
    checkpointing: bool = False,
    forward_prefetch: bool = False,
) -> nn.Module:
    """Shard a model in place with `fully_shard`, unless it is sharded already.

    Args:
        model: the model. It is moved to the devices of the mesh.
        mesh: a mesh of one dimension, or of two for hybrid sharding: replicas and shards.
        layers: names of modules that are gathered separately. Other parameters belong to the root.
        reshard_after_forward: free the gathered parameters of a layer between its forward and
            backward pass.
        offload: keep parameters on the CPU. Ignored if the mesh is on the CPU.
        dtype: dtype in which parameters are gathered and gradients are reduced.
        checkpointing: apply activation checkpointing to the layers.
        forward_prefetch: gather the next layer during the forward pass of a layer.

    Returns:
        The model.
    """
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FSDPModule,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )

    if isinstance(model, FSDPModule):
        return resharded(model)
    on_cpu = mesh.device_type == "cpu"
    offload_policy = OffloadPolicy()
    if offload and not on_cpu:
        offload_policy = CPUOffloadPolicy()
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype),
        "offload_policy": offload_policy,
    }

    if checkpointing:
        checkpoint_layers(model, layers)
    for name in layers:
        layer = model.get_submodule(name)
        fully_shard(layer, reshard_after_forward=reshard_after_forward, **options)

    # Shard the root with the other parameters. The backward pass needs the root's parameters first,
    # so freeing them after the forward pass would not save memory.
    reshard_root = None if layers else reshard_after_forward
    fully_shard(model, reshard_after_forward=reshard_root, **options)

    # With torch 2.8, gloo returns the sum of gradient shards instead of their mean. Request the
    # sum, which torch then divides.
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if on_cpu:
        for module in sharded:
            module.set_force_sum_reduction_for_comms(True)
    if forward_prefetch:
        submodules = [module for module in sharded if module is not model]
        for module, next_module in itertools.pairwise(submodules):
            module.set_modules_to_forward_prefetch([next_module])
    return model


def resharded(model: nn.Module) -> nn.Module:
    """Free parameters that a forward pass left gathered in a fully sharded model.

    Returns:
        The model.
    """
    for module in filter(is_fully_sharded, model.modules()):
        sharded: Any = module
        sharded.reshard()
    return model


def average_replicas(model: nn.Module) -> None:
    """Synchronise unsharded trained parameters, such as adapters of sharded layers.

    They get the values of rank 0, and their gradients are averaged over all ranks from then on.
    """
    for parameter in model.parameters():
        is_replica = parameter.requires_grad and not is_dtensor(parameter)
        if is_replica and not hasattr(parameter, "_averaged"):
            dist.broadcast(parameter.data, src=0)
            parameter.register_hook(_all_reduce_mean)
            vars(parameter)["_averaged"] = True


def _all_reduce_mean(gradient: torch.Tensor) -> torch.Tensor:
    mean = gradient / dist.get_world_size()
    dist.all_reduce(mean)
    return mean


def is_sharded(model: nn.Module) -> bool:
    """Return whether a model is sharded, even while parameters are gathered."""
    by_torch = is_wrapped_by_fsdp1(model) or is_fully_sharded(model) or has_dtensors(model)
    return by_torch or deepspeed_weights.shards_weights(model)


def is_wrapped_by_fsdp1(model: object) -> bool:
    """Return whether a model is wrapped by FSDP1."""
    # Compare the class name, so that FSDP is not imported.
    return type(model).__name__ == "FullyShardedDataParallel"


def is_fully_sharded(model: nn.Module) -> bool:
    """Return whether `fully_shard` was applied to a model."""
    return any(cls.__name__ == "FSDPModule" for cls in type(model).__mro__)


def has_dtensors(model: nn.Module) -> bool:
    """Return whether any parameter is a DTensor at the moment."""
    return any(is_dtensor(parameter) for parameter in model.parameters())


@contextlib.contextmanager
def unsynchronised(model: nn.Module) -> Iterator[None]:
    """Do not synchronise gradients in backward passes within the `with` block."""
    wrapper: Any = model
    if is_fully_sharded(model):
        wrapper.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            wrapper.set_requires_gradient_sync(True)
    elif hasattr(model, "no_sync"):
        with wrapper.no_sync():
            yield
    else:
        # Nothing is synchronised in a single process, or if all ranks have equal gradients.
        yield


def full_state_dict(model: nn.Module, *, keep: bool) -> dict[str, torch.Tensor]:
    """Gather the state dict of a sharded model as full tensors on the CPU.

    All processes must call this.

    Args:
        model: the model.
        keep: return the tensors in this process; otherwise it gets an empty dict.
    """
    library = _module_for_library(model)
    if library is not None:
        return library.full_state_dict(model, keep=keep)

    # Gather tied weights once, so that they stay tied.
    gathered: dict[int, torch.Tensor] = {}
    state: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in gathered:
            full_tensor = gather_dtensor(tensor).detach()
            # All ranks gather. Ranks that keep nothing free each tensor immediately.
            gathered[id(tensor)] = full_tensor.cpu() if keep else tensor
        state[name] = gathered[id(tensor)]
    if not keep:
        return {}
    return state


class FullModel:
    """Present a sharded model through the state-dict interface of an unsharded one.

    All processes must call this.

    Args:
        model: the model.

    Attributes:
        sharded: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.sharded = model
        unwrapped = unwrap_model(model)
        self._keys_to_ignore_on_save = own_attribute(unwrapped, "_keys_to_ignore_on_save")
        self._keys_to_ignore_on_load_missing = own_attribute(
            unwrapped, "_keys_to_ignore_on_load_missing"
        )

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return meta tensors with unsharded shapes. Tied names share a tensor."""
        library = _module_for_library(self.sharded)
        if library is not None:
            return library.full_shapes(self.sharded)
        return meta_tensors(self.sharded.state_dict(keep_vars=True).items())

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load full tensors into the sharded model, as `nn.Module.load_state_dict`.

        Raises:
            RuntimeError: the shape of a tensor differs, or with `strict`, names are missing or
                unexpected.
        """
        # Check everything before a weight is changed.
        shapes = self.state_dict()
        differences = _key_differences(shapes, state_dict)
        missing, unexpected = differences
        other_shapes: list[str] = []
        for name, tensor in shapes.items():
            if name in state_dict and tensor.shape != state_dict[name].shape:
                other_shapes.append(name)
        if other_shapes or (strict and (missing or unexpected)):
            raise RuntimeError(
                f"other shapes: {other_shapes}; missing: {missing}; unexpected: {unexpected}"
            )

        library = _module_for_library(self.sharded)
        if library is not None:
            library.load_full(self.sharded, state_dict)
            return differences
        targets = self.sharded.state_dict(keep_vars=True)
        shards: dict[str, Any] = {}
        for name, value in state_dict.items():
            if name in targets:
                shards[name] = shard_like(value, targets[name])
        self.sharded.load_state_dict(shards, strict=False)
        return differences

    @contextlib.contextmanager
    def reading_full(self) -> Iterator[nn.Module]:
        """Let other code load full tensors into the model within the `with` block.

        The model's `load_state_dict` collects the tensors, which are sharded and loaded afterwards.
        """
        module: Any = unwrap_model(self.sharded)
        shapes = self.state_dict()
        collected: dict[str, Any] = {}

        def load_state_dict(
            state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
        ) -> Any:
            collected.update(state_dict)
            return _key_differences(shapes, state_dict)

        # The caller compares names and shapes, so it must see unsharded shapes.
        module.load_state_dict = load_state_dict
        module.named_parameters = lambda *_, **__: iter(shapes.items())
        try:
            with without_inner_wrappers(module):
                yield module
        finally:
            del module.load_state_dict
            del module.named_parameters
        self.load_state_dict(collected, strict=False)


class KeyDifferences(NamedTuple):
    """Result of `load_state_dict`, as that of `nn.Module`."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def _key_differences(
    in_model: Mapping[str, object], loaded: Mapping[str, object]
) -> KeyDifferences:
    missing = [name for name in in_model if name not in loaded]
    unexpected = [name for name in loaded if name not in in_model]
    return KeyDifferences(missing, unexpected)


def full_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, keep: bool
) -> dict[str, Any]:
    """Gather the state of an optimizer as full tensors on the CPU.

    All processes must call this.

    Args:
        model: the sharded model.
        optimizer: the optimizer of its parameters.
        keep: return the tensors in this process; otherwise it gets an empty dict.
    """
    if is_wrapped_by_fsdp1(model):
        return fsdp_wrapping().full_optimizer_state(model, optimizer, keep=keep)

    def gather(leaf: object) -> Any:
        if not is_dtensor(leaf):
            return leaf
        gathered = gather_dtensor(leaf)
        if not keep:
            return None
        # Copy, because `torch.save` would write the whole padded buffer into which shards were
        # gathered.
        return gathered.to("cpu", copy=True)

    return map_nested(gather, optimizer.state_dict())


def load_full_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any], *, file: str
) -> None:
    """Load a state of full tensors into the optimizer of a sharded model.

    Args:
        model: the sharded model.
        optimizer: the optimizer of its parameters.
        state: the state to load.
        file: its file, for errors.

    Raises:
        ValueError: the state does not fit the parameters.
    """
    if is_wrapped_by_fsdp1(model):
        fsdp_wrapping().load_full_optimizer_state(model, optimizer, state, file=file)
        return
    require_fitting_optimizer_state(optimizer, state, file, model=model)
    shards: dict[int, dict[str, Any]] = {}
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            if number in state["state"]:
                values = state["state"][number]
                shards[number] = {
                    name: shard_like(value, parameter) for name, value in values.items()
                }
    optimizer.load_state_dict({**state, "state": shards})


def fsdp_wrapping() -> ModuleType:
    """Import `fsdp1` lazily, because it imports Lightning's strategies."""
    from . import fsdp1 as module

    return module


def _module_for_library(model: nn.Module) -> ModuleType | None:
    """Return the module for a model sharded by FSDP1 or DeepSpeed; None for DTensors."""
    if is_wrapped_by_fsdp1(model):
        return fsdp_wrapping()
    if deepspeed_weights.shards_weights(model):
        return deepspeed_weights
    return None


def _submodules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the submodules of a model by name, inner ones first."""
    submodules = [(name, module) for name, module in model.named_modules() if module is not model]
    return submodules[::-1]
