"""What a `LightningBridge` does in the hooks: fire events, and apply the switches of the control.

The hooks of a training, in the order in which Lightning calls them, with the events that fire in
each. "module." marks a method of the LightningModule that is wrapped while the training runs.

    setup                                   on_init_end, once per bridge
    on_train_start                          on_train_begin
      on_train_epoch_start                  on_epoch_begin
        on_train_batch_start                on_step_begin, at the first micro-batch of a step
        module.on_train_batch_start         - (returns -1 to leave the epoch)
        on_before_optimizer_step            on_pre_optimizer_step, under manual optimization
        module.configure_gradient_clipping  on_pre_optimizer_step, under automatic optimization
        step hook of the optimizer          on_optimizer_step
        on_train_batch_end                  on_substep_end, or on_step_end, on_log, on_save
          on_validation_start               - (Lightning validates here if it is due or requested)
          on_validation_batch_end           on_prediction_step
          on_validation_end                 on_log, on_evaluate, on_save
      on_train_epoch_end                    on_epoch_end, on_log, a requested validation, on_save
    on_train_end                            on_log, on_train_end
    teardown                                -

A checkpoint that a ModelCheckpoint of Lightning writes fires `on_save` at the next of these hooks.
An exception skips the rest: `on_exception` and `teardown` restore what was wrapped.

`TrainingPhase` has the states between the hooks: which hook sets each of them, and which reads it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ...lightning_modules.common.stop_iteration import stop_iteration_surfaces
from ..handler import CallbackHandler
from ..state import TrainerControl, TrainerState
from .arguments import BridgeArguments, only_loader
from .checkpoints import BridgeCheckpoints
from .flow import BridgeFlow
from .interception import ValidationRequest, wrap_method
from .lengths import epochs_done, is_last_step, planned_epochs, planned_steps
from .logs import LogCollector, as_training

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch import nn
    from torch.optim import Optimizer

    from ...facade import TrainingArguments


@dataclass
class TrainingPhase:
    """Where a training is between two hooks.

    Each field names the hooks that set it (`set`), that set it back to its default (`reset`), and
    that decide by it (`read`).
    """

    is_training: bool = False
    """Set: on_train_start. Reset: on_train_end, on_exception, teardown.

    Read: on_validation_end, since `trainer.validate` alone saves and stops nothing.
    """

    first_step: int = 0
    """The value of `global_step` when the training began.

    Set: on_train_start. Read: on_train_batch_end, at the first step.
    """

    is_in_epoch: bool = False
    """Whether `on_epoch_begin` was fired for the current epoch.

    Set: on_train_epoch_start. Reset: on_train_epoch_end. Read: on_train_batch_start, since a
    training that resumes in mid-epoch has no on_train_epoch_start.
    """

    batches_done_in_epoch: int = 0
    """Set: on_train_batch_end, and on_train_batch_start of a training that resumes in mid-epoch.
    Reset: on_train_epoch_start. Read: on_train_batch_start.
    """

    has_trained_in_epoch: bool = False
    """Whether this training has trained a batch of the epoch, which a resumption may find complete.

    Set: on_train_batch_end. Reset: on_train_epoch_end, which reads it.
    """

    must_leave_epoch: bool = False
    """Whether a callback has set `should_epoch_stop`.

    Set: on_train_batch_start. Reset: on_train_epoch_start. Read: module.on_train_batch_start.
    """

    must_exclude_metrics: bool = False
    """Whether the metrics of the next batch begin a log: those before it are of a validation, or
    were restored from a checkpoint.

    Set: on_train_start, on_validation_end. Reset: on_train_batch_start, which reads it.
    """

    is_in_step: bool = False
    """Whether `on_step_begin` was fired for the current step, which may have several batches.

    Set: on_train_batch_start. Reset: on_train_batch_end of the last micro-batch,
    on_train_epoch_end. Read: on_train_batch_start, and the step hook of the optimizer.
    """

    global_step_before_batch: int = 0
    """Lightning's count of optimizer steps before the current batch.

    Set: on_train_batch_start. Read: on_train_batch_end, which sees by it whether a step was done.
    """

    awaits_pre_optimizer_step: bool = False
    """Whether `on_pre_optimizer_step` has not been fired for the current batch.

    Set: on_train_batch_start. Reset: when the event fires. Read: on_train_batch_end, which fires it
    if an optimizer step was counted without it.
    """

    awaits_optimizer_step: bool = False
    """The same for `on_optimizer_step`, which the scaler of fp16 may skip."""

    last_evaluated_step: int = 0
    """Set: on_validation_end. Read: on_train_epoch_end, which does not evaluate a step twice."""

    evaluation_start_time: float = 0.0
    """Set: on_validation_start. Read: on_validation_end, for `eval_runtime`."""


class BridgeCore:
    """Base of `LightningBridge`: it has the handler, the state and the control."""

    def __init__(
        self, *callbacks: Any, model: Any = None, processing_class: Any = None, **settings: Any
    ) -> None:
        self.args = BridgeArguments(**settings)
        self.state = TrainerState()
        self.control = TrainerControl()
        self._flow = BridgeFlow()
        self.callback_handler = CallbackHandler(
            [self._flow, *callbacks], model, processing_class, None, None
        )
        self._model = model
        self._has_fired_init_end = False
        self._has_loaded_state = False  # the next training continues with this state
        self._loaded_losses: dict[str, Any] = {}  # of the log in which it continues
        self._reset()

    def _reset(self) -> None:
        """Set everything that belongs to one training to its initial value."""
        self._phase = TrainingPhase()
        self._logs = LogCollector()
        self._checkpoints = BridgeCheckpoints()
        self._validation_request = ValidationRequest()
        self._interception = ExitStack()

    # Events.

    @property
    def _event_args(self) -> TrainingArguments:
        """The `args` of events, which have the names of `TrainingArguments` that Lightning has."""
        return cast("TrainingArguments", self.args)

    @stop_iteration_surfaces
    def _fire(self, event: str) -> None:
        fire_event = getattr(self.callback_handler, event)
        self.control = fire_event(self._event_args, self.state, self.control)

    @stop_iteration_surfaces
    def _log(self, logs: dict[str, Any]) -> None:
        """Add logs to the history, and fire `on_log`."""
        logs["epoch"] = self.state.epoch
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(
            self._event_args, self.state, self.control, logs
        )

    def _fire_unreported_save(self) -> None:
        """Fire `on_save` for a checkpoint that Lightning has written since the last hook."""
        if not self._checkpoints.has_unreported_write:
            return
        self._checkpoints.has_unreported_write = False
        if self.args.trainer is not None:
            self._update_best_checkpoint(self.args.trainer)
        self._fire("on_save")

    # The begin of a training.

    def _update_handler(self, trainer: Trainer, module: LightningModule) -> None:
        """Set the objects that events are called with."""
        self.args.read_from(trainer)
        handler = self.callback_handler
        handler.model = _model_of(module) if self._model is None else self._model
        handler.optimizer = _first_optimizer(trainer)
        schedules = trainer.lr_scheduler_configs
        handler.lr_scheduler = schedules[0].scheduler if schedules else None
        handler.train_dataloader = trainer.train_dataloader
        handler.eval_dataloader = only_loader(trainer.val_dataloaders)

    def _initialize_state(self, trainer: Trainer) -> None:
        """Set the values of the state that are known when a training begins."""
        state = self.state
        state.max_steps = planned_steps(trainer)
        state.num_train_epochs = planned_epochs(trainer, state.max_steps)
        state.compute_steps(self.args, state.max_steps)
        if self.args.eval_steps is None:
            state.eval_steps = state.logging_steps
        state.train_batch_size = self.args.train_batch_size
        state.global_step = trainer.global_step
        state.is_local_process_zero = trainer.local_rank == 0
        state.is_world_process_zero = trainer.is_global_zero
        self._phase.first_step = trainer.global_step
        self._logs.last_logged_step = trainer.global_step

    def _intercept(self, trainer: Trainer, module: LightningModule) -> None:
        """Wrap what Lightning has no hook for, until the end of the training."""

        def wrap(name: str, wrapper: Callable[..., Any]) -> None:
            wrap_method(self._interception, module, name, wrapper)

        wrap("on_train_batch_start", self._leave_epoch_if_requested)
        if module.automatic_optimization:
            wrap("configure_gradient_clipping", self._clip_gradients)

        for optimizer in trainer.optimizers:
            if hasattr(optimizer, "register_step_post_hook"):
                handle = optimizer.register_step_post_hook(self._after_optimizer_step)
                self._interception.callback(handle.remove)

    def _begin_inside_epoch(self, batch_idx: int) -> None:
        """Fire `on_epoch_begin` in a training that resumes in mid-epoch.

        Args:
            batch_idx: the number of batches that were trained before.
        """
        self._phase.is_in_epoch = True
        self._phase.batches_done_in_epoch = batch_idx
        # The event resets this switch, which the last step before the checkpoint may have set.
        should_epoch_stop = self.control.should_epoch_stop
        self._fire("on_epoch_begin")
        if should_epoch_stop:
            self.control.should_epoch_stop = True

    # Within a step.

    def _leave_epoch_if_requested(
        self, original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """As `on_train_batch_start` of the module, but -1 lets Lightning leave the epoch."""
        if self._phase.must_leave_epoch:
            return -1
        return original(*args, **kwargs)

    def _clip_gradients(
        self, original: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> None:
        """As `configure_gradient_clipping` of the module, followed by an event."""
        original(optimizer, *args, **kwargs)
        self._before_optimizer_step(optimizer)

    def _before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Fire `on_pre_optimizer_step`."""
        self._phase.awaits_pre_optimizer_step = False
        # A LightningOptimizer has the optimizer of the user as its attribute.
        self.callback_handler.optimizer = getattr(optimizer, "optimizer", optimizer)
        self._fire("on_pre_optimizer_step")

    def _after_optimizer_step(self, optimizer: Optimizer, *args: object) -> None:
        """Fire `on_optimizer_step`; this is a hook of the optimizer."""
        if not self._phase.is_in_step:
            return
        self._phase.awaits_optimizer_step = False
        self.callback_handler.optimizer = optimizer
        self._logs.learning_rate = optimizer.param_groups[0]["lr"]
        self._fire("on_optimizer_step")

    # The end of a step.

    def _end_step(self, trainer: Trainer, batch_idx: int) -> None:
        """Fire `on_step_end`, and apply the switches of the control."""
        self._fire_skipped_events(trainer)
        self._phase.is_in_step = False
        self._count_step(trainer, batch_idx)
        self._flow.is_last_step = is_last_step(trainer)
        if trainer.should_stop:
            self.control.should_training_stop = True
        self._fire("on_step_end")

        self._log_if_due(trainer)
        # A checkpoint waits for the validation of the same step, which Lightning runs after this.
        validation_follows = self._request_validation_if_due(trainer)
        if self.control.should_save and not validation_follows:
            self._save(trainer)
        self._apply_stop(trainer)

    def _fire_skipped_events(self, trainer: Trainer) -> None:
        """Fire the events around the optimizer step that no hook has fired.

        That is where the scaler of fp16 skipped the step, or the optimizer has no hooks.
        """
        if self._phase.awaits_pre_optimizer_step:
            self._fire("on_pre_optimizer_step")
        if self._phase.awaits_optimizer_step:
            self._after_optimizer_step(self.callback_handler.optimizer or trainer.optimizers[0])

    def _count_step(self, trainer: Trainer, batch_idx: int) -> None:
        """Update step and epoch of the state."""
        state = self.state
        # Lightning counts the steps of each optimizer. The planned number has one step a batch,
        # unless it is `max_steps` of the user.
        is_first_step = state.global_step == self._phase.first_step
        counted_steps = trainer.global_step - self._phase.global_step_before_batch
        if is_first_step and counted_steps > 1 and trainer.max_steps == -1:
            state.max_steps *= counted_steps

        state.global_step = trainer.global_step
        state.epoch = epochs_done(trainer, batch_idx + 1, state.max_steps)
        self.callback_handler.optimizer = _first_optimizer(trainer)

    def _log_if_due(self, trainer: Trainer) -> None:
        """Log the loss, and the metrics that the module has logged since the last log."""
        if not self._is_log_due():
            return
        logs = as_training(self._logs.new_metrics(trainer.callback_metrics))
        logs |= as_training(self._logs.take_training_logs(trainer))
        self._log(logs)
        self._logs.last_logged_step = self.state.global_step

    def _is_log_due(self) -> bool:
        return self.control.should_log and self.state.global_step > self._logs.last_logged_step

    def _mark_metrics_of_last_batch(self, trainer: Trainer) -> None:
        """Record the metrics after the last batch of an epoch.

        Those that change after it are metrics of the epoch.
        """
        ends_epoch = trainer.is_last_batch or self.control.should_epoch_stop
        ends_training = trainer.should_stop or is_last_step(trainer)
        if ends_epoch or ends_training:
            self._logs.mark_as_seen(trainer.callback_metrics)

    # The end of an epoch.

    def _log_epoch(self, trainer: Trainer) -> None:
        """Log the metrics that are only known at the end of an epoch.

        If a log is due, the loss is logged with them. Of an epoch whose last batch was trained
        before the training resumed, all metrics are those of the checkpoint.
        """
        logs: dict[str, float] = {}
        if self._phase.has_trained_in_epoch:
            logs = self._logs.epoch_metrics(trainer.callback_metrics)
        self._phase.has_trained_in_epoch = False
        if self._is_log_due():
            logs |= as_training(self._logs.take_training_logs(trainer))
            self._logs.last_logged_step = self.state.global_step
        if logs:
            self._log(logs)

    # Evaluations.

    def _request_validation_if_due(self, trainer: Trainer) -> bool:
        """Return whether Lightning will run the validation that a callback has asked for."""
        if not self.control.should_evaluate:
            return False
        self.control.should_evaluate = self._validation_request.make(trainer)
        return self.control.should_evaluate

    def _validate_now(self, trainer: Trainer) -> None:
        """Run the validation loop: at the end of an epoch Lightning no longer starts one."""
        is_evaluated = self._phase.last_evaluated_step == self.state.global_step
        if is_evaluated or not self._validation_request.make(trainer):
            self.control.should_evaluate = False
            return
        trainer.validating = True
        try:
            trainer.fit_loop.epoch_loop.val_loop.run()  # pyright: ignore[reportUnknownMemberType]
        finally:
            trainer.training = True
            self._validation_request.restore(trainer)

    def _begin_evaluation(self, trainer: Trainer, loaders: Any) -> None:
        """Start the clock, and exclude older metrics from those of the evaluation."""
        if trainer.sanity_checking:
            return
        self._validation_request.restore(trainer)
        self._fire_unreported_save()
        self._logs.mark_as_seen(trainer.callback_metrics)
        self.callback_handler.eval_dataloader = only_loader(loaders)
        self._phase.evaluation_start_time = time.perf_counter()

    def _update_best_metric(self, metrics: dict[str, float]) -> None:
        value = metrics.get(self.args.metric_for_best_model or "")
        is_nan = value != value
        if value is None or is_nan:
            return
        best = self.state.best_metric
        if best is None:
            is_better = True
        elif self.args.greater_is_better:
            is_better = value > best
        else:
            is_better = value < best
        if is_better:
            self.state.best_metric = value
            self.state.best_global_step = self.state.global_step

    # Checkpoints.

    def _save(self, trainer: Trainer) -> None:
        """Write a checkpoint, and fire `on_save`."""
        # Reset before the checkpoint has it, so that a resumed training does not save again.
        self.control.should_save = False
        self._checkpoints.save(trainer, self.state, self.args)
        self._fire("on_save")

    def _update_best_checkpoint(self, trainer: Trainer) -> None:
        """Take the best checkpoint of Lightning, unless the best one was written here."""
        path = getattr(trainer.checkpoint_callback, "best_model_path", None)
        if path and self.state.best_model_checkpoint not in self._checkpoints.paths:
            self.state.best_model_checkpoint = str(path)

    # The end of a training.

    def _apply_stop(self, trainer: Trainer) -> None:
        if self.control.should_training_stop and not is_last_step(trainer):
            trainer.should_stop = True

    def _share_stop(self, trainer: Trainer) -> None:
        """Stop all ranks if one of them has to.

        Metrics may differ between ranks, unless the module reduces them.
        """
        if trainer.world_size > 1:
            self.control.should_training_stop = trainer.strategy.reduce_boolean_decision(
                self.control.should_training_stop, all=False
            )

    def _end_training(self, trainer: Trainer) -> None:
        """Restore module and optimizers, and the settings of the Lightning Trainer."""
        self._validation_request.restore(trainer)
        self._interception.close()
        self._phase.is_training = False
        self._phase.is_in_step = False


def _first_optimizer(trainer: Trainer) -> Optimizer | None:
    return trainer.optimizers[0] if trainer.optimizers else None


def _model_of(module: LightningModule) -> nn.Module:
    """Return the attribute `model` if it has all parameters of the module, else the module."""
    from torch import nn

    model = getattr(module, "model", None)
    if not isinstance(model, nn.Module):
        return module
    ids = {id(parameter) for parameter in model.parameters()}
    has_all_parameters = all(id(parameter) in ids for parameter in module.parameters())
    return model if has_all_parameters else module
