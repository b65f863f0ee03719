"""The weight of a micro-batch's loss in its optimizer step: every item counts the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..models.inspection import base_of_adapter, predicts_next_token
from .noted_items import NotedItems

IGNORED_LABEL = -100
"""The label of positions that do not count."""

Divisor = Tensor | float
"""The divisor of a mean loss over a micro-batch; a tensor that is infinite if no item of the
micro-batch counts.
"""


def count_labels(labels: object, *, shifted: bool) -> Tensor | None:
    """Count the labels over which a mean loss of a batch is taken.

    Args:
        labels: the labels of the batch; class numbers are counted without those that are -100.
        shifted: the first label of each row is not compared with anything, as in causal language
            models.

    Returns:
        The count on the device of the labels; None where labels are not class numbers, so that rows
        count instead.
    """
    if not isinstance(labels, Tensor) or labels.ndim == 0:
        return None
    is_class_number = not labels.is_floating_point() and labels.dtype != torch.bool
    if not is_class_number:
        return None

    # No prediction is compared with the first label of a row.
    if shifted:
        labels = labels[..., 1:]
    return labels.ne(IGNORED_LABEL).sum()


def shifts_labels(model: object) -> bool:
    """Return whether a model that computes a mean loss leaves out the first label of each row."""
    return predicts_next_token(base_of_adapter(model))


def divide_mean(loss: Tensor, divisor: Divisor) -> Tensor:
    """Divide the mean loss of a micro-batch, in the precision of the loss; nothing waits for the
    device.

    Args:
        loss: a scalar. NaN, the mean over no items, becomes 0 where the divisor is infinite.
        divisor: see `Divisor`.
    """
    if isinstance(divisor, Tensor):
        divisor = divisor.to(loss.device)
        share = (loss / divisor).to(loss.dtype)
        nothing = torch.zeros_like(share)
        return torch.where(torch.isinf(divisor), nothing, share)
    return loss if divisor == 1 else loss / divisor


class MicroBatchLoss:
    """Weighs the loss of one micro-batch.

    The losses of a step then add up to the mean over all of its items.

    The decision is taken after the forward pass. A loss that was computed from `num_items_in_batch`
    has been divided by the items of the whole step. Any other loss is a mean over its own
    micro-batch, and is divided by the items that the step has for each one of the micro-batch. Only
    the first of `weigh_in_step` and `weigh` divides a loss.

    Args:
        items: `num_items_in_batch` of the step as the user's code gets it; None if it is not
            counted.
        divisor: the divisor of a mean over this micro-batch.
        parts: micro-batches of the step in this process.
        is_scaled: whether the loss is divided by the items of the step, where the user's code
            declares it.
        may_be_divided: an override of `Trainer.training_step` may have divided the loss by the
            number of micro-batches before its backward pass, as versions of that method in
            transformers do.

    Attributes:
        items: as passed.
        divisor: as passed.
        is_weighed_by_trainer: the losses of this micro-batch go through `Trainer.training_step` or
            `accelerator.backward`.
    """

    def __init__(
        self,
        items: Tensor | int | None,
        divisor: Divisor,
        parts: int,
        *,
        is_scaled: bool | None = None,
        may_be_divided: bool = False,
    ) -> None:
        self.items = items
        self.divisor = divisor
        self._parts = parts
        self._is_scaled = is_scaled
        self._may_be_divided = may_be_divided
        self._result: Tensor | None = None
        """The loss that was weighed last."""
        self._unweighed: Tensor | None = None
        """The loss of the first backward pass of an override, before it was weighed."""
        self._is_returned_weighed = False
        self.is_weighed_by_trainer = False

    @property
    def is_mean(self) -> bool:
        """Return whether the loss computed so far is a mean over this micro-batch."""
        if self._is_scaled is not None:
            return not self._is_scaled
        return not (isinstance(self.items, NotedItems) and self.items.use.noted)

    def weigh_in_step(self, loss: Tensor) -> Tensor:
        """Return the loss that `Trainer.training_step` hands to the backward pass, and returns."""
        self._is_returned_weighed = True
        self.is_weighed_by_trainer = True
        self._result = loss
        if self.is_mean:
            self._result = divide_mean(loss, self.divisor)
        return self._result

    def weigh(self, loss: Tensor) -> Tensor:
        """Weigh the loss of a backward pass by the share of the micro-batch in the step.

        Args:
            loss: the loss of the forward pass; the result of `weigh_in_step` is returned unchanged.
        """
        if loss is self._result:
            return loss
        if self._unweighed is None:
            self._unweighed = loss.detach()
        # Divided by the override, so neither this nor the log divides it again.
        if self._may_be_divided and _is_divided_by(loss, self._parts):
            self._is_returned_weighed = True
            self._result = loss
        elif self.is_mean:
            self._result = divide_mean(loss, self.divisor)
        else:
            self._result = loss
        return self._result

    def to_log(self, loss: Tensor) -> Tensor:
        """Weigh the loss that `Trainer.training_step` returned, for the log.

        An override returns the loss of its backward pass, before it was weighed here; or divided by
        the number of micro-batches, which is then left as it is.
        """
        if self._is_returned_weighed or self._unweighed is None or not self.is_mean:
            return loss

        # Compared on the device, so that the host does not wait.
        unweighed = self._unweighed.to(loss)
        is_unchanged = torch.isclose(loss, unweighed, equal_nan=True)
        is_divided = torch.isclose(loss * self._parts, unweighed, equal_nan=True) & ~is_unchanged
        return torch.where(is_divided, loss, divide_mean(loss, self.divisor))


def _is_divided_by(loss: Tensor, parts: int) -> bool:
    """Return whether the last operation on a loss was the division by a number of micro-batches."""
    operation = loss.grad_fn
    if parts == 1 or operation is None or operation.name() != "DivBackward0":
        return False
    # torch keeps a Python number as a tensor on the CPU; any other would be waited for.
    divisor = getattr(operation, "_saved_other", None)
    return (
        isinstance(divisor, Tensor)
        and divisor.device.type == "cpu"
        and divisor.ndim == 0
        and divisor.item() == parts
    )


class WeighsBackward(TorchFunctionMode):
    """Weigh the losses on which the code in the block calls `loss.backward()` itself.

    Args:
        micro_batch: the micro-batch of the block.
    """

    def __init__(self, micro_batch: MicroBatchLoss) -> None:
        super().__init__()
        self.micro_batch = micro_batch

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> object:
        """Call the function; `Tensor.backward` gets the weighed loss, unless that was weighed."""
        if func is Tensor.backward and not self.micro_batch.is_weighed_by_trainer:
            loss, *others = args
            args = (self.micro_batch.weigh(loss), *others)
        return func(*args, **(kwargs or {}))
