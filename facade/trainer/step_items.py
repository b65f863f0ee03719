"""The items of an optimizer step, and how the losses of its micro-batches are weighed by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...lightning_modules.common.followed import followed
from ...lightning_modules.common.nested import find_batch_size
from ...lightning_modules.models.inspection import shifts_smoothed_labels
from ...lightning_modules.training.micro_batch_loss import Divisor, MicroBatchLoss, count_labels, shifts_labels
from ...lightning_modules.training.noted_items import NotedItems
from ..arguments.parallelism import copies_of_batches, data_ranks
from .overrides import mentions

if TYPE_CHECKING:
    from .. import Trainer


class LossWeights:
    """Makes what weighs the losses of optimizer steps, with what stays the same from step to step.

    Args:
        trainer: the Trainer that trains.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._ranks = data_ranks(trainer.args)
        self._is_scaled = declares_scaled_loss(trainer)
        self._may_be_divided = mentions(trainer, "gradient_accumulation_steps")
        self._shifted = _leaves_out_first_labels(trainer)

    def of_step(self, batches: list[Any], items: Any, *, at_once: bool = False) -> Sequence[MicroBatchLoss | None]:
        """Return what weighs the loss of each micro-batch; None where a step is one batch of one process.

        Args:
            batches: the micro-batches of the step in this process.
            items: `num_items_in_batch`, None where it is not counted.
            at_once: gather the items of all processes now, as not all of them may get to the first loss.
        """
        parts = len(batches)
        if parts == 1 and self._ranks == 1:
            return (None,)

        step = StepItems(self._trainer, batches, items, shifted=self._shifted)
        if at_once:
            step.divisor(0)
        handed = items if items is None or self._is_scaled is not None else NotedItems.of(items)
        return [
            MicroBatchLoss(
                handed,
                partial(step.divisor, index),
                partial(step.share, index),
                parts,
                is_scaled=self._is_scaled,
                may_be_divided=self._may_be_divided,
            )
            for index in range(parts)
        ]


class StepItems:
    """Counts the items over which the losses of an optimizer step are means.

    These are the labels that count, or the rows of the batches where there are no class numbers among the labels. With
    `average_tokens_across_devices` those of all processes count, otherwise those of this process.

    Args:
        trainer: the Trainer.
        batches: the micro-batches of the step in this process.
        items: `num_items_in_batch` of the step; None where the Trainer has not counted it.
        shifted: the first label of each row does not count.
    """

    def __init__(self, trainer: Trainer, batches: list[Any], items: Any, *, shifted: bool) -> None:
        self._trainer = trainer
        self._items = items
        self._parts = len(batches)
        self._shifted = shifted
        self._divisors: Tensor | None = None

        counts = [self._labels_of(batch) for batch in batches]
        self._labels = [count for count in counts if count is not None]
        self._rows = [find_batch_size(batch) or 1 for batch in batches]

    def divisor(self, index: int) -> Divisor:
        """Return what the mean over a micro-batch is divided by.

        Where labels are counted, the first call for a step gathers their number from all processes.

        Args:
            index: of the micro-batch in the step.
        """
        if len(self._labels) < self._parts:
            # Processes have batches of the same number of rows.
            return sum(self._rows) / self._rows[index]

        if self._divisors is None:
            labels = torch.stack(self._labels).to(self._trainer.args.device)
            # Not 0 / 0 where no label of the whole step counts.
            self._divisors = self._count_whole(labels.sum()).clamp(min=1) / labels
        return self._divisors[index]

    def share(self, index: int) -> Tensor | float:
        """Return the part of the step that a micro-batch makes up, without waiting for other processes.

        Args:
            index: of the micro-batch in the step.
        """
        if len(self._labels) < self._parts:
            return self._rows[index] / sum(self._rows)
        if isinstance(self._items, Tensor):
            return self._labels[index] * data_ranks(self._trainer.args) / self._items
        return self._labels[index] / torch.stack(self._labels).sum().clamp(min=1)

    def _count_whole(self, own: Tensor) -> Tensor:
        """Return the labels of the whole step for each process, as gradients are averaged over the processes.

        Args:
            own: labels of this process.
        """
        args = self._trainer.args
        ranks = data_ranks(args)
        if ranks == 1 or not args.average_tokens_across_devices:
            return own
        if isinstance(self._items, Tensor) and not self._shifted and not followed().counts_shifted_labels:
            return self._items / ranks
        return self._trainer.accelerator.gather(own).sum() / (copies_of_batches(args) * ranks)

    def _labels_of(self, batch: Any) -> Tensor | None:
        if not isinstance(batch, Mapping):
            return None
        if "shift_labels" in batch:
            return count_labels(batch["shift_labels"], shifted=False)
        return count_labels(batch.get("labels"), shifted=self._shifted)


def _leaves_out_first_labels(trainer: Trainer) -> bool:
    """Return whether the first label of each row is not among those over which a mean is taken."""
    if trainer.label_smoother is not None and trainer.compute_loss_func is None:
        return shifts_smoothed_labels(trainer.model)
    return shifts_labels(trainer.model)


def declares_scaled_loss(trainer: Trainer) -> bool | None:
    """Return whether the user's code says that its loss is divided by the items of the step; None if it does not say.

    It says so by `loss_is_scaled_for_ga`, or as libraries do, by a `compute_loss_func` that is no function.
    """
    if trainer.loss_is_scaled_for_ga is not None:
        return trainer.loss_is_scaled_for_ga
    if trainer.compute_loss_func is not None and not callable(trainer.compute_loss_func):
        return True
    return None


def equal_part(trainer: Trainer, items: Any) -> MicroBatchLoss:
    """Return what weighs the loss of one of several micro-batches that count the same.

    Args:
        trainer: the Trainer.
        items: `num_items_in_batch`, None where it is not counted.
    """
    parts = trainer.current_gradient_accumulation_steps
    handed = None if items is None else NotedItems.of(items)
    return MicroBatchLoss(handed, lambda: parts, lambda: 1 / parts, parts, is_scaled=declares_scaled_loss(trainer))
