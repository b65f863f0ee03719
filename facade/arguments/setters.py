"""Methods that set several related arguments."""

import copy
from typing import Any, TypeVar

from ...lightning_modules.common.redaction import secret
from .enums import HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from .fields import ArgumentFields
from .reading import read_fields
from .rules import report

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
        """Set the arguments of training, and `do_train`.

        Args:
            learning_rate: the full learning rate.
            batch_size: samples of a micro-batch of a process (`per_device_train_batch_size`).
            weight_decay: weight decay of the optimizer.
            num_epochs: epochs of the training (`num_train_epochs`).
            max_steps: optimizer steps of the training, if above 0.
            gradient_accumulation_steps: micro-batches of an optimizer step.
            seed: seed of all random generators.
            gradient_checkpointing: compute activations again in the backward pass, to save memory.
            activation_checkpointing: the same, under its newer name.

        Returns:
            The arguments themselves.
        """
        recomputes_activations = gradient_checkpointing or activation_checkpointing
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
            gradient_checkpointing=recomputes_activations,
            activation_checkpointing=recomputes_activations,
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
        """Set the arguments of evaluation, and `do_eval` if there is a strategy.

        Args:
            strategy: when to evaluate: "no", "steps" or "epoch" (`eval_strategy`).
            steps: optimizer steps between two evaluations.
            batch_size: samples of a batch of a process (`per_device_eval_batch_size`).
            accumulation_steps: batches after which predictions go to main memory; None is at the
                end.
            delay: epochs or steps before the first evaluation. None becomes 0; with transformers
                the training would then fail.
            loss_only: keep nothing but the loss (`prediction_loss_only`).

        Returns:
            The arguments themselves.
        """
        return _assign(
            self,
            do_eval=strategy != IntervalStrategy.NO,
            eval_strategy=strategy,
            eval_steps=steps,
            per_device_eval_batch_size=batch_size,
            eval_accumulation_steps=accumulation_steps,
            eval_delay=delay or 0,
            prediction_loss_only=loss_only,
        )

    def set_testing(self: Self, batch_size: int = 8, loss_only: bool = False) -> Self:
        """Set the arguments of prediction, and `do_predict`.

        Args:
            batch_size: samples of a batch of a process (`per_device_eval_batch_size`).
            loss_only: keep nothing but the loss (`prediction_loss_only`).

        Returns:
            The arguments themselves.
        """
        return _assign(
            self,
            do_predict=True,
            per_device_eval_batch_size=batch_size,
            prediction_loss_only=loss_only,
        )

    def set_save(
        self: Self,
        strategy: str | IntervalStrategy = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> Self:
        """Set when and how checkpoints are written.

        Args:
            strategy: "no", "steps", "epoch" or "best" (`save_strategy`).
            steps: optimizer steps between two checkpoints.
            total_limit: number of checkpoints to keep; None keeps all.
            on_each_node: write on each machine, instead of on the first one only.

        Returns:
            The arguments themselves.
        """
        if strategy == SaveStrategy.STEPS and steps == 0:
            raise ValueError(
                "set_save(strategy='steps', steps=0): pass a number of steps above 0, or "
                "strategy='no'."
            )
        return _assign(
            self,
            save_strategy=strategy,
            save_steps=steps,
            save_total_limit=total_limit,
            save_on_each_node=on_each_node,
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
        """Set when, what and where to log.

        Args:
            strategy: "no", "steps" or "epoch" (`logging_strategy`).
            steps: optimizer steps between two logs.
            report_to: names of trackers, which become a list as in the constructor.
            level: level of messages in the main process (`log_level`).
            first_step: log the first step, too.
            nan_inf_filter: leave losses that are NaN or infinite out of the logged mean.
            on_each_node: the first process of each machine logs with `level`, not of the first
                machine only.
            replica_level: level of messages in the other processes (`log_level_replica`).

        Returns:
            The arguments themselves.
        """
        return _assign(
            self,
            logging_strategy=strategy,
            logging_steps=steps,
            report_to=report_to,
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
        """Set the repository and the strategy of uploads, and `push_to_hub`.

        Args:
            model_id: name of the repository (`hub_model_id`).
            strategy: what to upload, and when; see `HubStrategy`.
            token: token of the Hub; by default that of the login.
            private_repo: create the repository as a private one; None for the default of the
                account.
            always_push: upload each checkpoint, also while an upload is running.
            revision: branch of the uploads.

        Returns:
            The arguments themselves.
        """
        token = secret(token)
        return _assign(
            self,
            push_to_hub=True,
            hub_model_id=model_id,
            hub_strategy=strategy,
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
        """Set the optimizer and its settings.

        Args:
            name: an optimizer of `OptimizerNames`, or the path of a class (`optim`).
            learning_rate: the full learning rate.
            weight_decay: weight decay.
            beta1: decay of the first moment (`adam_beta1`).
            beta2: decay of the second moment (`adam_beta2`).
            epsilon: added to the root of the second moment (`adam_epsilon`).
            args: further arguments of the optimizer, as text: "name=value, ..." (`optim_args`).

        Returns:
            The arguments themselves.
        """
        return _assign(
            self,
            optim=name,
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
        """Set the schedule of the learning rate.

        Args:
            name: a schedule of `SchedulerType` (`lr_scheduler_type`).
            num_epochs: epochs of the training (`num_train_epochs`).
            max_steps: optimizer steps of the training, if above 0.
            warmup_steps: optimizer steps of the warm-up; below 1 a share of the training.
            warmup_ratio: deprecated: sets `warmup_steps`.

        Returns:
            The arguments themselves.
        """
        if warmup_ratio is not None:
            warmup_steps = warmup_ratio
        return _assign(
            self,
            lr_scheduler_type=name,
            num_train_epochs=num_epochs,
            max_steps=max_steps,
            warmup_steps=warmup_steps,
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
        """Set how data is loaded.

        Args:
            train_batch_size: samples of a micro-batch of a process (`per_device_train_batch_size`).
            eval_batch_size: samples of an evaluation batch of a process.
            drop_last: leave out the last batch of an epoch if it is not full.
            num_workers: worker processes that load data; 0 loads it in the main process.
            pin_memory: copy batches into pinned memory, for faster copies to a GPU.
            persistent_workers: keep the workers from one epoch to the next.
            prefetch_factor: batches that a worker loads ahead.
            auto_find_batch_size: reduce the batch size if the device runs out of memory.
            ignore_data_skip: begin a resumed training with the start of its data.
            sampler_seed: seed of the order of the data (`data_seed`).
            multiprocessing_context: how workers are started, such as "spawn".
            in_order: return batches in the order in which they were requested.

        Returns:
            The arguments themselves.
        """
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
    """Set fields, after they have been converted and checked on a copy.

    Args:
        args: The training arguments.
        **values: The new values by field.
    """
    trial = copy.copy(args)
    for name, value in values.items():
        setattr(trial, name, value)
    converted_values, errors = read_fields(trial, values)
    report(trial, converted_values, errors)

    for name, value in converted_values.items():
        setattr(args, name, value)
    return args
