"""What an optimizer cannot go together with: other arguments, or a model that it does not train."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...lightning_modules.common.suggestions import OptimizerNames
from ...lightning_modules.models.inspection import unwrap_model
from ...lightning_modules.optim import LayerwiseOptimizer, is_layerwise, steps_in_backward

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)

_SHOWN = 4  # names of parameters in a message


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


def check_trains(optimizer: Any, model: nn.Module, called: nn.Module) -> list[nn.Parameter]:
    """Compare the parameters in an optimizer with those of the model that is about to be trained.

    Args:
        optimizer: as it is when the training begins.
        model: the user's model.
        called: the model in the wrappers in which it is called, or the model itself.

    Returns:
        The trainable parameters that are in no group; they are named in a warning.

    Raises:
        ValueError: the optimizer has none of the parameters, so that no step would change the model.
    """
    held = _held(optimizer)
    trained = dict([*_trained(called), *_trained(unwrap_model(model))])  # named as in the model, not as in a wrapper
    named = {one: name for name, one in trained.items()}
    left_out = {one: name for one, name in named.items() if one not in held}
    if not held or not left_out:
        return []
    kind, names = type(optimizer).__name__, list(left_out.values())
    listed = ", ".join(names[:_SHOWN]) + (", ..." if names[_SHOWN:] else "")
    if len(left_out) == len(named):
        raise ValueError(
            f"The optimizer ({kind}) holds none of the {len(named)} trainable parameters of the model ({listed}), so "
            "that no step would change it: it was made for another model, or before the model was replaced. Set "
            "trainer.optimizer = trainer.lr_scheduler = None to have new ones made, or pass optimizers made of "
            "model.parameters(). If the model is not to be trained, freeze it: model.requires_grad_(False)."
        )
    logger.warning(
        "%s of %s trainable parameters are in no group of the optimizer (%s) and will not change: %s. If that is "
        "meant, freeze them with requires_grad_(False), which saves their gradients; if layers were replaced after the "
        "optimizer was made, set trainer.optimizer = trainer.lr_scheduler = None.",
        len(left_out),
        len(named),
        kind,
        listed,
    )
    return list(left_out)


def _held(optimizer: Any) -> set[torch.Tensor]:
    """The parameters that it changes, or optimizers inside of it do."""
    inside = getattr(optimizer, "optimizer_dict", None)
    return set(inside) if inside is not None else {one for group in optimizer.param_groups for one in group["params"]}


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, one) for name, one in model.named_parameters() if one.requires_grad]


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
