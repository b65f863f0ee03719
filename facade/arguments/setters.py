"""Methods that set several related arguments."""

import copy
from typing import Any, TypeVar

from ...lightning_modules.common.redaction import secret
from .coercion import report_to_list
from .enums import HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from .fields import ArgumentFields
from .support import raise_for_unsupported
from .validation import raise_for_problems

Self = TypeVar("Self", bound="Setters")


class Setters(ArgumentFields):
    """The `set_*` methods of `transformers.TrainingArguments`, but what is given is checked as in the constructor.

    Each takes arguments under shorter names, resets to its default what is not given, and returns the object itself.
    On an error the object stays as it was: ValueError and TypeError for what cannot be, NotImplementedError for what
    is not there yet. Only the fields that are set are looked at, so that methods can be called in any order.
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
        """As the method of that name in the reference: the arguments of training; turns `do_train` on."""
        return _assign(
            self,
            do_train=True,
            learning_rate=learning_rate,
            per_device_train_batch_size=batch_size,
            weight_decay=weight_decay,
            num_train_epochs=num_epochs,
            max_steps=max_steps,
            gradient_accumulation_steps=gradient_accumulation_steps,
            seed=seed,
            gradient_checkpointing=gradient_checkpointing or activation_checkpointing,
            activation_checkpointing=gradient_checkpointing or activation_checkpointing,
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
        """As the method of that name in the reference, but no delay is 0, where the reference then fails in training.

        Sets `do_eval` to whether there is a strategy.
        """
        chosen = IntervalStrategy(strategy)
        return _assign(
            self,
            eval_strategy=chosen,
            do_eval=chosen != IntervalStrategy.NO,
            eval_steps=steps,
            per_device_eval_batch_size=batch_size,
            eval_accumulation_steps=accumulation_steps,
            eval_delay=0 if delay is None else delay,
            prediction_loss_only=loss_only,
        )

    def set_testing(self: Self, batch_size: int = 8, loss_only: bool = False) -> Self:
        """As the method of that name in the reference: the arguments of prediction; turns `do_predict` on."""
        return _assign(self, do_predict=True, per_device_eval_batch_size=batch_size, prediction_loss_only=loss_only)

    def set_save(
        self: Self,
        strategy: str | IntervalStrategy = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> Self:
        """As the method of that name in the reference: sets when and how checkpoints are written."""
        chosen = SaveStrategy(strategy)
        if chosen == SaveStrategy.STEPS and steps == 0:
            raise ValueError("set_save(strategy='steps', steps=0): pass a number of steps above 0, or strategy='no'.")
        return _assign(
            self, save_strategy=chosen, save_steps=steps, save_total_limit=total_limit, save_on_each_node=on_each_node
        )

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
        """As the method of that name in the reference, but `report_to` becomes a list as in the constructor."""
        return _assign(
            self,
            logging_strategy=IntervalStrategy(strategy),
            logging_steps=steps,
            report_to=report_to_list(report_to),
            log_level=level,
            logging_first_step=first_step,
            logging_nan_inf_filter=nan_inf_filter,
            log_on_each_node=on_each_node,
            log_level_replica=replica_level,
        )

    def set_push_to_hub(
        self: Self,
        model_id: str,
        strategy: str | HubStrategy = "every_save",
        token: str | None = None,
        private_repo: bool | None = None,
        always_push: bool = False,
        revision: str | None = None,
    ) -> Self:
        """As the method of that name in the reference: turns `push_to_hub` on, and sets target and strategy."""
        token = secret(token)
        return _assign(
            self,
            push_to_hub=True,
            hub_model_id=model_id,
            hub_strategy=HubStrategy(strategy),
            hub_token=token,
            hub_private_repo=private_repo,
            hub_always_push=always_push,
            hub_revision=revision,
        )

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
        return _assign(
            self,
            optim=OptimizerNames(name),
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_beta1=beta1,
            adam_beta2=beta2,
            adam_epsilon=epsilon,
            optim_args=args,
        )

    def set_lr_scheduler(
        self: Self,
        name: str | SchedulerType = "linear",
        num_epochs: float = 3.0,
        max_steps: int = -1,
        warmup_steps: float = 0,
        warmup_ratio: float | None = None,
    ) -> Self:
        """As the method of that name in the reference; the deprecated `warmup_ratio` goes into `warmup_steps`."""
        return _assign(
            self,
            lr_scheduler_type=SchedulerType(name),
            num_train_epochs=num_epochs,
            max_steps=max_steps,
            warmup_steps=warmup_steps if warmup_ratio is None else warmup_ratio,
        )

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
        return _assign(
            self,
            per_device_train_batch_size=train_batch_size,
            per_device_eval_batch_size=eval_batch_size,
            dataloader_drop_last=drop_last,
            dataloader_num_workers=num_workers,
            dataloader_pin_memory=pin_memory,
            dataloader_persistent_workers=persistent_workers,
            dataloader_prefetch_factor=prefetch_factor,
            auto_find_batch_size=auto_find_batch_size,
            ignore_data_skip=ignore_data_skip,
            data_seed=sampler_seed,
            dataloader_multiprocessing_context=multiprocessing_context,
            dataloader_in_order=in_order,
        )


def _assign(args: Self, **values: Any) -> Self:
    """Set fields once they have been found good on a copy."""
    trial = copy.copy(args)
    for target, check in ((trial, True), (args, False)):
        for name, value in values.items():
            setattr(target, name, value)
        if check:
            raise_for_problems(trial, values)
            raise_for_unsupported(trial, values)
    return args
