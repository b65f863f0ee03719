"""Gather and load the full weights of a model that DeepSpeed may have sharded.

`deepspeed` is imported only if a parameter is sharded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..common.dtensor import meta_tensors
from .deepspeed_engine import is_engine


def shards_weights(model: nn.Module) -> bool:
    """Return whether parameters are sharded, by an engine in stage 3 or `deepspeed.zero.Init`."""
    return any(hasattr(parameter, "ds_id") for parameter in model.parameters())


def non_embedding_parameters(model: nn.Module) -> int | None:
    """Count the parameters of a sharded model, excluding embeddings.

    Returns None for models that DeepSpeed does not shard.
    """
    if not shards_weights(model):
        return None
    embeddings: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            embeddings.add(id(module.weight))
    count = 0
    for parameter in model.parameters():
        if id(parameter) not in embeddings:
            # `ds_numel` is the size of the unsharded parameter.
            count += getattr(parameter, "ds_numel", parameter.numel())
    return count


def full_state_dict(model: nn.Module, *, keep: bool) -> dict[str, torch.Tensor]:
    """Gather the full weights, as `sharding.full_state_dict`."""
    gathered: dict[int, torch.Tensor] = {}
    state: dict[str, torch.Tensor] = {}
    with pause_parameter_gathering(model):
        for name, tensor in _module_of(model).state_dict(keep_vars=True).items():
            # Gather tied weights once, so that they stay tied.
            if id(tensor) not in gathered:
                with _gathered(tensor):
                    full_tensor = tensor
                    if keep:
                        full_tensor = tensor.detach().to("cpu", copy=True)
                gathered[id(tensor)] = full_tensor
            state[name] = gathered[id(tensor)]
    if not keep:
        return {}
    return state


def full_shapes(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return meta tensors with the unsharded shapes, by name."""
    return meta_tensors(_module_of(model).state_dict(keep_vars=True).items())


def load_full(model: nn.Module, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Load full tensors into a model, ignoring unknown names. The values of rank 0 are used."""
    with torch.no_grad(), pause_parameter_gathering(model):
        for name, tensor in _module_of(model).state_dict(keep_vars=True).items():
            if name in state_dict:
                with _gathered(tensor, writes=True):
                    tensor.copy_(state_dict[name])

    # Update the optimizer's float32 copies.
    optimizer = _zero_optimizer(model)
    if hasattr(optimizer, "refresh_fp32_params"):
        optimizer.refresh_fp32_params()


def _module_of(model: Any) -> nn.Module:
    """Return the module of an engine; other models are returned unchanged."""
    if is_engine(model):
        return model.module
    return model


def _zero_optimizer(model: nn.Module) -> Any:
    """Return DeepSpeed's wrapper of the user's optimizer; None without an engine."""
    if is_engine(model):
        return getattr(model, "optimizer", None)
    return None


@contextlib.contextmanager
def pause_parameter_gathering(model: nn.Module) -> Iterator[None]:
    """Wait for pending gathers and releases of parameters, and prevent new ones in the `with`
    block.
    """
    # Only the ZeRO stage 3 optimizer has these methods.
    optimizer = _zero_optimizer(model)
    if not hasattr(optimizer, "checkpoint_event_prologue"):
        yield
        return
    optimizer.checkpoint_event_prologue()
    try:
        yield
    finally:
        optimizer.checkpoint_event_epilogue()


def _gathered(
    tensor: torch.Tensor, *, writes: bool = False
) -> contextlib.AbstractContextManager[object]:
    """Gather a sharded parameter within the `with` block; `writes` broadcasts changes of rank 0."""
    if not hasattr(tensor, "ds_id"):
        return contextlib.nullcontext()
    modifier_rank = None
    if writes:
        modifier_rank = 0
    zero = import_module("deepspeed").zero
    return zero.GatheredParameters([tensor], modifier_rank=modifier_rank)
