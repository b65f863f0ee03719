"""A LightningModule with the optimizers, schedules and clipping of the Trainer API, under
automatic optimization.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..common.parameter_rules import rule_faults
from ..internals.lightning_import import MixedPrecision, Precision
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
from .model_module import ModelModule
from .step_window import StepWindow, batches_per_step, ends_step


class OptimizerModule(ModelModule):
    """The part of `LossModule` that trains its model.

    Args:
        model: see `LossModule`, as all others.
        optimizer: see there.
        schedule: see there.
        parameter_rules: see there.
        monitor: see there.
        schedule_interval: see there.
        kwargs: see `ModelModule`.
    """

    def __init__(
        self,
        model: Any,
        *,
        optimizer: OptimizerSetting,
        schedule: ScheduleSetting,
        parameter_rules: ParameterRules | None,
        monitor: str,
        schedule_interval: str | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, **kwargs)
        faults = list(rule_faults(parameter_rules or {}))
        if faults:
            raise ValueError(" ".join(faults))
        self.parameter_rules = parameter_rules
        self.optimizer_config: Any = as_optimizer_setting(optimizer)
        self.schedule_config: Any = as_schedule_setting(schedule)
        self.monitor = monitor
        self.schedule_interval = schedule_interval
        self.window = StepWindow()
        self._in_backward: Any = None  # the optimizer, if it steps there
        self._own_groups = 0

    @property
    def loss_of_step(self) -> torch.Tensor | None:
        """Return the loss of the last optimizer step, every item counting the same; the mean over
        the processes is it.

        None before the first step of an epoch.
        """
        return self.window.finished_loss

    @property
    def learning_rate(self) -> float | None:
        """Return the full learning rate, which `Tuner.lr_find` sets, too; None if a function
        makes the optimizer.
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
        """Return the optimizer, and the schedule, stepped after each optimizer step."""
        optimizer = build_module_optimizer(
            self.optimizer_config, self._require_model(), self.parameter_rules
        )
        self._in_backward = optimizer if steps_in_backward(optimizer) else None
        trainer = self.attached_trainer
        if self._in_backward is not None and trainer is not None and batches_per_step(trainer) > 1:
            asked = f"accumulate_grad_batches={trainer.accumulate_grad_batches}"
            raise ValueError(
                f"{asked}: {type(optimizer).__name__} steps in every backward pass. Use larger "
                "batches."
            )
        self._own_groups = len(optimizer.param_groups)
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

    def begin_epoch(self, stage: str) -> None:
        """Begin a step, and add groups of callbacks to the schedule."""
        super().begin_epoch(stage)
        if stage == "train":
            self.window.clear()
            self._schedule_added_groups()

    def begin_batch(self, batch: Any) -> None:
        """Begin a batch of the step."""
        super().begin_batch(batch)
        self.window.begin_batch()

    def end_step(self) -> None:
        """Finish a step whose last batch had no backward pass, as `training_step` returned None
        for it.
        """
        super().end_step()
        self.window.finish(self.parameters(), batches_per_step(self.trainer))

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass, in which every item of the step counts the same, and some
        optimizers step.
        """
        if self._in_backward is not None:
            self._in_backward.fused_backward(loss, self._in_backward.param_groups[0]["lr"])
            self.window.count_current()
            self.window.finish([], divisor=1)  # the gradients are used up
            return
        super().backward(self.window.weighted(loss), *args, **kwargs)
        self.window.count_current()
        if ends_step(self.trainer):
            self.window.finish(self.parameters(), batches_per_step(self.trainer))

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        """Step a schedule. One that follows a metric gets the mean over the processes, so that
        their rates are equal.

        Each process has logged `train_loss` for its own batches.

        Args:
            scheduler: one of `configure_optimizers`.
            metric: the value that it follows, None for other schedules.
        """
        if metric is not None and self.trainer.world_size > 1:
            # The mean of equal numbers is that number in float64. A copy, as it is reduced in
            # place.
            own = torch.as_tensor(metric, device=self.device)
            own = own.to(torch.float64, copy=True)
            metric = self.trainer.strategy.reduce(own, reduce_op="mean")

        super().lr_scheduler_step(scheduler, metric)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """As Lightning's, but the norm is summed as the Trainer API sums it, and fused optimizers
        can clip under fp16.

        Args:
            optimizer: Lightning's argument, as are the others.
            gradient_clip_val: see there.
            gradient_clip_algorithm: see there.
        """
        precision = self.trainer.precision_plugin
        if not gradient_clip_val:
            return
        if not _clips_plainly(type(precision)):  # it shards the model
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return
        scaler = getattr(precision, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            scaler.unscale_(optimizer)  # Lightning leaves it to the step, which comes too late
        if gradient_clip_algorithm == "value":
            nn.utils.clip_grad_value_(self.parameters(), gradient_clip_val)
        else:
            clip_gradients(self.parameters(), float(gradient_clip_val))

    def _schedule_added_groups(self) -> None:
        """Apply the schedule to groups of callbacks such as BackboneFinetuning, from their first
        rate on.
        """
        for config in self.trainer.lr_scheduler_configs:
            schedule = config.scheduler
            if not isinstance(schedule, LambdaLR):
                continue
            groups = schedule.optimizer.param_groups
            full = schedule.base_lrs
            for group in groups[len(full) :]:
                full.append(group["lr"])
                schedule.lr_lambdas.append(schedule.lr_lambdas[0])

            # Their present rates are the same shares of their full ones as those of the first
            # group.
            present = groups[0]["lr"]
            if present > 0:
                for index in range(self._own_groups, len(groups)):
                    full[index] = groups[index]["lr"] / present * full[0]

    def _total_steps(self) -> int:
        steps = self.trainer.estimated_stepping_batches
        if not 0 <= steps < math.inf:
            raise ValueError(
                "The length of the training is unknown: set the Trainer's max_steps, or "
                "total_steps."
            )
        return int(steps)


def _clips_plainly(kind: type[Precision]) -> bool:
    usual = (Precision.clip_gradients, MixedPrecision.clip_gradients)
    return kind.clip_gradients in usual and kind.clip_grad_by_norm is Precision.clip_grad_by_norm
