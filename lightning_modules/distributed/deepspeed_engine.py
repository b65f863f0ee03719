"""Recognise DeepSpeed engines, read their settings and gradient norm, and release their models.

`deepspeed` is not imported.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


def is_engine(model: nn.Module) -> bool:
    """Return whether a model is a `DeepSpeedEngine`."""
    # Compare the class name, so that deepspeed is not imported.
    return any(cls.__name__ == "DeepSpeedEngine" for cls in type(model).__mro__)


def has_optimizer(model: nn.Module) -> bool:
    """Return whether a model is an engine with an optimizer. Engines for evaluation have none."""
    return is_engine(model) and model.basic_optimizer is not None


def clips_gradients(model: nn.Module) -> bool:
    """Return whether a model is an engine that clips gradients in its own optimizer step."""
    return is_engine(model) and not isinstance(model.optimizer, torch.optim.Optimizer)


def last_grad_norm(engine: Any) -> torch.Tensor | float:
    """Return the gradient norm before clipping; NaN if DeepSpeed has not computed it."""
    norm = engine.get_global_grad_norm()
    if norm is None:
        return math.nan
    return norm


def input_dtype(model: Any) -> torch.dtype | None:
    """Return the half-precision dtype to which inputs of an engine are cast; None for float32."""
    if not is_engine(model):
        return None
    dtype = model.get_data_types()[0]
    if dtype is torch.float32:
        return None
    return dtype


def begin_backward(engine: Any) -> None:
    """Tell the optimizer that a backward pass begins, which adds to the gradients of earlier ones.

    The engine's forward pass does so too, but a loss may call the model inside of the engine, or
    run several backward passes after one forward pass.
    """
    if hasattr(engine.optimizer, "clear_backward_seen_flag"):
        engine.optimizer.clear_backward_seen_flag()


def release(engine: Any) -> None:
    """Remove the hooks of an engine from its model, so that another engine can use it."""
    engine.destroy()
    for handle in (engine.module_forward_pre_hook, engine.module_forward_post_hook):
        handle.remove()
