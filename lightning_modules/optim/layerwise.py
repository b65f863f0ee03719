"""Use one optimizer per parameter, which steps as soon as its gradient is ready.

Each gradient is freed immediately, so the gradients of all parameters are never in memory together.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

logger = logging.getLogger(__name__)

_LAYERS_KEY = "layers"
"""Key of the states of inner optimizers or schedules in a `state_dict`."""


class LayerwiseOptimizer(Optimizer):
    """Holds an optimizer for each parameter, which steps in the backward pass.

    Works like `transformers.trainer_pt_utils.LayerWiseDummyOptimizer`, but its state can be saved
    and loaded.

    The inner optimizers step in every backward pass as long as this object is alive. Its own
    parameter group contains a placeholder instead of parameters of the model.

    Args:
        optimizer_dict: the optimizer of each parameter.
        lr: the learning rate of this object's parameter group.
    """

    def __init__(self, optimizer_dict: Mapping[Tensor, Optimizer], lr: float = 1e-3) -> None:
        # Draw from the global RNG as the reference does, so that later draws are the same.
        super().__init__([torch.randn(1, 1, device="cpu")], {"lr": lr})
        self.optimizer_dict = dict(optimizer_dict)
        self.schedulers: Mapping[Tensor, LRScheduler] = {}
        hook = _weak_hook(self._step_parameter)
        for parameter in self.optimizer_dict:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(hook)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run `closure`, in whose backward pass the inner optimizers step."""
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing, because gradients are freed as soon as they are used."""

    def state_dict(self) -> dict[str, Any]:
        """Return the placeholder group and the states of the inner optimizers."""
        inner_states = [optimizer.state_dict() for optimizer in self.optimizer_dict.values()]
        return {**super().state_dict(), _LAYERS_KEY: inner_states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a `state_dict`.

        A state of the reference has no inner states, so the inner optimizers start from scratch.
        """
        super().load_state_dict(state_dict)
        _load_inner_states(list(self.optimizer_dict.values()), state_dict)

    def _step_parameter(self, parameter: Tensor) -> None:
        optimizer = self.optimizer_dict[parameter]
        optimizer.step()
        optimizer.zero_grad()
        if parameter in self.schedulers:
            self.schedulers[parameter].step()


class LayerwiseSchedule(LRScheduler):
    """Holds a schedule for each parameter of a `LayerwiseOptimizer`.

    Works like `transformers.trainer_pt_utils.LayerWiseDummyScheduler`, but also with a Trainer.

    Each parameter has a schedule, which steps after its optimizer. This object reports the learning
    rate of the first parameter, and saves and loads the states of all schedules. (The reference's
    Trainer reports a schedule that it applies to no parameter.)

    Args:
        optimizer: the optimizer. Its current schedules are replaced.
        make_schedule: creates the schedule of one inner optimizer.
    """

    def __init__(
        self, optimizer: LayerwiseOptimizer, make_schedule: Callable[[Optimizer], LRScheduler]
    ) -> None:
        self.schedulers: dict[Tensor, LRScheduler] = {}
        for parameter, inner_optimizer in optimizer.optimizer_dict.items():
            self.schedulers[parameter] = make_schedule(inner_optimizer)
        optimizer.schedulers = self.schedulers
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        """Return the learning rate of the first parameter."""
        first = next(iter(self.schedulers.values()))
        return [first.optimizer.param_groups[0]["lr"]]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this object and those of the inner schedules."""
        # torch includes all attributes of a schedule in its state.
        state_dict = super().state_dict()
        del state_dict["schedulers"]
        inner_states = [scheduler.state_dict() for scheduler in self.schedulers.values()]
        return {**state_dict, _LAYERS_KEY: inner_states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a `state_dict`."""
        own_state = dict(state_dict)
        own_state.pop(_LAYERS_KEY, None)
        super().load_state_dict(own_state)
        _load_inner_states(list(self.schedulers.values()), state_dict)


def _load_inner_states(
    inner: Sequence[Optimizer | LRScheduler], state_dict: Mapping[str, Any]
) -> None:
    """Load the states of inner optimizers or schedules, and warn if they are missing."""
    states = state_dict.get(_LAYERS_KEY)
    if states is None:
        logger.warning(
            "The checkpoint has no states of layerwise optimizers and schedules. They start anew."
        )
        return
    for optimizer_or_schedule, state in zip(inner, states, strict=True):
        optimizer_or_schedule.load_state_dict(state)


def _weak_hook(method: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """Return a hook that calls a method without keeping its object alive."""
    weak_method = weakref.WeakMethod(method)

    def call(parameter: Tensor) -> None:
        method = weak_method()
        if method is not None:
            method(parameter)

    return call
