"""Values that the steps of an epoch share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Epoch:
    """Settings that are looked up once for all steps of an epoch, and values of the last step for
    the next log.
    """

    model: Any = None
    """The model to call for a forward pass, which a strategy may have wrapped."""
    optimizer: Any = None
    """The object whose `step` Lightning's loop would call; see `fast_path.optimizer_of`."""
    step_context: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Makes the context in which the optimizer steps; see `Strategy.step_context`."""
    clips_in_step: bool = False
    """The step of the optimizer clips the gradients, so that their norm is known after it."""
    may_skip_steps: bool = False
    """The loss scaler, or an engine, skips steps with infinite gradients."""
    items_by_position: bool = False
    """`Trainer.training_step` takes the items of the step as its third argument."""
    takes_items: bool = False
    """It has the parameter `num_items_in_batch`, by keyword only."""
    runs_own_backward: bool = False
    """An override of `Trainer.training_step` may call `loss.backward()` itself."""
    calls_callbacks: bool = False
    """There are Lightning callbacks."""
    windows: int = 0
    """Windows of the epoch that were read."""
    stepped: bool = True
    """The last window that was read ended with a step of the optimizer."""
    grad_norm: torch.Tensor | float | None = None
    """Norm of the gradients in the last step, before clipping."""
    learning_rate: float | None = None
    """Learning rate of the last step."""
    is_over: bool = False
    """Its last step has been taken, and only its logs, evaluations and saves are left."""
