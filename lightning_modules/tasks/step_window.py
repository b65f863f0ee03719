"""Give all items of an optimizer step equal weight under automatic optimization.

Lightning divides the loss of each batch by `accumulate_grad_batches`. As a result, tokens in a
batch with few tokens have a larger weight than others, and the gradients of a shorter last step of
an epoch are too small. The Trainer API divides the sum of all losses by the number of items in the
step. To match it, losses are weighted before the backward pass, and gradients are scaled after the
last one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ..common.dtensor import local_shard
from ..internals.lightning_import import LightningModule, Trainer
from ..internals.loop_states import LoopPosition

_log = logging.getLogger(__name__)


def batches_per_step(trainer: Trainer) -> int:
    """Return the number of batches per optimizer step; 1 if the strategy accumulates itself."""
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


def zero_without_items(loss: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """Return 0 instead of a loss over no items, which is NaN if it is a mean."""
    nothing = torch.zeros_like(loss)
    return torch.where(items > 0, loss, nothing)


class _Items(NamedTuple):
    """The items of some batches, over which their losses are means.

    Attributes:
        number: number of items over all processes.
        total: sum over the batches of loss times items.
        unit: number of items in the first batch. Weights are relative to it, because the number of
            items in the whole step is unknown before its end.
    """

    number: torch.Tensor
    total: torch.Tensor
    unit: torch.Tensor


class _Losses(NamedTuple):
    """The losses of some batches of a step.

    Attributes:
        mean: the mean of the losses, with equal weight for all items, or for all losses if the
            number of items is unknown.
        items: the items of the batches; None if unknown.
    """

    mean: torch.Tensor | None = None
    items: _Items | None = None


class StepWindow:
    """The batches of an incomplete optimizer step.

    Batches are counted after their backward pass; the current batch is added but not yet counted.
    No method synchronises with the device.

    Attributes:
        batches: number of batches whose backward pass is done.
        finished_loss: the loss of the last finished step, until the next `clear`. With several
            processes, their mean is the loss of the step.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin a step."""
        self.batches = 0
        self.finished_loss: torch.Tensor | None = None
        # The losses of the batches that had a backward pass.
        self._counted = _Losses()
        self.begin_batch()

    def begin_batch(self) -> None:
        """Start a batch, and drop the previous one if its loss had no backward pass.

        Lightning skips the backward pass if `training_step` returns None.
        """
        # The counted batches and the current one.
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
        """Add a loss of the current batch.

        The weight of a batch with several losses is the sum of their items.

        Args:
            loss: the mean loss over the items of all processes.
            items: number of items that are not ignored, over all processes; None to give all
                batches equal weight.
            share: number of items in this process times the number of processes, because gradients
                are averaged; None in a single process.

        Returns:
            The mean of the losses so far, including the current batch, with equal weight for all
            items.
        """
        loss = loss.detach()
        before = self._with_current
        if items is None:
            mean = self._mean_with(loss, before)
            self._with_current = before._replace(mean=mean)
            return mean

        # Counts are not exact in half precision.
        dtype = torch.float32
        if loss.dtype == torch.float64:
            dtype = torch.float64
        items = items.to(dtype)
        if share is None:
            share = items
        share = share.to(dtype)
        if self._weight is None:
            self._weight = share
        else:
            self._weight = self._weight + share

        loss = zero_without_items(loss, items)
        if before.mean is None or before.items is None:
            total = loss * items
            unit = items.clamp(min=1)
            first = _Items(items, total, unit)
            self._with_current = _Losses(loss, first)
            return loss

        # Running mean, in which each loss is weighted by its share of the items so far.
        number = before.items.number + items
        total = before.items.total + loss * items
        share_of_items = items / number.clamp(min=1)
        mean = before.mean + (loss - before.mean) * share_of_items
        # The unit is the sum over all losses of the first batch.
        unit = before.items.unit
        if self.batches == 0:
            unit = number.clamp(min=1)
        all_items = _Items(number, total, unit)
        self._with_current = _Losses(mean, all_items)
        return mean

    def replace_loss(self, loss: torch.Tensor) -> None:
        """Replace the losses that were added for the current batch in the loss of the step.

        Args:
            loss: the loss of this process that was made of them.
        """
        loss = loss.detach()
        counted = self._counted
        current = self._with_current
        if self._weight is None or current.items is None:
            mean = self._mean_with(loss, counted)
            self._with_current = current._replace(mean=mean)
            return

        total = zero_without_items(loss * self._weight, self._weight)
        if counted.items is not None:
            total = counted.items.total + total
        items = current.items._replace(total=total)
        self._with_current = current._replace(items=items)

    def _mean_with(self, loss: torch.Tensor, before: _Losses) -> torch.Tensor:
        """Return the mean of earlier losses and that of the current batch, with equal weight."""
        if before.mean is None:
            return loss
        return before.mean + (loss - before.mean) / (self.batches + 1)

    def weighted(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss of the current batch for the backward pass, weighted relative to the
        first.
        """
        items = self._with_current.items
        if self._weight is None or items is None:
            return loss
        relative_weight = self._weight / items.unit
        weighted = loss * relative_weight.to(loss.dtype)
        return zero_without_items(weighted, self._weight)

    def count_current(self) -> None:
        """Count the current batch, whose loss had its backward pass."""
        if self.has_current:
            self.batches += 1
            self._counted = self._with_current
            self._weight = None

    def finish(self, parameters: Iterable[nn.Parameter], divisor: int) -> None:
        """Scale the accumulated gradients to the gradient of the mean loss, and start the next
        step.

        Does nothing if no batch was counted.

        Args:
            parameters: the trained parameters.
            divisor: the number by which Lightning has divided the loss of each batch.
        """
        if self.batches == 0:
            return

        # Lightning has divided each loss by `divisor`, and weighted losses are relative to the
        # first batch. Rescale the gradients to those of the sum over all items divided by their
        # number.
        finished_loss, items = self._counted
        factor: float | torch.Tensor = divisor / self.batches
        if items is not None:
            number = items.number.clamp(min=1)
            factor = divisor * items.unit / number
            finished_loss = items.total / number

        # A single batch needs no scaling.
        if self.batches > 1 or divisor > 1:
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            _scale(gradients, factor)
        self.clear()
        self.finished_loss = finished_loss

    def state_dict(self) -> dict[str, Any]:
        """Return the state of an incomplete step, without the current batch."""
        mean, items = self._counted
        state: dict[str, Any] = {"batches": self.batches, "loss": mean}
        if items is not None:
            state["_items"] = items.number
            state["_total"] = items.total
            state["_unit"] = items.unit
        return state

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore the result of `state_dict`.

        Args:
            state: the state of the same rank.
            device: the device of the module.
        """
        mean = state["loss"]
        if mean is not None:
            mean = mean.to(device)
        items = None
        if "_items" in state:
            items = _Items(
                number=state["_items"].to(device),
                total=state["_total"].to(device),
                unit=state["_unit"].to(device),
            )

        self.batches = state["batches"]
        self._counted = _Losses(mean, items)
        self.begin_batch()


def is_inside_step(trainer: Trainer, loop_position: LoopPosition) -> bool:
    """Return whether batches were trained whose optimizer step is not done yet.

    Lightning always steps at the end of an epoch, but a strategy that accumulates itself continues
    the step in the next epoch.
    """
    if trainer.strategy.handles_gradient_accumulation:
        total: Any = trainer.fit_loop.epoch_loop.batch_progress.total
        return total.processed % trainer.accumulate_grad_batches > 0
    return loop_position.done % trainer.accumulate_grad_batches > 0 and not loop_position.at_end


def incomplete_step(trainer: Trainer) -> dict[str, Any] | None:
    """Return the state of an incomplete step: the gradients of this process and the `StepWindow`.

    Returns None, with a warning, if the strategy does not expose gradients: DeepSpeed never does,
    and FSDP only after they are sharded.
    """
    module = trainer.lightning_module
    gradients: dict[str, torch.Tensor] = {}
    is_hidden = trainer.strategy.handles_gradient_accumulation
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            gradients[name] = local_shard(parameter.grad)
            if gradients[name].shape != local_shard(parameter).shape:
                is_hidden = True

    # Modules of other libraries have no window.
    window = getattr(module, "window", None)
    window_state = None
    has_trained = True
    if isinstance(window, StepWindow):
        window_state = window.state_dict()
        # Nothing was trained if `training_step` always returned None.
        has_trained = window.batches > 0

    if is_hidden or (has_trained and not gradients):
        _log.warning(
            "A checkpoint inside a step of %s batches lacks their gradients, which %s does not "
            "expose. Save after whole steps.",
            trainer.accumulate_grad_batches,
            type(trainer.strategy).__name__,
        )
        return None
    return {"gradients": gradients, "window": window_state}


def load_step(module: LightningModule, step: dict[str, Any]) -> None:
    """Restore the result of `incomplete_step`.

    Args:
        module: a LightningModule.
        step: the step of the same rank, under the same strategy.
    """
    for name, parameter in module.named_parameters():
        if name in step["gradients"]:
            parameter.grad = torch.empty_like(parameter)
            local_shard(parameter.grad).copy_(step["gradients"][name])
    window = getattr(module, "window", None)
    if step["window"] is not None and isinstance(window, StepWindow):
        window.load_state_dict(step["window"], module.device)


def _scale(gradients: list[torch.Tensor], factor: float | torch.Tensor) -> None:
    """Multiply gradients by a factor in place, without reading a factor that is on a device."""
    if isinstance(factor, float) and factor == 1.0:
        return
    with torch.no_grad():
        for gradient in gradients:
            shard = local_shard(gradient)
            if isinstance(factor, torch.Tensor):
                shard.mul_(factor.to(shard.device))
            else:
                shard.mul_(factor)
