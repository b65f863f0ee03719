"""The optimization side of the Trainer: optimizer, schedule, learning rates, gradient norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...lightning_modules.common.suggestions import OptimizerNames
from ...lightning_modules.internals.compiler import build_optimizers_plainly, step_plainly
from ...lightning_modules.optim import (
    build_optimizer,
    decay_parameter_names,
    let_backward_step,
    optimizer_class_and_kwargs,
    parameter_groups,
)
from ...lightning_modules.optim.schedules import get_scheduler
from ..strategies.plan import optimizer_config
from . import optimizer_limits
from .base import TrainerBase


class TrainerOptimization(TrainerBase):
    """From arguments to steps."""

    _training_steps: int | None = None

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """As `transformers.Trainer.create_optimizer_and_scheduler`, and called by `train` as documented.

        Args:
            num_training_steps: optimizer steps of the whole training.
        """
        self._training_steps = num_training_steps
        build_optimizers_plainly()  # an override of `create_optimizer` makes its own
        self.create_optimizer()
        step_plainly(self.optimizer)
        self.create_scheduler(num_training_steps=num_training_steps)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """As `transformers.Trainer.create_optimizer`: made once; one that was passed in stays."""
        if self.optimizer is None:
            model = self.model if model is None else model
            groups = parameter_groups(model, self.args.weight_decay, self.get_decay_parameter_names(model))
            optimizer_cls, kwargs = self.optimizer_cls_and_kwargs or _with_warmup_in_steps(
                self.args, self._training_steps, *self.get_optimizer_cls_and_kwargs(self.args, model)
            )
            self.optimizer = build_optimizer(optimizer_cls, kwargs, model, groups)
        optimizer_limits.check(self.args, self.optimizer)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> Any:
        """As `transformers.Trainer.create_scheduler`: made once; one that was passed in stays."""
        let_backward_step(self.optimizer)
        if self.lr_scheduler is None:
            kwargs: Any = self.args.lr_scheduler_kwargs
            self.lr_scheduler = get_scheduler(
                self.args.lr_scheduler_type,
                optimizer=self.optimizer if optimizer is None else optimizer,
                num_warmup_steps=self.args.get_warmup_steps(num_training_steps),
                num_training_steps=num_training_steps,
                scheduler_specific_kwargs=kwargs,
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: nn.Module | None = None) -> tuple[Any, dict[str, Any]]:
        """As `transformers.Trainer.get_optimizer_cls_and_kwargs`: class and arguments, but for the parameters.

        Args:
            args: the training arguments.
            model: needed by GaLore, APOLLO and LOMO, which take their parameters from it.

        Raises:
            ImportError: the optimizer is one of a library that is not installed; says what to install.
            ValueError: the optimizer and other arguments do not go together.
            NotImplementedError: the optimizer works in one process only.
        """
        optimizer_limits.check_name(args)
        return optimizer_class_and_kwargs(optimizer_config(args), model)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """As `transformers.Trainer.get_decay_parameter_names`: all but biases and normalisation layers."""
        return decay_parameter_names(model)

    def get_learning_rates(self) -> list[float]:
        """As `transformers.Trainer.get_learning_rates`: one for each parameter group."""
        return [group["lr"] for group in _required(self.optimizer).param_groups]

    def get_num_trainable_parameters(self) -> int:
        """As `transformers.Trainer.get_num_trainable_parameters`."""
        trained = (p for p in self.model.parameters() if p.requires_grad)
        return sum(getattr(p, "ds_numel", p.numel()) for p in trained)  # DeepSpeed may have them in parts

    def get_optimizer_group(self, param: str | nn.Parameter | None = None) -> Any:
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

    def _get_learning_rate(self) -> float:
        scheduler = self.lr_scheduler
        if scheduler is None or isinstance(scheduler, ReduceLROnPlateau):
            rate = self.optimizer.param_groups[0]["lr"]
        else:
            rate = scheduler.get_last_lr()[0]
        return rate.item() if isinstance(rate, torch.Tensor) else rate

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        """Clip the gradients of a model, in whatever wrappers it is, without the loss scale; returns their norm."""
        flat = None if self._run is None else self._run.flat(model)
        parameters = model.parameters() if flat is None else flat.parameters
        return self.accelerator.clip_grad_norm_(parameters, self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> torch.Tensor:
        """The norm that was found already, or that of the gradients as they are, without the loss scale."""
        if grad_norm is not None:
            return grad_norm
        self.accelerator.unscale_gradients()
        return self.accelerator.strategy.norm(model)


def _required(optimizer: Any) -> Optimizer:
    if optimizer is None:
        raise ValueError("There is no optimizer yet: train() makes it, or create_optimizer().")
    return optimizer


def _with_warmup_in_steps(args: Any, training_steps: int | None, optimizer_cls: Any, kwargs: dict[str, Any]) -> Any:
    """Class and arguments; a warm-up that the optimizer does itself is counted in steps, not as a share of them."""
    if not 0 < kwargs.get("warmup_steps", 0) < 1:
        return optimizer_cls, kwargs
    if training_steps is None:
        raise ValueError(
            f"warmup_steps={args.warmup_steps} is a share of the training, whose length is not known yet, and "
            f"optim={OptimizerNames(args.optim).value!r} warms up by itself. Set warmup_steps to a number of "
            "steps, or call create_optimizer_and_scheduler."
        )
    return optimizer_cls, {**kwargs, "warmup_steps": args.get_warmup_steps(training_steps)}
