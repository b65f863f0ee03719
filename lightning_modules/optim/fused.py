"""Optimizers that step in the backward pass, such as LOMO: `optimizer.fused_backward(loss, learning_rate)`."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

__all__ = ["let_backward_step", "steps_in_backward"]


def steps_in_backward(optimizer: Any) -> bool:
    """Whether an optimizer takes its steps in a backward pass of its own."""
    return callable(getattr(optimizer, "fused_backward", None))


def let_backward_step(optimizer: Any) -> None:
    """Make `step` do nothing where the backward pass steps, as `accelerate` has it; such optimizers have none at all.

    Args:
        optimizer: any; the usual ones stay as they are.
    """
    if steps_in_backward(optimizer):
        optimizer.step = MethodType(_no_step, optimizer)
        optimizer._opt_called = True  # or torch's schedules would warn that they go first


def _no_step(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
    with torch.enable_grad():
        return None if closure is None else closure()


vars(_no_step)["_wrapped_by_lr_sched"] = True  # or torch's schedules would warn of a new `step`
