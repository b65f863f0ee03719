"""Weigh all items of an optimizer step the same under automatic optimization and accumulation.

Lightning divides the loss of each batch by `accumulate_grad_batches`. So a token in a batch with
few of them counts more than others, and the last, shorter step of an epoch counts less than other
steps. The Trainer API has neither: the sum of all losses is divided by what there is in the step.
Here the losses are weighed before the backward pass, and the gradients scaled after the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ..common.dtensor import local_part
from ..internals.lightning_import import Trainer
from ..internals.loop_states import LoopPosition

_log = logging.getLogger(__name__)


def batches_per_step(trainer: Trainer) -> int:
    """As `gradient_accumulation_steps`; 1 where the strategy accumulates by itself."""
    if trainer.strategy.handles_gradient_accumulation:
        return 1
    return trainer.accumulate_grad_batches


def ends_step(trainer: Trainer) -> bool:
    """Return whether Lightning takes an optimizer step after the current batch."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    ready = progress.current.ready
    if progress.is_last_batch or ready >= trainer.num_training_batches:
        return True
    return ready % trainer.accumulate_grad_batches == 0


class _Items(NamedTuple):
    """What the losses of some batches are means of."""

    number: torch.Tensor
    """Items over all processes."""
    total: torch.Tensor
    """Sum of each loss times its items in this process, see `StepWindow.add`."""
    unit: torch.Tensor
    """Items of the first batch: weights are relative to it, as those of the whole step are not
    known before its end.
    """


class _Losses(NamedTuple):
    """The losses of some batches of a step."""

    mean: torch.Tensor | None = None
    """Each item counts the same, or each loss where items are not known."""
    items: _Items | None = None


class StepWindow:
    """The batches of one optimizer step, so far: those that had a backward pass, and the current
    one.

    Nothing here synchronises with the device.

    Attributes:
        batches: how many had a backward pass.
        finished_loss: that of the step which `finish` ended last, until the next `clear`. In
            several processes it is the part of this one: the mean over the processes is the loss of
            the step.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin a step."""
        self.batches = 0
        self.finished_loss: torch.Tensor | None = None
        self._counted = _Losses()
        """Of the batches that had a backward pass."""
        self.begin_batch()

    def begin_batch(self) -> None:
        """Begin a batch, and forget the one before it if its loss had no backward pass, as
        Lightning does on None.
        """
        self._with_current = self._counted
        self._weight: torch.Tensor | None = None

    @property
    def has_current(self) -> bool:
        """Return whether a loss of the current batch was added, and not yet counted."""
        return self._with_current is not self._counted

    def add(
        self,
        loss: torch.Tensor,
        items: torch.Tensor | None = None,
        share: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Add a loss of the current batch; if there are several, the batch weighs as much as all
        their items.

        Args:
            loss: the mean of its items in this process.
            items: how many items of it count, over all processes; None where each batch counts the
                same.
            share: those of this process, times the number of processes, as gradients are averaged;
                None in a single process.

        Returns:
            The mean of the losses so far, with the current batch, each item counting the same.
        """
        loss = loss.detach()
        before = self._with_current
        if items is None:
            mean = loss
            if before.mean is not None:
                mean = before.mean + (loss - before.mean) / (self.batches + 1)
            self._with_current = before._replace(mean=mean)
            return mean

        # Counts are exact in these, unlike in half precision.
        dtype = torch.float64 if loss.dtype == torch.float64 else torch.float32
        items = items.to(dtype)
        share = items if share is None else share.to(dtype)
        if self._weight is None:
            self._weight = share
        else:
            self._weight = self._weight + share

        # The mean over no items is NaN.
        loss = torch.where(share > 0, loss, torch.zeros_like(loss))
        if before.mean is None or before.items is None:
            first = _Items(items, loss * share, unit=items.clamp(min=1))
            self._with_current = _Losses(loss, first)
            return loss

        number = before.items.number + items
        total = before.items.total + loss * share
        mean = before.mean + (loss - before.mean) * (items / number.clamp(min=1))
        # Several losses of the first batch make up the unit together.
        unit = before.items.unit
        if self.batches == 0:
            unit = number.clamp(min=1)
        self._with_current = _Losses(mean, _Items(number, total, unit))
        return mean

    def weighted(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss of the current batch as it goes into the backward pass: in units of
        the first batch.
        """
        items = self._with_current.items
        if self._weight is None or items is None:
            return loss
        weighted = loss * (self._weight / items.unit).to(loss.dtype)
        return torch.where(self._weight > 0, weighted, torch.zeros_like(weighted))

    def count_current(self) -> None:
        """Count the current batch, whose loss had its backward pass."""
        if self.has_current:
            self.batches += 1
            self._counted = self._with_current
            self._weight = None

    def finish(self, parameters: Iterable[nn.Parameter], divisor: int) -> None:
        """Turn the sums of gradients into the gradient of the mean loss of the step, and begin the
        next one.

        Without a batch that was counted this is a no-op.

        Args:
            parameters: those that are trained.
            divisor: of the loss of each batch.
        """
        if self.batches == 0:
            return
        finished_loss, items = self._counted
        factor: float | torch.Tensor = divisor / self.batches
        if items is not None:
            number = items.number.clamp(min=1)
            factor = divisor * items.unit / number
            finished_loss = items.total / number

        # A single batch is in its own unit already.
        if self.batches > 1 or divisor > 1:
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            _scale(gradients, factor)
        self.clear()
        self.finished_loss = finished_loss

    def state_dict(self) -> dict[str, Any]:
        """Return the state of an incomplete step for `load_state_dict`, without the current
        batch.
        """
        mean, items = self._counted
        state: dict[str, Any] = {"batches": self.batches, "loss": mean}
        if items is not None:
            # The names of version 0.1.0, which saved the attributes.
            state |= {"_items": items.number, "_total": items.total, "_unit": items.unit}
        return state

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore the result of `state_dict`.

        Args:
            state: of the same process.
            device: of the module.
        """
        values = {
            name: value.to(device)
            for name, value in state.items()
            if isinstance(value, torch.Tensor)
        }
        mean = values.get("loss")
        items = None
        if mean is not None and "_items" in values:
            # Version 0.1.0 did not save the total.
            total = values.get("_total", mean * values["_items"])
            items = _Items(values["_items"], total, values["_unit"])

        self.batches = state["batches"]
        self._counted = _Losses(mean, items)
        self.begin_batch()


def is_inside_step(trainer: Trainer, loop_position: LoopPosition) -> bool:
    """Return whether batches were trained on that no optimizer step was taken with.

    Lightning takes one at the end of an epoch; a strategy that accumulates by itself goes on with
    the next epoch.
    """
    if trainer.strategy.handles_gradient_accumulation:
        counts: Any = trainer.fit_loop.epoch_loop.batch_progress.total
        return counts.processed % trainer.accumulate_grad_batches > 0
    return loop_position.done % trainer.accumulate_grad_batches > 0 and not loop_position.at_end


def step_so_far(trainer: Trainer) -> dict[str, Any] | None:
    """Return the state of an incomplete step: gradients of this process, and the `StepWindow`.

    None where the strategy keeps the gradients to itself, which is warned of: DeepSpeed always,
    FSDP those that are not sharded yet.
    """
    module = trainer.lightning_module
    gradients: dict[str, torch.Tensor] = {}
    is_hidden = trainer.strategy.handles_gradient_accumulation
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            gradients[name] = local_part(parameter.grad)
            if gradients[name].shape != local_part(parameter).shape:
                is_hidden = True

    # Modules of other libraries have no window.
    window = getattr(module, "window", None)
    state = None
    has_trained = True
    if isinstance(window, StepWindow):
        state = window.state_dict()
        has_trained = window.batches > 0  # not if `training_step` returned None

    if is_hidden or (has_trained and not gradients):
        _log.warning(
            "A checkpoint inside of a step of %s batches lacks their gradients, hidden by %s: save "
            "after whole steps.",
            trainer.accumulate_grad_batches,
            type(trainer.strategy).__name__,
        )
        return None
    return {"gradients": gradients, "window": state}


def load_step(module: Any, step: dict[str, Any]) -> None:
    """Restore the result of `step_so_far`.

    Args:
        module: a LightningModule.
        step: of the same process, with the same strategy.
    """
    for name, parameter in module.named_parameters():
        if name in step["gradients"]:
            parameter.grad = torch.empty_like(parameter)
            local_part(parameter.grad).copy_(step["gradients"][name])
    window = getattr(module, "window", None)
    if step["window"] is not None and isinstance(window, StepWindow):
        window.load_state_dict(step["window"], module.device)


def _scale(gradients: list[torch.Tensor], factor: float | torch.Tensor) -> None:
    """Multiply gradients by a factor, in place; a factor on a device is not read."""
    if isinstance(factor, float) and factor == 1.0:
        return
    with torch.no_grad():
        for gradient in gradients:
            own = local_part(gradient)
            if isinstance(factor, torch.Tensor):
                own.mul_(factor.to(own.device))
            else:
                own.mul_(factor)
