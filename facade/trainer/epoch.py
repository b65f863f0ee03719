"""Values that are shared by the steps of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Epoch:
    """Settings that are looked up once per epoch instead of in each step, and values of the last
    step that are logged next.
    """

    model: Any = None
    """The model to call for a forward pass; it may be wrapped by a strategy."""
    optimizer: Any = None
    """The object on which Lightning's loop would call `step`; see `fast_path.optimizer_of`."""
    step_context: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Returns the context manager for an optimizer step; see `Strategy.step_context`."""
    clips_in_step: bool = False
    """Whether the optimizer clips gradients in its `step`, so that their norm is only known
    afterwards.
    """
    may_skip_steps: bool = False
    """Whether the loss scaler or an engine may skip steps because of infinite gradients."""
    items_by_position: bool = False
    """Whether `Trainer.training_step` accepts `num_items_in_batch` as its third positional
    argument.
    """
    takes_items: bool = False
    """Whether it accepts `num_items_in_batch` as a keyword only."""
    runs_own_backward: bool = False
    """Whether an override of `Trainer.training_step` may call `loss.backward()` itself."""
    calls_callbacks: bool = False
    """Whether there are Lightning callbacks."""
    windows: int = 0
    """Number of windows read in this epoch."""
    stepped: bool = True
    """Whether the last window that was read ended with an optimizer step."""
    grad_norm: torch.Tensor | float | None = None
    """Norm of the gradients in the last step, before clipping."""
    learning_rate: float | None = None
    """Learning rate of the last step."""
    is_over: bool = False
    """Whether the last step of the epoch is done, so that only logging, evaluation and saving
    remain.
    """
