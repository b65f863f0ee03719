"""Scale the loss of each micro-batch so that all items of an optimizer step have equal weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..models.pretrained import predicts_next_token
from ..models.wrappers import base_of_adapter
from .tracked_items import TrackedItems

IGNORED_LABELS = (-100,)
"""Labels that most models ignore."""

Divisor = Tensor | float
"""The divisor of a mean loss over a micro-batch: items of the step / items of the micro-batch.

If all items of the micro-batch are ignored, it is a tensor with the value infinity.
"""


def count_labels(
    labels: object, *, shifted: bool, ignored: Sequence[int] = IGNORED_LABELS
) -> Tensor | None:
    """Count the labels over which a mean loss of a batch is taken.

    Args:
        labels: the labels of the batch; only class indices are counted.
        shifted: whether the first label of each row is unused, as in causal language models.
        ignored: class indices that are not counted; see `ignored_labels`.

    Returns:
        The count, on the device of the labels; None if the labels are not class indices, so that
        rows are counted instead.
    """
    if not isinstance(labels, Tensor) or labels.ndim == 0:
        return None
    is_class_number = not labels.is_floating_point() and labels.dtype != torch.bool
    if not is_class_number:
        return None

    # The first label of each row is not compared with any prediction.
    if shifted:
        labels = labels[..., 1:]
    counted = torch.ones_like(labels, dtype=torch.bool)
    for label in ignored:
        counted &= labels.ne(label)
    return counted.sum()


def shifts_labels(model: object) -> bool:
    """Return whether the mean loss of a model excludes the first label of each row."""
    return predicts_next_token(base_of_adapter(model))


def ignored_labels(model: nn.Module) -> Sequence[int]:
    """Return the labels that the mean loss of a model ignores, such as 255 in segmentation.

    The segmentation head may be a subclass, and a submodule of the user's module.
    """
    for module in model.modules():
        names = [base.__name__ for base in type(module).__mro__]
        if not any(name.endswith("ForSemanticSegmentation") for name in names):
            continue
        config = getattr(module, "config", None)
        # A binary head takes the mean over all pixels.
        if getattr(config, "num_labels", None) == 1:
            return ()
        for name in ("semantic_loss_ignore_index", "loss_ignore_index"):
            if hasattr(config, name):
                return (*IGNORED_LABELS, getattr(config, name))
    return IGNORED_LABELS


def divide_mean(loss: Tensor, divisor: Divisor) -> Tensor:
    """Divide the mean loss of a micro-batch, keeping its dtype and without device synchronization.

    Args:
        loss: a scalar. If the divisor is infinite, the result is 0, even if the loss is NaN as the
            mean of zero items.
        divisor: see `Divisor`.
    """
    if isinstance(divisor, Tensor):
        divisor = divisor.to(loss.device)
        share = (loss / divisor).to(loss.dtype)
        nothing = torch.zeros_like(share)
        return torch.where(torch.isinf(divisor), nothing, share)
    return loss if divisor == 1 else loss / divisor


class MicroBatchLoss:
    """Scales the loss of one micro-batch.

    The losses of a step then add up to the mean over all of its items.

    Whether to divide is decided after the forward pass. A loss that was computed from
    `num_items_in_batch` has already been divided by the items of the whole step, and is not
    changed. Any other loss is a mean over its own micro-batch. Its weight is items of the
    micro-batch / items of the step, so it is divided by `divisor`.

    Each loss is divided only once, by the first method that receives it, which depends on the code
    that runs the backward pass:

    - `Trainer.training_step` calls `scale_in_step`. Its `accelerator.backward` then calls `scale`,
      which returns that loss unchanged.
    - An override of `training_step` calls `accelerator.backward`, which calls `scale`.
    - An override calls `loss.backward()` itself, for which `ScaledBackward` calls `scale`.

    Args:
        items: `num_items_in_batch` of the step as passed to the user's code; None if it is not
            counted.
        divisor: the divisor of a mean over this micro-batch.
        parts: number of micro-batches of the step in this process.
        is_scaled: whether the user's code declares that its loss is already divided by the items of
            the step; False if it is a mean; None without a declaration.
        own_divisors: numbers of micro-batches by which an override of `Trainer.training_step` may
            have divided the loss before its backward pass, as this method does in some versions of
            transformers. `_is_divided` detects this.

    Attributes:
        items: as passed.
        divisor: as passed.
        is_scaled_by_trainer: whether the loss was passed to `Trainer.training_step` or
            `accelerator.backward`.
    """

    def __init__(
        self,
        items: Tensor | int | None,
        divisor: Divisor,
        parts: int,
        *,
        is_scaled: bool | None = None,
        own_divisors: Collection[int] = (),
    ) -> None:
        self.items = items
        self.divisor = divisor
        self._parts = parts
        self._declaration = is_scaled
        self._own_divisors = own_divisors
        self._last_result: Tensor | None = None
        """The result of the last call of `scale_in_step` or `scale`."""
        self._unscaled_loss: Tensor | None = None
        """The loss of the first backward pass of an override, before it was scaled."""
        self._is_log_scaled = False
        """Whether the loss to log is scaled already: the user or the Trainer has divided it."""
        self.is_scaled_by_trainer = False

    @property
    def is_mean(self) -> bool:
        """Return whether the loss computed so far is a mean over this micro-batch."""
        if self._declaration is not None:
            return not self._declaration
        return not (isinstance(self.items, TrackedItems) and self.items.use.is_used)

    def scale_in_step(self, loss: Tensor) -> Tensor:
        """Scale the loss that `Trainer.training_step` passes to the backward pass and returns."""
        self._is_log_scaled = True
        self.is_scaled_by_trainer = True
        self._last_result = loss
        if self.is_mean:
            self._last_result = divide_mean(loss, self.divisor)
        return self._last_result

    def scale(self, loss: Tensor) -> Tensor:
        """Scale the loss of a backward pass by the share of the micro-batch in the step.

        Args:
            loss: the loss of the forward pass; the result of `scale_in_step` is returned unchanged.
        """
        if loss is self._last_result:
            return loss
        if self._unscaled_loss is None:
            self._unscaled_loss = loss.detach()

        self._last_result = loss
        if self._own_divisors and _is_divided(loss, self._own_divisors):
            # Do not divide the logged loss again.
            self._is_log_scaled = True
        elif self.is_mean:
            self._last_result = divide_mean(loss, self.divisor)
        return self._last_result

    def to_log(self, loss: Tensor) -> Tensor:
        """Scale the loss that `Trainer.training_step` returned, for the log.

        An override usually returns the unscaled loss of its backward pass. Some divide it by the
        number of micro-batches after the backward pass; in this case it is not changed.
        """
        if self._is_log_scaled or self._unscaled_loss is None or not self.is_mean:
            return loss

        # Compare on the device, to avoid a synchronization.
        unscaled_loss = self._unscaled_loss.to(loss)
        is_unchanged = torch.isclose(loss, unscaled_loss, equal_nan=True)
        is_share = torch.isclose(loss * self._parts, unscaled_loss, equal_nan=True)
        is_divided = is_share & ~is_unchanged
        return torch.where(is_divided, loss, divide_mean(loss, self.divisor))


def _is_divided(loss: Tensor, divisors: Collection[int]) -> bool:
    """Return whether a loss was divided by a number of micro-batches.

    This detects whether an override of `training_step` has scaled its loss, for example by `loss =
    loss / self.args.gradient_accumulation_steps`. It is only called if the user's code refers to
    that number. Values cannot be compared, because the undivided loss is unknown if the override
    does not call `compute_loss`, so the autograd graph is inspected.

    It detects `loss / n` and `loss * (1 / n)` with a Python number, also if the result is then
    scaled, added up or averaged. If losses are added up, all of them must be scaled by numbers, and
    at least one by 1 / n: the others may have a factor that includes it, as in `(weight / n) *
    loss`. In any other form the loss is scaled like a mean, unless the class declares
    `loss_is_scaled_for_ga = True`.

    Args:
        loss: the loss of a backward pass.
        divisors: the numbers to look for.
    """
    is_divided = False
    # Follow the graph back through operations that keep the loss divided. Each entry is an
    # operation, and whether its result is scaled by a number after it.
    pending: list[tuple[Any, bool]] = [(loss.grad_fn, False)]
    while pending:
        operation, is_scaled = pending.pop()
        factor = _factor_of(operation)
        if factor is not None:
            is_scaled = True
            if any(math.isclose(factor * number, 1, rel_tol=1e-6) for number in divisors):
                is_divided = True
                continue

        inputs = _linear_inputs(operation)
        if not inputs and not is_scaled:
            return False
        pending.extend((function, is_scaled) for function in inputs)
    return is_divided


_PRODUCTS = {"DivBackward0", "MulBackward0"}

_LINEAR_OPERATIONS = {
    *_PRODUCTS,
    "AddBackward0",
    "MeanBackward0",
    "NegBackward0",
    "SubBackward0",
    "SumBackward0",
    "ToCopyBackward0",
}
"""Operations of autograd whose result is divided by n if their inputs are."""


def _linear_inputs(operation: Any) -> list[Any]:
    """Return the operations whose results an operation of autograd scales or adds up.

    Returns an empty list for other operations, such as the product of two losses.
    """
    if operation is None or operation.name() not in _LINEAR_OPERATIONS:
        return []
    inputs = [function for function, _ in operation.next_functions if function is not None]
    is_product = operation.name() in _PRODUCTS
    return [] if is_product and len(inputs) > 1 else inputs


def _factor_of(operation: Any) -> float | None:
    """Return the number by which an operation of autograd multiplies; None for other operations."""
    if operation is None or operation.name() not in _PRODUCTS:
        return None
    # torch saves a Python number as a scalar tensor on the CPU. A factor on another device was not
    # a Python number, and reading it would synchronize with that device.
    factor = getattr(operation, "_saved_other", None)
    if not isinstance(factor, Tensor) or factor.device.type != "cpu":
        return None
    if factor.ndim > 0 or factor.requires_grad:
        return None
    number = float(factor)
    if operation.name() == "DivBackward0":
        return 1 / number if number else None
    return number


class ScaledBackward(TorchFunctionMode):
    """Torch function mode in which `loss.backward()` scales the loss first.

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
        """Call the function; scale the loss of `Tensor.backward` unless it is scaled already."""
        if func is Tensor.backward and not self.micro_batch.is_scaled_by_trainer:
            loss, *others = args
            args = (self.micro_batch.scale(loss), *others)
        return func(*args, **(kwargs or {}))
