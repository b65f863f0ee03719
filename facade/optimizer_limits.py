"""What optimizers that step in the backward pass cannot go together with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..lightning_modules.names import OptimizerNames
from ..lightning_modules.optimizers import LayerwiseOptimizer, is_layerwise, steps_in_backward

if TYPE_CHECKING:
    from .arguments import TrainingArguments


def check_name(args: TrainingArguments) -> None:
    """Look at `optim` and the arguments beside it, before an optimizer is made.

    Raises:
        ValueError: fp16, or gradients of several batches.
        NotImplementedError: several processes.
    """
    name = OptimizerNames(args.optim)
    if is_layerwise(name):
        _check(args, f"optim={name.value!r}", layerwise=True)
    elif name in (OptimizerNames.LOMO, OptimizerNames.ADALOMO):
        _check(args, f"optim={name.value!r}", layerwise=False)


def check(args: TrainingArguments, optimizer: Any) -> None:
    """Look at an optimizer that somebody made, for the same reasons as `check_name`."""
    layerwise = isinstance(optimizer, LayerwiseOptimizer)
    if layerwise or steps_in_backward(optimizer):
        _check(args, f"The optimizer {type(optimizer).__name__}", layerwise=layerwise)


def _check(args: TrainingArguments, shown: str, *, layerwise: bool) -> None:
    steps = f"{shown} steps in each backward pass, one parameter after another"
    if args.world_size > 1:
        raise NotImplementedError(
            f"{steps}, before the gradients of the {args.world_size} processes are brought together: they would drift "
            "apart. Train in one process, or choose an optimizer that steps at once, such as 'galore_adamw'."
        )
    if layerwise and args.gradient_accumulation_steps > 1:
        raise ValueError(
            f"{steps}, so that gradient_accumulation_steps={args.gradient_accumulation_steps} would have no effect. "
            "Set it to 1 and raise per_device_train_batch_size, or choose the optimizer without 'layerwise'."
        )
    if args.fp16:
        raise ValueError(f"{steps}, where the gradients still hold the loss scale of fp16=True. Set bf16=True instead.")
