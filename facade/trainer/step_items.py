"""Count the items of an optimizer step, by which the losses of its micro-batches are scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...lightning_modules.common.device_copies import to_device_async
from ...lightning_modules.common.nested import count_rows
from ...lightning_modules.common.version_behavior import version_behavior
from ...lightning_modules.data.uneven_inputs import may_differ_in_rows
from ...lightning_modules.models.pretrained import shifts_smoothed_labels
from ...lightning_modules.training.micro_batch_loss import (
    IGNORED_LABELS,
    Divisor,
    MicroBatchLoss,
    count_labels,
    ignored_labels,
    shifts_labels,
)
from ...lightning_modules.training.tracked_items import TrackedItems
from ..arguments.rank_groups import (
    copies_of_batches,
    data_parallel_size,
    parts_of_sequences,
    ranks_counted_together,
)
from .overrides import may_use_number

if TYPE_CHECKING:
    from .. import Trainer


class LossWeights:
    """Create the `MicroBatchLoss` of each micro-batch.

    Properties of the model and of the user's code that do not change during a training are
    determined once.

    Args:
        trainer: the Trainer that trains.
        loader: its data.

    Attributes:
        ranks: the ranks that get different batches.
        shares_batches: several ranks compute the loss of a step, even one of a single micro-batch.
    """

    def __init__(self, trainer: Trainer, loader: object) -> None:
        args = trainer.args
        self._trainer = trainer
        self._device = args.device
        self.ranks = data_parallel_size(args)
        self.shares_batches = self.ranks * parts_of_sequences(args) > 1
        self._counts_all_ranks = self.ranks > 1 and args.average_tokens_across_devices
        self._gathers_rows = self._counts_all_ranks and may_differ_in_rows(loader)
        self._is_scaled = declares_scaled_loss(trainer)
        self._accumulation: int | None = None
        """Number by which the user's code may divide its losses, unless a step is shorter."""
        steps = args.gradient_accumulation_steps
        if steps > 1 and may_use_number(trainer, "gradient_accumulation_steps", steps):
            self._accumulation = steps
        self._shifted = _leaves_out_first_labels(trainer)
        self._ignored = ignored_labels(trainer.model)

        # Divisors are exact enough for losses in float64; not every device has that type.
        self._dtype = torch.float32
        if any(weight.dtype == torch.float64 for weight in trainer.model.parameters()):
            self._dtype = torch.float64

    def of_step(self, batches: list[Any], items: Any) -> list[MicroBatchLoss]:
        """Return the `MicroBatchLoss` of each micro-batch in an optimizer step.

        Args:
            batches: the micro-batches of the step in this process.
            items: `num_items_in_batch`; None if it is not counted.
        """
        # Track whether the user's code divides by the items, unless it declares that.
        tracked_items = items
        if items is not None and self._is_scaled is None:
            tracked_items = TrackedItems.of(items)

        own_divisors: set[int] = set()
        if self._accumulation is not None:
            own_divisors = {self._accumulation, len(batches)} - {1}

        micro_batches = []
        for divisor in self._divisors(batches, items):
            micro_batch = MicroBatchLoss(
                tracked_items,
                divisor,
                len(batches),
                is_scaled=self._is_scaled,
                own_divisors=own_divisors,
            )
            micro_batches.append(micro_batch)
        return micro_batches

    def scale_router_losses(self, micro_batch: MicroBatchLoss) -> AbstractContextManager[None]:
        """Return a context in which the balancing losses of mixtures of experts are scaled."""
        router_losses = self._trainer._lightrainer.router_losses
        if router_losses is None:
            return nullcontext()
        args = self._trainer.args
        factor = ranks_counted_together(args) * parts_of_sequences(args)
        return router_losses.scaled(micro_batch, factor)

    def _divisors(self, batches: list[Any], items: object) -> Sequence[Divisor]:
        """Return the divisor of each micro-batch's mean loss: items of the step / items of the
        micro-batch.

        Items are the labels that are not ignored, or the rows if the labels are not class indices.
        With `average_tokens_across_devices` they are counted over all processes, otherwise in this
        process. Nothing is counted if the user's code declares that it divides its losses itself.

        Args:
            batches: the micro-batches of the step in this process.
            items: `num_items_in_batch`; None if it is not counted.
        """
        if self._is_scaled:
            return [len(batches)] * len(batches)

        counts = [self._count_labels(batch) for batch in batches]
        labels = [count for count in counts if count is not None]
        has_labels = len(labels) == len(batches)

        # If the number of rows may differ, all processes must gather, whatever labels their batches
        # have.
        if self._gathers_rows or not has_labels:
            rows = [count_rows(batch) or 1 for batch in batches]
            all_rows: Divisor = sum(rows)
            if self._gathers_rows:
                all_rows = self._of_all_ranks(torch.full((), all_rows, device=self._device))
            if not has_labels:
                return [all_rows / own_rows for own_rows in rows]

        own_labels = to_device_async(torch.stack(labels), self._device)
        # At least 1, to avoid 0 / 0 if all labels of the step are ignored.
        all_labels = self._count_full(own_labels.sum(), items).clamp(min=1)
        return (all_labels.to(self._dtype) / own_labels).unbind()

    def _count_labels(self, batch: Any) -> Tensor | None:
        """Count the labels of a micro-batch over which a mean loss is taken; None if they are not
        class indices.
        """
        if not isinstance(batch, Mapping):
            return None
        if "shift_labels" in batch:
            return count_labels(batch["shift_labels"], shifted=False)
        labels = batch.get("labels")
        return count_labels(labels, shifted=self._shifted, ignored=self._ignored)

    def _count_full(self, own_labels: Tensor, items: object) -> Tensor:
        """Return the number of labels in the whole step, divided by the number of ranks.

        The division by the number of ranks compensates for averaging the gradients over them.

        Args:
            own_labels: number of labels in this process.
            items: `num_items_in_batch`; None if it is not counted.
        """
        if not self._counts_all_ranks:
            return own_labels

        # `items` can be reused if it counts the same labels.
        same_labels = not self._shifted and self._ignored == IGNORED_LABELS
        if (
            isinstance(items, Tensor)
            and same_labels
            and not version_behavior().counts_shifted_labels
        ):
            return items.to(self._dtype) / self.ranks

        return self._of_all_ranks(own_labels)

    def _of_all_ranks(self, count: Tensor) -> Tensor:
        """Return the mean of a count over the ranks that read different batches."""
        whole = self._trainer.accelerator.gather(count).sum()
        copies = copies_of_batches(self._trainer.args) * self.ranks
        return whole.to(self._dtype) / copies


def _leaves_out_first_labels(trainer: Trainer) -> bool:
    """Return whether the loss shifts labels, and therefore ignores the first label of each row."""
    if trainer.label_smoother is not None and trainer.compute_loss_func is None:
        return shifts_smoothed_labels(trainer.model)
    return shifts_labels(trainer.model)


def declares_scaled_loss(trainer: Trainer) -> bool | None:
    """Return whether the user's code declares that it divides its loss by the items of the step.

    Code declares it by `loss_is_scaled_for_ga`, or, as some libraries do, by a `compute_loss_func`
    that is not callable. Returns None without a declaration.
    """
    if trainer.loss_is_scaled_for_ga is not None:
        return trainer.loss_is_scaled_for_ga
    if trainer.compute_loss_func is not None and not callable(trainer.compute_loss_func):
        return True
    return None


def equal_part(trainer: Trainer, items: Any) -> MicroBatchLoss:
    """Return the `MicroBatchLoss` of a micro-batch in a step whose micro-batches have equal weight.

    Args:
        trainer: the Trainer.
        items: `num_items_in_batch`; None if it is not counted.
    """
    parts = trainer.current_gradient_accumulation_steps
    tracked_items = None
    if items is not None:
        tracked_items = TrackedItems.of(items)
    return MicroBatchLoss(tracked_items, parts, parts, is_scaled=declares_scaled_loss(trainer))
