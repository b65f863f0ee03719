"""Unwrap models: torch.compile, DDP, FSDP, DeepSpeed and PEFT."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from ..common.libraries import is_instance

_WRAPPERS = {
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "DeepSpeedEngine",
}
"""Names of classes that wrap a whole model."""
_INNER_WRAPPERS = {"FullyShardedDataParallel", "CheckpointWrapper"}
"""Names of classes that wrap layers inside of a model."""


def to_call(model: object, wrapped: object) -> Any:
    """Return the wrapped model if it still wraps `model`; otherwise `model`.

    The user may have replaced the model after it was wrapped.
    """
    if unwrap_model(wrapped) is unwrap_model(model):
        return wrapped
    return model


def unwrap_model(model: Any) -> Any:
    """Return the user's model inside the wrappers of torch.compile, DDP, FSDP and DeepSpeed."""
    while True:
        inner = inside_compiled(model)
        if inner is None and type(model).__name__ in _WRAPPERS:
            inner = model.module
        if inner is None:
            return model
        model = inner


def inside_compiled(model: Any) -> nn.Module | None:
    """Return the original module of a `torch.compile` result; None for other modules."""
    # Check the class, because a wrapper such as DDP may forward `_orig_mod` to a compiled module.
    if type(model).__name__ == "OptimizedModule":
        return model._orig_mod
    return None


def base_of_adapter(model: Any) -> Any:
    """Return the model under a PEFT adapter and torch's wrappers, or the model itself."""
    model = unwrap_model(model)
    if not is_instance(model, "peft", "PeftModel", "PeftMixedModel"):
        return model
    if hasattr(model, "get_base_model"):
        return model.get_base_model()
    return model.base_model.model


def own_attribute(model: object, name: str) -> Any:
    """Return an attribute of an object or its class; None if neither has it.

    Unlike `getattr`, it does not call `__getattr__`, which wrappers use to forward to an inner
    model.
    """
    is_own = name in vars(model) or hasattr(type(model), name)
    if not is_own:
        return None
    return getattr(model, name)


@contextlib.contextmanager
def without_inner_wrappers(model: nn.Module) -> Iterator[Any]:
    """Remove wrappers of layers within the `with` block, so that modules have their original names.

    Do not use it while another thread calls the model.
    """
    # Collect all wrappers first, because the model must not change while iterating over it.
    wrapped: list[tuple[nn.Module, str, nn.Module]] = []
    for parent in model.modules():
        for name, child in parent.named_children():
            if _is_inner_wrapper(child):
                wrapped.append((parent, name, child))

    for parent, name, child in wrapped:
        # Wrappers may be nested.
        inner = child
        while _is_inner_wrapper(inner):
            inner = next(inner.children())
        setattr(parent, name, inner)
    try:
        yield model
    finally:
        for parent, name, child in wrapped:
            setattr(parent, name, child)


def _is_inner_wrapper(module: nn.Module) -> bool:
    """Return whether a module wraps a layer."""
    return class_of(module).__name__ in _INNER_WRAPPERS


def class_of(model: nn.Module) -> type:
    """Return the original class of a model, even after `fully_shard`."""
    model_class, *bases = type(model).__mro__
    # `fully_shard` creates a class with two bases: FSDPModule and the original class.
    if bases[0].__name__ == "FSDPModule":
        return bases[1]
    return model_class
