"""Construction of optimizer and schedule from the arguments, and what methods of the Trainer tell of them."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from ...lightning_modules.common.suggestions import OptimizerNames
from ...lightning_modules.optim import build_optimizer, let_backward_step, parameter_groups
from ...lightning_modules.optim.schedules import get_scheduler
from . import optimizer_limits


def create_optimizer(trainer: Any, model: Any) -> Optimizer:
    """Make the optimizer of a Trainer, unless it has one; see `Trainer.create_optimizer`."""
    args = trainer.args
    if trainer.optimizer is None:
        model = trainer.model if model is None else model
        groups = parameter_groups(model, args.weight_decay, trainer.get_decay_parameter_names(model))
        optimizer_cls, kwargs = trainer.optimizer_cls_and_kwargs or _with_warmup_in_steps(
            args, trainer._training_steps, *trainer.get_optimizer_cls_and_kwargs(args, model)
        )
        trainer.optimizer = build_optimizer(optimizer_cls, kwargs, model, groups)
    optimizer_limits.check(args, trainer.optimizer)
    return trainer.optimizer


def create_scheduler(trainer: Any, num_training_steps: int, optimizer: Optimizer | None) -> Any:
    """Make the schedule of a Trainer, unless it has one; see `Trainer.create_scheduler`."""
    let_backward_step(trainer.optimizer)
    if trainer.lr_scheduler is None:
        args = trainer.args
        trainer.lr_scheduler = get_scheduler(
            args.lr_scheduler_type,
            optimizer=trainer.optimizer if optimizer is None else optimizer,
            num_warmup_steps=args.get_warmup_steps(num_training_steps),
            num_training_steps=num_training_steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
        trainer._created_lr_scheduler = True
    return trainer.lr_scheduler


def get_learning_rates(self: Any) -> list[float]:
    """As `transformers.Trainer.get_learning_rates`: one for each parameter group."""
    return [group["lr"] for group in _required(self.optimizer).param_groups]


def get_num_trainable_parameters(self: Any) -> int:
    """As `transformers.Trainer.get_num_trainable_parameters`."""
    trained = (p for p in self.model.parameters() if p.requires_grad)
    return sum(getattr(p, "ds_numel", p.numel()) for p in trained)  # DeepSpeed may have them in parts


def get_optimizer_group(self: Any, param: str | nn.Parameter | None = None) -> Any:
    """As `transformers.Trainer.get_optimizer_group`: the group of a parameter, or the parameters of all groups.

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


def _with_warmup_in_steps(args: Any, training_steps: int | None, optimizer_cls: Any, kwargs: dict[str, Any]) -> Any:
    """Return class and arguments, with the warm-up of an optimizer that does it itself in steps, not as a share."""
    if not 0 < kwargs.get("warmup_steps", 0) < 1:
        return optimizer_cls, kwargs
    if training_steps is None:
        raise ValueError(
            f"warmup_steps={args.warmup_steps} is a share of the training, whose length is not known yet, and "
            f"optim={OptimizerNames(args.optim).value!r} warms up by itself. Set warmup_steps to a number of "
            "steps, or call create_optimizer_and_scheduler."
        )
    return optimizer_cls, {**kwargs, "warmup_steps": args.get_warmup_steps(training_steps)}
