"""Create and check the optimizer and the schedule of a Trainer."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from ...lightning_modules.common.enums import MUON
from ...lightning_modules.models.wrappers import unwrap_model
from ...lightning_modules.optim import (
    LayerwiseOptimizer,
    add_no_op_step,
    build_optimizer,
    freeze_parameters,
    parameter_groups,
    steps_in_backward,
)
from ...lightning_modules.optim.muon import matrices, split_groups
from ...lightning_modules.optim.schedules import get_scheduler

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

    from .. import Trainer
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)

_SHOWN = 4  # number of parameter names in a message


def create_optimizer(trainer: Trainer, model: Any) -> Optimizer:
    """Create the optimizer of a Trainer unless it has one; see `Trainer.create_optimizer`."""
    args = trainer.args
    if trainer.optimizer is None:
        if model is None:
            model = trainer.model
        groups = groups_of(trainer, model)
        if trainer.optimizer_cls_and_kwargs:
            optimizer_cls, kwargs = trainer.optimizer_cls_and_kwargs
        else:
            optimizer_cls, kwargs = trainer.get_optimizer_cls_and_kwargs(args, model)
            kwargs = _with_warmup_in_steps(args, trainer._lightrainer.steps_of_schedule, kwargs)
        trainer.optimizer = build_optimizer(optimizer_cls, kwargs, model, groups)
    check_optimizer(args, trainer.optimizer)
    return trainer.optimizer


def groups_of(trainer: Trainer, model: nn.Module) -> list[dict[str, object]]:
    """Return the parameter groups of a model according to the arguments of its Trainer."""
    args = trainer.args
    decaying = trainer.get_decay_parameter_names(model)
    rules = cast("dict[str, Any] | None", args.parameter_rules)  # JSON text has already been parsed
    return parameter_groups(model, args.weight_decay, decaying, rules=rules, lr=args.learning_rate)


def describe_groups(trainer: Trainer) -> Iterator[tuple[str, str, str]]:
    """Yield the rows that describe parameter groups in the plan.

    There is one row for each group that is created by rules or for Muon, and one for frozen
    parameters.
    """
    args = trainer.args
    model = trainer.model
    uses_muon = args.optim == MUON
    if not args.parameter_rules and not uses_muon:
        return

    # Muon updates matrices, AdamW all other parameters.
    groups = groups_of(trainer, model)
    groups_by_name = {"group": groups}
    if uses_muon:
        muon_groups, adamw_groups = split_groups(groups, matrices(model))
        groups_by_name = {"Muon": muon_groups, "AdamW": adamw_groups}

    for name, named_groups in groups_by_name.items():
        for group in named_groups:
            if group["params"]:
                yield _group_row(name, group, args.learning_rate)

    frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
    if args.parameter_rules and frozen:
        yield (
            "parameter_rules",
            f"{len(frozen)} parameters without gradients",
            f"frozen: {', '.join(frozen):.80}",
        )


def _group_row(name: str, group: dict[str, Any], learning_rate: float) -> tuple[str, str, str]:
    """Return the row that describes a parameter group in the plan."""
    numbers = sum(parameter.numel() for parameter in group["params"])
    rate = group.get("lr", learning_rate)
    rules = group.get("rules", "no rule")
    return (
        "parameter_rules",
        f"{name} of {len(group['params'])} parameters ({numbers:,} numbers)",
        f"{rules}: lr={rate}, weight_decay={group['weight_decay']}",
    )


def freeze_by_rules(trainer: Trainer) -> None:
    """Freeze parameters of the model according to `parameter_rules`; see `freeze_parameters`."""
    rules: Any = trainer.args.parameter_rules
    freeze_parameters(trainer.model, rules)


def check_rules(args: TrainingArguments, optimizer: torch.optim.Optimizer) -> None:
    """Check that an optimizer has the parameter groups that `parameter_rules` describe.

    Raises:
        ValueError: the optimizer was created in another way, so the rules would have no effect.
    """
    rules: Any = args.parameter_rules
    makes_groups = any(settings.keys() - {"frozen"} for settings in rules.values())
    if makes_groups and not any("rules" in group for group in optimizer.param_groups):
        raise ValueError(
            f"parameter_rules={rules} would have no effect: {type(optimizer).__name__} does not "
            "have the groups of Trainer.create_optimizer: it was passed, created by an override "
            "or a configuration, or groups parameters itself (GaLore, APOLLO, LOMO). Set these "
            "options there, or leave the groups to the Trainer."
        )


_IS_ITS_OWN_INNER = "_is_its_own_inner_optimizer"
"""Attribute that marks the optimizers of a Trainer for `_InnerOptimizer`."""


class _InnerOptimizer:
    """Descriptor `optimizer` of a Trainer's optimizer, which returns the optimizer itself.

    In the reference, `trainer.optimizer.optimizer` is torch's optimizer inside of accelerate's
    wrapper. A plain attribute would create a reference cycle, which would keep the optimizer states
    in memory until garbage collection. Other optimizers of the same class must not have the
    attribute: code that unwraps with `while hasattr(optimizer, "optimizer")` would never end.
    """

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None or _IS_ITS_OWN_INNER not in vars(instance):
            raise AttributeError(f"{owner.__name__!r} has no attribute 'optimizer'")
        return instance


_CREATED_BY = "_created_by_training_of"
"""Attribute with a weak reference to the Trainer whose training created an optimizer."""


def complete_optimizer(optimizer: Any, creator: Trainer | None = None) -> None:
    """Add attributes that scripts and Lightning expect to an optimizer, if it does not have them.

    - `optimizer`, see `_InnerOptimizer`.
    - `defaults` and `state`: Lightning requires them of classes that are not derived from torch's.

    Args:
        optimizer: the optimizer.
        creator: the Trainer whose training created it; see `leave_earlier_training`.

    Raises:
        ValueError: the optimizer is None, or it is LBFGS, which needs a closure.
    """
    if optimizer is None:
        raise ValueError(
            "create_optimizer, or an override of create_optimizer_and_scheduler, has not set "
            "self.optimizer. Set it there."
        )

    # As in transformers, `step()` is called without a closure, which other classes accept.
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            f"The optimizer {type(optimizer).__name__} needs a closure that computes the loss "
            "again, which the Trainer does not pass to step(). Use one whose step() needs no "
            "argument, such as torch.optim.AdamW."
        )
    if not hasattr(optimizer, "optimizer") and hasattr(optimizer, "__dict__"):
        vars(optimizer)[_IS_ITS_OWN_INNER] = True
        optimizer_class: Any = type(optimizer)
        optimizer_class.optimizer = _InnerOptimizer()
    if creator is not None and hasattr(optimizer, "__dict__"):
        vars(optimizer)[_CREATED_BY] = weakref.ref(creator)
    for name in ("defaults", "state"):
        if not hasattr(optimizer, name):
            setattr(optimizer, name, {})


def create_scheduler(
    trainer: Trainer, num_training_steps: int, optimizer: Optimizer | None
) -> LRScheduler:
    """Create the schedule of a Trainer unless it has one; see `Trainer.create_scheduler`."""
    # torch's schedules wrap the `step` method of the optimizer, which LOMO does not have.
    add_no_op_step(trainer.optimizer)
    if trainer.lr_scheduler is not None:
        return trainer.lr_scheduler

    args = trainer.args
    scheduled_optimizer: Any = optimizer
    if optimizer is None:
        scheduled_optimizer = trainer.optimizer
    kwargs: Any = args.lr_scheduler_kwargs
    trainer.lr_scheduler = get_scheduler(
        args.lr_scheduler_type,
        optimizer=scheduled_optimizer,
        num_warmup_steps=args.get_warmup_steps(num_training_steps),
        num_training_steps=num_training_steps,
        scheduler_specific_kwargs=kwargs,
    )
    trainer._created_lr_scheduler = True
    return trainer.lr_scheduler


def is_attached(schedule: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a schedule can be exposed to Lightning callbacks.

    For that it must refer to this optimizer, and have a `state_dict`. Other schedules, such as a
    class without an `optimizer` attribute, are stepped all the same. Warns if the schedule changes
    only the parameter groups of another optimizer, because it has no effect then.
    """
    scheduled_optimizer = getattr(schedule, "optimizer", None)
    if scheduled_optimizer is optimizer:
        return hasattr(schedule, "state_dict") and hasattr(schedule, "load_state_dict")

    groups = getattr(scheduled_optimizer, "param_groups", optimizer.param_groups)
    stepped_groups = {id(group) for group in optimizer.param_groups}
    if not any(id(group) in stepped_groups for group in groups):
        logger.warning(
            "%s changes the learning rates of another optimizer than trainer.optimizer, so it has "
            "no effect. Make it from that optimizer, or set trainer.lr_scheduler = None.",
            type(schedule).__name__,
        )
    return False


def require_optimizer(optimizer: Optimizer | None) -> Optimizer:
    """Return the optimizer of a Trainer.

    Raises:
        ValueError: it does not exist yet.
    """
    if optimizer is None:
        raise ValueError("The Trainer has no optimizer yet. Call train(), or create_optimizer().")
    return optimizer


def _with_warmup_in_steps(
    args: TrainingArguments, training_steps: int | None, kwargs: dict[str, Any]
) -> dict[str, object]:
    """Return the optimizer's arguments with `warmup_steps` in steps instead of a ratio."""
    if not 0 < kwargs.get("warmup_steps", 0) < 1:
        return kwargs
    if training_steps is None:
        raise ValueError(
            f"warmup_steps={args.warmup_steps} is a share of a training whose length is not known "
            "yet. Set it to a number of steps, or call create_optimizer_and_scheduler."
        )
    return {**kwargs, "warmup_steps": args.get_warmup_steps(training_steps)}


def check_optimizer(args: TrainingArguments, optimizer: object) -> None:
    """Check that the arguments are compatible with an optimizer that steps in the backward pass.

    Args:
        args: the training arguments.
        optimizer: the optimizer, or its class.

    Raises:
        ValueError: fp16 or gradient accumulation is used.
        NotImplementedError: there are several processes.
    """
    optimizer_class = optimizer if isinstance(optimizer, type) else type(optimizer)
    is_layerwise = issubclass(optimizer_class, LayerwiseOptimizer)
    if not is_layerwise and not steps_in_backward(optimizer):
        return

    steps = (
        f"The optimizer {optimizer_class.__name__} steps in each backward pass, one parameter "
        "after another"
    )
    if args.world_size > 1:
        raise NotImplementedError(
            f"{steps}, before the gradients of the {args.world_size} processes are averaged. Train "
            "in one process, or choose another, such as 'galore_adamw'."
        )
    if is_layerwise and args.gradient_accumulation_steps > 1:
        raise ValueError(
            f"{steps}: gradient_accumulation_steps={args.gradient_accumulation_steps} would have "
            "no effect. Set it to 1, or choose the optimizer without 'layerwise'."
        )
    if args.fp16:
        raise ValueError(
            f"{steps}, where the gradients still hold the loss scale of fp16=True. Set bf16=True "
            "instead."
        )


def leave_earlier_training(trainer: Trainer) -> None:
    """Drop the schedule and optimizer of an earlier training if this one cannot use them.

    The schedule is always dropped, because it has ended. The optimizer is dropped if it contains
    none of the trainable parameters, because the model was replaced, or states of other shapes.
    Objects that the script created are kept; see `check_trains`.
    """
    if trainer._created_lr_scheduler:
        trainer.lr_scheduler = None
        trainer._created_lr_scheduler = False

    creator = getattr(trainer.optimizer, _CREATED_BY, None)
    if creator is not None and creator() is trainer:
        held = _held_parameters(trainer.optimizer)
        trainable = {weight for weight in trainer.model.parameters() if weight.requires_grad}
        replaced = trainable and trainable.isdisjoint(held)
        if replaced or _is_resized(trainer.optimizer):
            trainer.optimizer = None


def _is_resized(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a weight and its Adam state have different shapes.

    `resize_token_embeddings` keeps the parameter object, so its old state would be used, and a
    fused step would write out of bounds.
    """
    if not isinstance(optimizer, torch.optim.Adam):
        return False
    states = optimizer.state.items()
    return any(state["exp_avg"].shape != weight.shape for weight, state in states if state)


def check_trains(
    optimizer: torch.optim.Optimizer, model: nn.Module, forward_model: nn.Module
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Check that an optimizer contains the parameters of the model.

    Args:
        optimizer: the optimizer at the start of the training.
        model: the user's model.
        forward_model: the wrapped model, or the model itself.

    Returns:
        The trainable parameters that are in no group, after a warning that lists them, and the
        optimizer's parameters that are not part of the model.

    Raises:
        ValueError: the optimizer contains none of the parameters, so it would not train the model.
    """
    held = _held_parameters(optimizer)

    # Names of trainable parameters; names in the unwrapped model take precedence.
    names: dict[nn.Parameter, str] = {}
    for module in (forward_model, unwrap_model(model)):
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                names[parameter] = name

    outside = [parameter for parameter in held if parameter.requires_grad]
    outside = [parameter for parameter in outside if parameter not in names]
    left_out = [parameter for parameter in names if parameter not in held]
    if not held or not left_out:
        return [], outside

    # Raise if none of them is in a group; warn if some are not.
    optimizer_name = type(optimizer).__name__
    listed = ", ".join(names[parameter] for parameter in left_out[:_SHOWN])
    if len(left_out) > _SHOWN:
        listed += ", ..."
    remedy = (
        "If this is intended, freeze them with requires_grad_(False). If the model or its layers "
        "were replaced, set trainer.optimizer = trainer.lr_scheduler = None."
    )
    if len(left_out) == len(names):
        raise ValueError(
            f"{optimizer_name} holds none of the {len(names)} trainable parameters ({listed}). "
            f"{remedy}"
        )
    logger.warning(
        "%s of %s trainable parameters are in no group of %s and will not be trained: %s. %s",
        len(left_out),
        len(names),
        optimizer_name,
        listed,
        remedy,
    )
    return left_out, outside


def _held_parameters(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, None]:
    """Return the parameters of an optimizer, or of the inner optimizers of a layerwise one.

    They are the keys of a dict, in the order of the parameter groups.
    """
    inner_optimizers = getattr(optimizer, "optimizer_dict", None)
    if inner_optimizers is not None:
        return dict.fromkeys(inner_optimizers)

    held: dict[nn.Parameter, None] = {}
    for group in optimizer.param_groups:
        held.update(dict.fromkeys(group["params"]))
    return held
