"""One optimizer per parameter, stepped as soon as its gradient is ready, so that gradients can
be freed at once.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

logger = logging.getLogger(__name__)

_KEY = "layers"


class LayerwiseOptimizer(Optimizer):
    """As `transformers.trainer_pt_utils.LayerWiseDummyOptimizer`, but its state can be saved and
    loaded.

    The inner optimizers step in every backward pass, as long as this object lives. Its own group
    has no parameter of the model.

    Args:
        optimizer_dict: the optimizer of each parameter.
        lr: the learning rate that its own group shows.
    """

    def __init__(self, optimizer_dict: Mapping[Tensor, Optimizer], lr: float = 1e-3) -> None:
        # Drawn from the global generator, as in the reference, so that later draws agree.
        super().__init__([torch.randn(1, 1, device="cpu")], {"lr": lr})
        self.optimizer_dict = dict(optimizer_dict)
        self.schedulers: Mapping[Tensor, LRScheduler] = {}
        hook = _weakly(self._step_one)
        for parameter in self.optimizer_dict:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(hook)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run the `closure`, if there is one; the inner optimizers step in its backward pass."""
        with torch.enable_grad():
            return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: gradients are freed as soon as they are used."""

    def state_dict(self) -> dict[str, Any]:
        """Return its own group, and the states of the inner optimizers."""
        return {
            **super().state_dict(),
            _KEY: [inner.state_dict() for inner in self.optimizer_dict.values()],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a `state_dict`, also one of the reference, which saves no states of the inner
        optimizers.
        """
        super().load_state_dict(state_dict)
        for inner, state in _pairs(self.optimizer_dict.values(), state_dict):
            inner.load_state_dict(state)

    def _step_one(self, parameter: Tensor) -> None:
        optimizer = self.optimizer_dict[parameter]
        optimizer.step()
        optimizer.zero_grad()
        if parameter in self.schedulers:
            self.schedulers[parameter].step()


class LayerwiseSchedule(LRScheduler):
    """As `transformers.trainer_pt_utils.LayerWiseDummyScheduler`, but usable with a Trainer too.

    Each parameter has a schedule, which steps after its optimizer; this one shows the rate of the
    first, and its state can be saved and loaded. (The reference's Trainer shows a schedule that it
    applies to no parameter.)

    Args:
        optimizer: its schedules until now are replaced.
        make: makes the schedule of one optimizer.
    """

    def __init__(
        self, optimizer: LayerwiseOptimizer, make: Callable[[Optimizer], LRScheduler]
    ) -> None:
        self.schedulers = {
            parameter: make(inner) for parameter, inner in optimizer.optimizer_dict.items()
        }
        optimizer.schedulers = self.schedulers
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        """Return the rate of the first parameter."""
        first = next(iter(self.schedulers.values()))
        return [first.optimizer.param_groups[0]["lr"]]

    def state_dict(self) -> dict[str, Any]:
        """Return its own numbers, and those of the inner schedules."""
        own = {name: value for name, value in super().state_dict().items() if name != "schedulers"}
        return {**own, _KEY: [scheduler.state_dict() for scheduler in self.schedulers.values()]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a `state_dict`."""
        super().load_state_dict({name: value for name, value in state_dict.items() if name != _KEY})
        for scheduler, state in _pairs(self.schedulers.values(), state_dict):
            scheduler.load_state_dict(state)


def _pairs(parts: Any, state_dict: dict[str, Any]) -> Any:
    states = state_dict.get(_KEY)
    if states is None:
        logger.warning(
            "The checkpoint holds nothing of the optimizers of single layers: they start from "
            "scratch."
        )
        return ()
    return zip(parts, states, strict=True)


def _weakly(method: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """Return a hook that calls the method without keeping its object alive."""
    found = weakref.WeakMethod(method)

    def call(parameter: Tensor) -> None:
        alive = found()
        if alive is not None:
            alive(parameter)

    return call
