"""Weigh all items of an optimizer step the same under automatic optimization and accumulation.

Lightning divides the loss of each batch by `accumulate_grad_batches`. So a token in a batch with few of them counts
more than others, and the last, shorter step of an epoch counts less than other steps. The Trainer API has neither: the
sum of all losses is divided by what there is in the step. Here the losses are weighed before the backward pass, and
the gradients scaled after the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..common.dtensor import own_part
from ..internals.lightning_import import Trainer

_log = logging.getLogger(__name__)


def batches_per_step(trainer: Trainer) -> int:
    """As `gradient_accumulation_steps`; 1 where the strategy accumulates by itself."""
    return 1 if trainer.strategy.handles_gradient_accumulation else trainer.accumulate_grad_batches


def ends_step(trainer: Trainer) -> bool:
    """Return whether Lightning takes an optimizer step after the current batch."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    ready = progress.current.ready
    over = progress.is_last_batch or ready >= trainer.num_training_batches
    return over or ready % trainer.accumulate_grad_batches == 0


class StepWindow:
    """The batches of one optimizer step, so far.

    Nothing here synchronises with the device.

    Attributes:
        loss: the mean of their losses, each item counting the same.
        finished_loss: that of the step which `finish` ended last, until the next `clear`. In several processes it is
            the part of this one: the mean over the processes is the loss of the step.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin a step."""
        self.batches = 0
        self.loss: Any = None
        self.finished_loss: torch.Tensor | None = None
        self._total: Any = None
        self._items: torch.Tensor | None = None
        self._unit: Any = None
        self._last: Any = None

    def add(self, loss: torch.Tensor, items: torch.Tensor | None = None, share: torch.Tensor | None = None) -> None:
        """Count a batch.

        Args:
            loss: its loss, the mean of its items in this process.
            items: how many items of it count, over all processes; None where each batch counts the same.
            share: those of this process, times the number of processes, as gradients are averaged; None in a single
                process.
        """
        loss, self.batches = loss.detach(), self.batches + 1
        if items is None:
            self.loss = loss if self.loss is None else self.loss + (loss - self.loss) / self.batches
            return
        dtype = torch.float64 if loss.dtype == torch.float64 else torch.float32
        items = items.to(dtype)
        self._last = items if share is None else share.to(dtype)
        loss = torch.where(self._last > 0, loss, torch.zeros_like(loss))  # the mean over no items is NaN
        if self._items is None:
            self._unit, self._items, self.loss = items.clamp(min=1), items, loss
            self._total = loss * self._last
        else:
            self._total = self._total + loss * self._last
            self._items = self._items + items
            self.loss = self.loss + (loss - self.loss) * (items / self._items.clamp(min=1))

    def weighted(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss of the batch added last, as it goes into the backward pass: in units of the first batch."""
        if self._items is None:
            return loss
        weighted = loss * (self._last / self._unit).to(loss.dtype)
        return torch.where(self._last > 0, weighted, torch.zeros_like(weighted))

    def finish(self, parameters: Iterable[nn.Parameter], divisor: int) -> None:
        """Turn the sums of gradients into the gradient of the mean loss of the step, and begin the next one.

        Args:
            parameters: those that are trained.
            divisor: of the loss of each batch.
        """
        factor: Any = divisor / self.batches
        finished_loss = self.loss
        if self._items is not None:
            items = self._items.clamp(min=1)
            factor = divisor * self._unit / items
            finished_loss = self._total / items
        if self.batches > 1 or divisor > 1:
            _scale([parameter.grad for parameter in parameters if parameter.grad is not None], factor)
        self.clear()
        self.finished_loss = finished_loss


def step_so_far(trainer: Trainer) -> dict[str, Any]:
    """Return the state of an incomplete step: gradients of this process, and the `StepWindow`."""
    module = trainer.lightning_module
    window = getattr(module, "window", None)
    named = ((name, parameter.grad) for name, parameter in module.named_parameters())
    gradients = {name: own_part(gradient) for name, gradient in named if gradient is not None}
    if not gradients:
        said = (
            "A checkpoint inside of a step of %s batches lacks their gradients, hidden by %s: save after whole steps."
        )
        _log.warning(said, trainer.accumulate_grad_batches, type(trainer.strategy).__name__)
    return {"gradients": gradients, "window": vars(window) if isinstance(window, StepWindow) else None}


def load_step(module: Any, step: dict[str, Any]) -> None:
    """Restore the result of `step_so_far`.

    Args:
        module: a LightningModule.
        step: of the same process, with the same strategy.
    """
    for name, parameter in module.named_parameters():
        if name in step["gradients"]:
            parameter.grad = torch.empty_like(parameter)
            own_part(parameter.grad).copy_(step["gradients"][name])
    window = getattr(module, "window", None)
    if step["window"] is not None and isinstance(window, StepWindow):
        vars(window).update({name: _moved(value, module.device) for name, value in step["window"].items()})
        if window._total is None and window._items is not None:  # saved by a version without it
            window._total = window.loss * window._items


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _scale(gradients: list[torch.Tensor], factor: Any) -> None:
    if not gradients or (isinstance(factor, float) and factor == 1.0):
        return
    with torch.no_grad():
        for gradient in map(own_part, gradients):
            gradient.mul_(factor.to(gradient.device) if isinstance(factor, torch.Tensor) else factor)
