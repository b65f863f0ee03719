"""LightningModule with the optimizers, schedules and clipping of the Trainer API.

Lightning's automatic optimization calls its hooks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..common.loss_scale import unscale_gradients
from ..common.parameter_rules import rule_problems
from ..distributed.gradient_averages import average_used_gradients
from ..internals.lightning_import import DDPStrategy, MixedPrecision, Precision
from ..optim import freeze_parameters, steps_in_backward
from ..optim.gradient_norms import clip_gradients
from ..optim.module_optimizers import (
    OptimizerSetting,
    ParameterRules,
    ScheduleSetting,
    as_optimizer_setting,
    as_schedule_setting,
    build_module_optimizer,
    build_module_schedule,
    learning_rate_of,
    to_stored_setting,
    with_learning_rate,
)
from .model_module import ModelModule, ModelSource
from .step_window import StepWindow, batches_per_step, ends_step


class OptimizerModule(ModelModule):
    """Base class of `LossModule`, responsible for everything between a loss and the optimizer step.

    `window` is the `StepWindow` of the current step. Its methods are called in this order: `clear`
    at the start of an epoch; for each batch `begin_batch`, then `weighted` before and
    `count_current` after the backward pass; `finish` after the last batch of the step.

    Args:
        model: a module, or a function that makes one.
        optimizer: the optimizer; see `LossModule`.
        schedule: the learning rate schedule; see `LossModule`.
        parameter_rules: learning rate, weight decay and freezing by patterns of names of
            parameters.
        monitor: the logged value that a plateau schedule follows.
        schedule_interval: "step" or "epoch", after which the schedule is stepped; None for the
            schedule's default.
        kwargs: arguments of `ModelModule`.
    """

    def __init__(
        self,
        model: ModelSource,
        *,
        optimizer: OptimizerSetting,
        schedule: ScheduleSetting,
        parameter_rules: ParameterRules | None,
        monitor: str,
        schedule_interval: str | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, **kwargs)
        problems = list(rule_problems(parameter_rules or {}))
        if problems:
            raise ValueError(" ".join(problems))
        self.parameter_rules = parameter_rules
        self.optimizer_config = as_optimizer_setting(optimizer)
        self.schedule_config = as_schedule_setting(schedule)
        self.monitor = monitor
        self.schedule_interval = schedule_interval
        self.window = StepWindow()
        # The optimizer, if it steps in the backward pass.
        self._backward_optimizer: Any = None
        # Parameters that were frozen when DDP wrapped the module. It does not average their
        # gradients.
        self._unsynchronised: list[nn.Parameter] = []
        # Number of parameter groups created by `configure_optimizers`; callbacks may add others.
        self._configured_groups = 0

    @property
    def loss_of_step(self) -> torch.Tensor | None:
        """Return the loss of the last optimizer step, with equal weight for all items.

        With several processes, their mean is the loss of the step. None before the first step of an
        epoch.
        """
        return self.window.finished_loss

    @property
    def learning_rate(self) -> float | None:
        """Return the peak learning rate; None if a function creates the optimizer.

        `Tuner.lr_find` sets it.
        """
        return learning_rate_of(self.optimizer_config)

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.optimizer_config = with_learning_rate(self.optimizer_config, float(value))
        if isinstance(self.hparams.get("optimizer"), dict):
            self.hparams["optimizer"] = to_stored_setting(self.optimizer_config)

    def prepare_model(self, model: nn.Module) -> None:
        """Freeze parameters by `parameter_rules`."""
        super().prepare_model(model)
        if self.parameter_rules:
            freeze_parameters(model, self.parameter_rules)

    def configure_optimizers(self) -> Any:
        """Return the optimizer, and the schedule, which is stepped after each optimizer step."""
        optimizer = build_module_optimizer(
            self.optimizer_config, self._require_model(), self.parameter_rules
        )

        # `Tuner` trains without calling the hooks that switch the mode.
        _switch([optimizer], "train")

        # Lightning calls this at the start of each fit, so drop the previous optimizer.
        self._backward_optimizer = None

        # An optimizer that steps in each backward pass cannot accumulate gradients.
        if steps_in_backward(optimizer):
            self._backward_optimizer = optimizer
            trainer = self.attached_trainer
            if trainer is not None and batches_per_step(trainer) > 1:
                raise ValueError(
                    f"accumulate_grad_batches={trainer.accumulate_grad_batches} is not supported "
                    f"with {type(optimizer).__name__}, which steps in every backward pass. Set it "
                    "to 1, and use larger batches."
                )

        self._configured_groups = len(optimizer.param_groups)
        if self.schedule_config is None:
            return optimizer
        schedule = build_module_schedule(
            self.schedule_config,
            optimizer,
            self._total_steps,
            self.monitor,
            self.schedule_interval,
        )
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def begin_fit(self) -> None:
        """Add groups that callbacks have restored to the schedule, before its state is loaded."""
        super().begin_fit()
        self._schedule_added_groups()
        if isinstance(self.trainer.strategy, DDPStrategy):
            self._unsynchronised = [
                parameter for parameter in self.parameters() if not parameter.requires_grad
            ]

    def end_fit(self) -> None:
        """Forget the parameters that were frozen at the start."""
        super().end_fit()
        self._unsynchronised = []

    def begin_epoch(self, stage: str) -> None:
        """Start a step, and apply the schedule to groups added by callbacks.

        Optimizers such as `schedule_free_adamw` use different weights for training and evaluation.
        """
        super().begin_epoch(stage)
        if stage == "train":
            self.window.clear()
            self._schedule_added_groups()
        else:
            _switch(self.trainer.optimizers, "eval")

    def begin_batch(self, batch: object) -> None:
        """Begin a batch of the step."""
        super().begin_batch(batch)
        self.window.begin_batch()
        _switch(self.trainer.optimizers, "train")

    def end_step(self) -> None:
        """Finish a step whose last batch had no backward pass.

        This happens if `training_step` returns None.
        """
        super().end_step()
        self.window.finish(self.parameters(), batches_per_step(self.trainer))

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass with equal weight for all items of the step.

        Some optimizers step during the backward pass.
        """
        optimizer = self._backward_optimizer
        if optimizer is not None:
            optimizer.fused_backward(loss, optimizer.param_groups[0]["lr"])
            self.window.count_current()
            # The optimizer has consumed the gradients, so there is nothing to scale.
            self.window.finish([], divisor=1)
            return

        super().backward(self.window.weighted(loss), *args, **kwargs)
        self.window.count_current()
        if ends_step(self.trainer):
            self._average_unfrozen()
            self.window.finish(self.parameters(), batches_per_step(self.trainer))
            if self.automatic_optimization:
                unscale_gradients(self.trainer.precision_plugin, self.trainer.optimizers[0])

    def _average_unfrozen(self) -> None:
        """Average the gradients of parameters that callbacks have unfrozen during the training."""
        unfrozen = [parameter for parameter in self._unsynchronised if parameter.requires_grad]
        if unfrozen:
            average_used_gradients(unfrozen)

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        """Step a schedule; pass a monitored metric as the mean over the processes.

        Each process may log values of its own batches, but all need the same learning rate.

        Args:
            scheduler: one of `configure_optimizers`.
            metric: the monitored value; None for other schedules.
        """
        if metric is not None and self.trainer.world_size > 1:
            # In float64 the mean of equal numbers is exact. Copy the value, because it is reduced
            # in place.
            value = torch.as_tensor(metric, device=self.device)
            value = value.to(torch.float64, copy=True)
            metric = self.trainer.strategy.reduce(value, reduce_op="mean")

        super().lr_scheduler_step(scheduler, metric)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients; the norm is summed in the order of the Trainer API.

        Fused optimizers can be clipped under fp16 too.

        Args:
            optimizer: as in Lightning.
            gradient_clip_val: as in Lightning.
            gradient_clip_algorithm: as in Lightning.
        """
        precision = self.trainer.precision_plugin
        if not gradient_clip_val:
            return

        # Plugins of sharding strategies have their own clipping.
        if not _clips_as_usual(type(precision)):
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return

        unscale_gradients(precision, optimizer)
        parameters = self._parameters_of(optimizer)
        if gradient_clip_algorithm == "value":
            nn.utils.clip_grad_value_(parameters, gradient_clip_val)
        else:
            clip_gradients(parameters, float(gradient_clip_val))

    def _parameters_of(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """Return the parameters that an optimizer trains, in the order of the model.

        Nothing clears the gradients of other parameters, so they may not count in the norm.
        """
        trained: dict[int, nn.Parameter] = {}
        for group in optimizer.param_groups:
            trained |= {id(parameter): parameter for parameter in group["params"]}

        parameters: list[nn.Parameter] = []
        for parameter in self.parameters():
            if trained.pop(id(parameter), None) is not None:
                parameters.append(parameter)
        # The rest is outside of the module.
        return [*parameters, *trained.values()]

    def _schedule_added_groups(self) -> None:
        """Apply the schedule to groups that callbacks such as BackboneFinetuning have added.

        They start with the learning rate that the callback has set.
        """
        for config in self.trainer.lr_scheduler_configs:
            schedule = config.scheduler
            if not isinstance(schedule, LambdaLR):
                continue
            groups = schedule.optimizer.param_groups
            full_rates = schedule.base_lrs
            for group in groups[len(full_rates) :]:
                full_rates.append(group["lr"])
                schedule.lr_lambdas.append(schedule.lr_lambdas[0])

            # The schedule sets rate = full rate * factor, with the same factor for all groups. A
            # callback has set the current rate of an added group. Its full rate follows from the
            # factor of the first group, which is current rate / full rate.
            current_rate = groups[0]["lr"]
            if current_rate > 0:
                for index in range(self._configured_groups, len(groups)):
                    full_rates[index] = groups[index]["lr"] / current_rate * full_rates[0]

    def _total_steps(self) -> int:
        steps = self.trainer.estimated_stepping_batches
        if not 0 <= steps < math.inf:
            raise ValueError(
                f"The schedule needs the length of the training, but Lightning estimates {steps} "
                "steps: set max_steps of the Trainer, or total_steps of the schedule."
            )
        return int(steps)


def _switch(optimizers: Iterable[Optimizer], mode: str) -> None:
    """Call `train` or `eval` of the optimizers that have it, such as `schedule_free_adamw`."""
    for optimizer in optimizers:
        switch = getattr(optimizer, mode, None)
        if callable(switch):
            switch()


def _clips_as_usual(plugin_class: type[Precision]) -> bool:
    """Return whether a precision plugin clips plain gradients in the way of Lightning's own."""
    usual_methods = (Precision.clip_gradients, MixedPrecision.clip_gradients)
    if plugin_class.clip_gradients not in usual_methods:
        return False
    return plugin_class.clip_grad_by_norm is Precision.clip_grad_by_norm
