"""Methods that set several related arguments."""

import copy
from typing import Any, TypeVar

from ...lightning_modules.common.redaction import secret
from .enums import HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from .fields import ArgumentFields
from .readers import read_trackers
from .rules import raise_for_problems

Self = TypeVar("Self", bound="Setters")


class Setters(ArgumentFields):
    """The `set_*` methods of `transformers.TrainingArguments`, but what is given is checked as in
    the constructor.

    Each takes arguments under shorter names, resets to its default what is not given, and returns
    the object itself. On an error the object stays as it was: ValueError and TypeError for what
    cannot be, NotImplementedError for what is not there yet. Only the fields that are set are
    looked at, so that methods can be called in any order.
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
        """As the method of that name in the reference: the arguments of training; turns
        `do_train` on.
        """
        do_train = True
        gradient_checkpointing = activation_checkpointing = (
            gradient_checkpointing or activation_checkpointing
        )
        return _assign(
            self, locals(), batch_size="per_device_train_batch_size", num_epochs="num_train_epochs"
        )

    def set_evaluate(
        self: Self,
        strategy: str | IntervalStrategy = "no",
        steps: int = 500,
        batch_size: int = 8,
        accumulation_steps: int | None = None,
        delay: float | None = None,
        loss_only: bool = False,
    ) -> Self:
        """As the method of that name in the reference, but no delay is 0, where the reference then
        fails in training.

        Sets `do_eval` to whether there is a strategy.
        """
        strategy = IntervalStrategy(strategy)
        delay = delay or 0
        do_eval = strategy != IntervalStrategy.NO
        renamed = {"batch_size": "per_device_eval_batch_size", "loss_only": "prediction_loss_only"}
        return _assign(self, locals(), "eval_", **renamed)

    def set_testing(self: Self, batch_size: int = 8, loss_only: bool = False) -> Self:
        """As the method of that name in the reference: the arguments of prediction; turns
        `do_predict` on.
        """
        do_predict = True
        renamed = {"batch_size": "per_device_eval_batch_size", "loss_only": "prediction_loss_only"}
        return _assign(self, locals(), **renamed)

    def set_save(
        self: Self,
        strategy: str | IntervalStrategy = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> Self:
        """As the method of that name in the reference: sets when and how checkpoints are
        written.
        """
        strategy = SaveStrategy(strategy)
        if strategy == SaveStrategy.STEPS and steps == 0:
            raise ValueError(
                "set_save(strategy='steps', steps=0): pass a number of steps above 0, or "
                "strategy='no'."
            )
        return _assign(self, locals(), "save_")

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
        """As the method of that name in the reference, but `report_to` becomes a list as in the
        constructor.
        """
        strategy = IntervalStrategy(strategy)
        report_to = read_trackers("report_to", report_to)
        renamed = {
            "level": "log_level",
            "on_each_node": "log_on_each_node",
            "replica_level": "log_level_replica",
        }
        return _assign(self, locals(), "logging_", **renamed)

    def set_push_to_hub(
        self: Self,
        model_id: str,
        strategy: str | HubStrategy = "every_save",
        token: str | None = None,
        private_repo: bool | None = None,
        always_push: bool = False,
        revision: str | None = None,
    ) -> Self:
        """As the method of that name in the reference: turns `push_to_hub` on, and sets target
        and strategy.
        """
        token = secret(token)
        strategy = HubStrategy(strategy)
        push_to_hub = True
        return _assign(self, locals(), "hub_")

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
        """As the method of that name in the reference: the optimizer and its settings."""
        name = name if "." in name else OptimizerNames(name)
        return _assign(self, locals(), "adam_", name="optim", args="optim_args")

    def set_lr_scheduler(
        self: Self,
        name: str | SchedulerType = "linear",
        num_epochs: float = 3.0,
        max_steps: int = -1,
        warmup_steps: float = 0,
        warmup_ratio: float | None = None,
    ) -> Self:
        """As the method of that name in the reference; the deprecated `warmup_ratio` goes into
        `warmup_steps`.
        """
        name = SchedulerType(name)
        if warmup_ratio is not None:
            warmup_steps = warmup_ratio
        del warmup_ratio
        return _assign(self, locals(), name="lr_scheduler_type", num_epochs="num_train_epochs")

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
        """As the method of that name in the reference: sets the loading of data."""
        train = "per_device_train_batch_size"
        evaluation = "per_device_eval_batch_size"
        renamed = {
            "train_batch_size": train,
            "eval_batch_size": evaluation,
            "sampler_seed": "data_seed",
        }
        return _assign(self, locals(), "dataloader_", **renamed)


def _assign(args: Self, given: dict[str, Any], prefix: str = "", /, **renamed: str) -> Self:
    """Set fields once they have been found good on a copy.

    Args:
        args: the object.
        given: values by parameter, and other local variables, which are left out.
        prefix: of the fields, where one is called by it and the parameter.
        **renamed: fields by parameter, where they are called otherwise.
    """
    known = args.__dataclass_fields__
    names = {
        one: f"{prefix}{one}" if f"{prefix}{one}" in known else renamed.get(one, one)
        for one in given
    }
    values = {name: given[one] for one, name in names.items() if name in known}
    trial = copy.copy(args)
    for target, check in ((trial, True), (args, False)):
        for name, value in values.items():
            setattr(target, name, value)
        if check:
            raise_for_problems(trial, values)
    return args
