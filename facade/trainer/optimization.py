"""Construction and checks of optimizer and schedule, and Trainer methods that read them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...lightning_modules.common.suggestions import MUON
from ...lightning_modules.models.inspection import unwrap_model
from ...lightning_modules.optim import (
    LayerwiseOptimizer,
    build_optimizer,
    freeze_parameters,
    let_backward_step,
    parameter_groups,
    steps_in_backward,
)
from ...lightning_modules.optim.muon import matrices, split_groups
from ...lightning_modules.optim.schedules import get_scheduler

if TYPE_CHECKING:
    from .. import Trainer
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)

_SHOWN = 4  # names of parameters in a message


def create_optimizer(trainer: Trainer, model: Any) -> Optimizer:
    """Create the optimizer of a Trainer unless it has one, see `Trainer.create_optimizer`."""
    args = trainer.args
    if trainer.optimizer is None:
        model = trainer.model if model is None else model
        groups = groups_of(trainer, model)
        optimizer_cls, kwargs = trainer.optimizer_cls_and_kwargs or _with_warmup_in_steps(
            args, trainer._training_steps, *trainer.get_optimizer_cls_and_kwargs(args, model)
        )
        trainer.optimizer = build_optimizer(optimizer_cls, kwargs, model, groups)
    check_optimizer(args, trainer.optimizer)
    return trainer.optimizer


def groups_of(trainer: Trainer, model: nn.Module) -> list[dict[str, Any]]:
    """Return the parameter groups of a model, by the arguments of its Trainer."""
    args = trainer.args
    decaying = trainer.get_decay_parameter_names(model)
    return parameter_groups(
        model, args.weight_decay, decaying, rules=args.parameter_rules, lr=args.learning_rate
    )


def describe_groups(trainer: Trainer) -> Iterator[tuple[str, str, str]]:
    """Yield a row of the plan for each group that rules or Muon make, and one for what is
    frozen.
    """
    args = trainer.args
    model = trainer.model
    muon = args.optim == MUON
    groups = groups_of(trainer, model) if args.parameter_rules or muon else []
    kinds = (
        dict(zip(("Muon", "AdamW"), split_groups(groups, matrices(model)), strict=True))
        if muon
        else {"group": groups}
    )
    for kind, group in (
        (kind, group) for kind, groups in kinds.items() for group in groups if group["params"]
    ):
        rates = f"lr={group.get('lr', args.learning_rate)}, weight_decay={group['weight_decay']}"
        said = (
            f"{kind} of {len(group['params'])} parameters "
            f"({sum(one.numel() for one in group['params']):,} numbers)"
        )
        yield "parameter_rules", said, f"{group.get('rules', 'no rule')}: {rates}"
    if args.parameter_rules and (
        frozen := [name for name, one in model.named_parameters() if not one.requires_grad]
    ):
        yield (
            "parameter_rules",
            f"{len(frozen)} parameters without gradients",
            f"frozen: {', '.join(frozen):.80}",
        )


def freeze_by_rules(trainer: Trainer) -> None:
    """Freeze parameters of the model by the rules of the arguments, see `freeze_parameters`."""
    rules: Any = trainer.args.parameter_rules
    if rules:
        freeze_parameters(trainer.model, rules)


def check_rules(args: TrainingArguments, optimizer: Any) -> None:
    """Check that an optimizer has the groups of the rules.

    Raises:
        ValueError: it has been made otherwise, so that the rules would have no effect.
    """
    rules: Any = args.parameter_rules or {}
    needed = any(settings.keys() - {"frozen"} for settings in rules.values())
    if needed and not any("rules" in group for group in optimizer.param_groups):
        raise ValueError(
            f"parameter_rules={rules} would have no effect: {type(optimizer).__name__} does not "
            "have the groups of Trainer.create_optimizer, as it was passed, made by an override "
            "or a configuration, or groups parameters itself (GaLore, APOLLO, LOMO). Set these "
            "options there, or leave the groups to the Trainer."
        )


_IS_ITS_OWN_INNER = "_is_its_own_inner_optimizer"


class _InnerOptimizer:
    """Attribute `optimizer` of the optimizers of a Trainer, which is the optimizer itself.

    In the reference it is torch's optimizer inside of accelerate's wrapper. Stored in the optimizer
    it would be a cycle, which keeps the memory of its states until the garbage collector runs.
    Other optimizers of the same class do not have it: code that unwraps
    `while hasattr(optimizer, "optimizer")` would not end.
    """

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None or _IS_ITS_OWN_INNER not in vars(instance):
            raise AttributeError(f"{owner.__name__!r} has no attribute 'optimizer'")
        return instance


def complete_optimizer(optimizer: Any) -> None:
    """Give an optimizer the attributes that scripts and Lightning read, where it lacks them.

    - `optimizer`, see `_InnerOptimizer`.
    - `defaults` and `state`, without which Lightning refuses a class that is not derived from
      torch's.
    """
    if not hasattr(optimizer, "optimizer") and hasattr(optimizer, "__dict__"):
        vars(optimizer)[_IS_ITS_OWN_INNER] = True
        kind: Any = type(optimizer)
        kind.optimizer = _InnerOptimizer()
    for name in ("defaults", "state"):
        if not hasattr(optimizer, name):
            setattr(optimizer, name, {})


def create_scheduler(trainer: Trainer, num_training_steps: int, optimizer: Optimizer | None) -> Any:
    """Create the schedule of a Trainer unless it has one, see `Trainer.create_scheduler`."""
    let_backward_step(trainer.optimizer)
    if trainer.lr_scheduler is None:
        args = trainer.args
        kwargs: Any = args.lr_scheduler_kwargs
        trainer.lr_scheduler = get_scheduler(
            args.lr_scheduler_type,
            optimizer=trainer.optimizer if optimizer is None else optimizer,
            num_warmup_steps=args.get_warmup_steps(num_training_steps),
            num_training_steps=num_training_steps,
            scheduler_specific_kwargs=kwargs,
        )
        trainer._created_lr_scheduler = True
    return trainer.lr_scheduler


def is_attached(schedule: Any, optimizer: Any) -> bool:
    """Return whether a schedule is one that Lightning can show to its callbacks: attached to the
    optimizer, and saved.

    Others, such as a class with no attribute `optimizer`, are stepped all the same. Warn about one
    that changes only the groups of another optimizer, so that it has no effect.
    """
    attached_to = getattr(schedule, "optimizer", None)
    if attached_to is optimizer:
        return hasattr(schedule, "state_dict") and hasattr(schedule, "load_state_dict")
    groups = getattr(attached_to, "param_groups", optimizer.param_groups)
    if not any(group is own for group in groups for own in optimizer.param_groups):
        logger.warning(
            "%s changes the learning rates of another optimizer than trainer.optimizer, so it has "
            "no effect. Make it from that optimizer, or set trainer.lr_scheduler = None.",
            type(schedule).__name__,
        )
    return False


def get_learning_rates(self: Any) -> list[float]:
    """As `transformers.Trainer.get_learning_rates`: one for each parameter group."""
    return [group["lr"] for group in _required(self.optimizer).param_groups]


def get_num_trainable_parameters(self: Any) -> int:
    """As `transformers.Trainer.get_num_trainable_parameters`."""
    trained = (p for p in self.model.parameters() if p.requires_grad)
    return sum(getattr(p, "ds_numel", p.numel()) for p in trained)  # DeepSpeed may shard them


def get_optimizer_group(self: Any, param: str | nn.Parameter | None = None) -> Any:
    """As `transformers.Trainer.get_optimizer_group`: the group of a parameter, or the parameters of
    all groups.

    Args:
        param: a parameter, or its name in the model.
    """
    groups = _required(self.optimizer).param_groups
    if param is None:
        return [group["params"] for group in groups]
    wanted = self.model.get_parameter(param) if isinstance(param, str) else param
    found = (group for group in groups if any(wanted is one for one in group["params"]))
    return next(found, [group["params"] for group in groups])


def _required(optimizer: Any) -> Optimizer:
    if optimizer is None:
        raise ValueError("There is no optimizer yet: train() makes it, or create_optimizer().")
    return optimizer


def _with_warmup_in_steps(
    args: Any, training_steps: int | None, optimizer_cls: Any, kwargs: dict[str, Any]
) -> Any:
    """Return class and arguments, with `warmup_steps` of the optimizer in steps instead of a
    ratio.
    """
    if not 0 < kwargs.get("warmup_steps", 0) < 1:
        return optimizer_cls, kwargs
    if training_steps is None:
        said = (
            f"warmup_steps={args.warmup_steps} is a share of a training whose length is not "
            "known yet"
        )
        raise ValueError(
            f"{said}. Set it to a number of steps, or call create_optimizer_and_scheduler."
        )
    return optimizer_cls, {**kwargs, "warmup_steps": args.get_warmup_steps(training_steps)}


def check_optimizer(args: TrainingArguments, optimizer: Any) -> None:
    """Check an optimizer that steps in the backward pass against the arguments.

    Raises:
        ValueError: fp16, or gradient accumulation.
        NotImplementedError: several processes.
    """
    layerwise = isinstance(optimizer, LayerwiseOptimizer)
    if layerwise or steps_in_backward(optimizer):
        _refuse_conflicts(args, f"The optimizer {type(optimizer).__name__}", layerwise=layerwise)


def check_trains(optimizer: Any, model: nn.Module, called: nn.Module) -> list[nn.Parameter]:
    """Check that an optimizer holds the parameters of the model.

    Args:
        optimizer: at the beginning of the training.
        model: the user's model.
        called: the wrapped model, or the model itself.

    Returns:
        The trainable parameters in no group, after a warning that names them.

    Raises:
        ValueError: the optimizer holds none of the parameters, so that no step would change the
            model.
    """
    held = _held(optimizer)
    # the names of the model take precedence
    trained = dict([*_trained(called), *_trained(unwrap_model(model))])
    named = {one: name for name, one in trained.items()}
    left_out = {one: name for one, name in named.items() if one not in held}
    if not left_out:
        _warn_of_others(held.difference(named), optimizer)
    if not held or not left_out:
        return []
    kind = type(optimizer).__name__
    names = list(left_out.values())
    listed = ", ".join(names[:_SHOWN]) + (", ..." if names[_SHOWN:] else "")
    remedy = (
        "If that is meant, freeze them with requires_grad_(False). If the model or its layers were "
        "replaced, set "
    )
    remedy += "trainer.optimizer = trainer.lr_scheduler = None."
    if len(left_out) == len(named):
        raise ValueError(
            f"{kind} holds none of the {len(named)} trainable parameters ({listed}). {remedy}"
        )
    said = "%s of %s trainable parameters are in no group of %s and will not change: %s. %s"
    logger.warning(said, len(left_out), len(named), kind, listed, remedy)
    return list(left_out)


def _warn_of_others(held: set[torch.Tensor], optimizer: Any) -> None:
    """Warn of trained parameters that are not of the model, such as those of a loss that is a
    module.

    Args:
        held: what the optimizer steps beside all trainable parameters of the model.
        optimizer: at the beginning of the training.
    """
    others = [parameter for parameter in held if parameter.requires_grad]
    if others:
        logger.warning(
            "%s trains %s parameters (%s values) that are not of the model: no checkpoint holds "
            "them, and a resumed training does not go on with their values. Make their module an "
            "attribute of the model.",
            type(optimizer).__name__,
            len(others),
            sum(parameter.numel() for parameter in others),
        )


def _held(optimizer: Any) -> set[torch.Tensor]:
    """Return the parameters of an optimizer, or of the inner ones of a layerwise optimizer."""
    inside = getattr(optimizer, "optimizer_dict", None)
    return (
        set(inside)
        if inside is not None
        else {one for group in optimizer.param_groups for one in group["params"]}
    )


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, one) for name, one in model.named_parameters() if one.requires_grad]


def _refuse_conflicts(args: TrainingArguments, shown: str, *, layerwise: bool) -> None:
    steps = f"{shown} steps in each backward pass, one parameter after another"
    if args.world_size > 1:
        said = (
            f"{steps}, before the gradients of the {args.world_size} processes are brought together"
        )
        raise NotImplementedError(
            f"{said}. Train in one process, or choose another, such as 'galore_adamw'."
        )
    if layerwise and args.gradient_accumulation_steps > 1:
        said = (
            f"{steps}: gradient_accumulation_steps={args.gradient_accumulation_steps} would have "
            "no effect"
        )
        raise ValueError(f"{said}. Set it to 1, or choose the optimizer without 'layerwise'.")
    if args.fp16:
        raise ValueError(
            f"{steps}, where the gradients still hold the loss scale of fp16=True. Set bf16=True "
            "instead."
        )
