"""Methods that set several related arguments."""

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from ...lightning_modules.common.redaction import secret
from .enums import HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from .fields import ArgumentFields
from .readers import read_trackers
from .rules import raise_for_problems

Self = TypeVar("Self", bound="Setters")


class Setters(ArgumentFields):
    """The `set_*` methods of `transformers.TrainingArguments`; values are checked.

    Each accepts arguments under shorter names, resets the others of its kind to their defaults, and
    returns the object itself. On an error the object does not change: ValueError and TypeError for
    invalid values, NotImplementedError for unsupported ones. Only the fields that are set are
    checked, so that the methods can be called in any order.
    """

    def set_training(
        self: Self,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3,
        max_steps: int = -1,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
        gradient_checkpointing: bool = False,
        activation_checkpointing: bool = False,
    ) -> Self:
        """Set the arguments of training, and `do_train`."""
        activation_checkpointing = gradient_checkpointing or activation_checkpointing
        gradient_checkpointing = activation_checkpointing
        renamed = {"batch_size": "per_device_train_batch_size", "num_epochs": "num_train_epochs"}
        return _assign(self, locals(), renamed=renamed, do_train=True)

    def set_evaluate(
        self: Self,
        strategy: str | IntervalStrategy = "no",
        steps: int = 500,
        batch_size: int = 8,
        accumulation_steps: int | None = None,
        delay: float | None = None,
        loss_only: bool = False,
    ) -> Self:
        """Set the arguments of evaluation, and `do_eval` if there is a strategy.

        A delay of None becomes 0; with transformers the training would then fail.
        """
        strategy = IntervalStrategy(strategy)
        delay = delay or 0
        renamed = {"batch_size": "per_device_eval_batch_size", "loss_only": "prediction_loss_only"}
        do_eval = strategy != IntervalStrategy.NO
        return _assign(self, locals(), prefix="eval_", renamed=renamed, do_eval=do_eval)

    def set_testing(self: Self, batch_size: int = 8, loss_only: bool = False) -> Self:
        """Set the arguments of prediction, and `do_predict`."""
        renamed = {"batch_size": "per_device_eval_batch_size", "loss_only": "prediction_loss_only"}
        return _assign(self, locals(), renamed=renamed, do_predict=True)

    def set_save(
        self: Self,
        strategy: str | IntervalStrategy = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> Self:
        """Set when and how checkpoints are written."""
        strategy = SaveStrategy(strategy)
        if strategy == SaveStrategy.STEPS and steps == 0:
            raise ValueError(
                "set_save(strategy='steps', steps=0): pass a number of steps above 0, or "
                "strategy='no'."
            )
        return _assign(self, locals(), prefix="save_")

    def set_logging(
        self: Self,
        strategy: str | IntervalStrategy = "steps",
        steps: int = 500,
        report_to: str | list[str] = "none",
        level: str = "passive",
        first_step: bool = False,
        nan_inf_filter: bool = False,
        on_each_node: bool = False,
        replica_level: str = "passive",
    ) -> Self:
        """Set when, what and where to log; `report_to` becomes a list as in the constructor."""
        strategy = IntervalStrategy(strategy)
        report_to = read_trackers("report_to", report_to)
        renamed = {
            "level": "log_level",
            "on_each_node": "log_on_each_node",
            "replica_level": "log_level_replica",
        }
        return _assign(self, locals(), prefix="logging_", renamed=renamed)

    def set_push_to_hub(
        self: Self,
        model_id: str,
        strategy: str | HubStrategy = "every_save",
        token: str | None = None,
        private_repo: bool | None = None,
        always_push: bool = False,
        revision: str | None = None,
    ) -> Self:
        """Set the repository and the strategy of uploads, and `push_to_hub`."""
        token = secret(token)
        strategy = HubStrategy(strategy)
        return _assign(self, locals(), prefix="hub_", push_to_hub=True)

    def set_optimizer(
        self: Self,
        name: str | OptimizerNames = "adamw_torch",
        learning_rate: float = 5e-5,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        args: str | None = None,
    ) -> Self:
        """Set the optimizer and its settings."""
        if "." not in name:
            name = OptimizerNames(name)
        renamed = {"name": "optim", "args": "optim_args"}
        return _assign(self, locals(), prefix="adam_", renamed=renamed)

    def set_lr_scheduler(
        self: Self,
        name: str | SchedulerType = "linear",
        num_epochs: float = 3.0,
        max_steps: int = -1,
        warmup_steps: float = 0,
        warmup_ratio: float | None = None,
    ) -> Self:
        """Set the schedule; the deprecated `warmup_ratio` sets `warmup_steps`."""
        if warmup_ratio is not None:
            warmup_steps = warmup_ratio
        values = {
            "lr_scheduler_type": SchedulerType(name),
            "num_train_epochs": num_epochs,
            "max_steps": max_steps,
            "warmup_steps": warmup_steps,
        }
        return _assign(self, values)

    def set_dataloader(
        self: Self,
        train_batch_size: int = 8,
        eval_batch_size: int = 8,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        auto_find_batch_size: bool = False,
        ignore_data_skip: bool = False,
        sampler_seed: int | None = None,
        multiprocessing_context: str | None = None,
        in_order: bool = True,
    ) -> Self:
        """Set the loading of data."""
        renamed = {
            "train_batch_size": "per_device_train_batch_size",
            "eval_batch_size": "per_device_eval_batch_size",
            "sampler_seed": "data_seed",
        }
        return _assign(self, locals(), prefix="dataloader_", renamed=renamed)


def _assign(
    args: Self,
    parameters: Mapping[str, Any],
    *,
    prefix: str = "",
    renamed: Mapping[str, str] | None = None,
    **values: Any,
) -> Self:
    """Set fields after they have been checked on a copy.

    Args:
        args: The training arguments.
        parameters: Local variables of a `set_*` method; those that are not fields are ignored.
        prefix: Many fields are called by it and the parameter.
        renamed: Other fields by parameter.
        **values: More fields by name.
    """
    field_names = args.__dataclass_fields__
    renamed = renamed or {}
    for parameter, value in parameters.items():
        name = f"{prefix}{parameter}"
        if name not in field_names:
            name = renamed.get(parameter, parameter)
        if name in field_names:
            values[name] = value

    trial = copy.copy(args)
    for name, value in values.items():
        setattr(trial, name, value)
    raise_for_problems(trial, values)

    for name, value in values.items():
        setattr(args, name, value)
    return args
