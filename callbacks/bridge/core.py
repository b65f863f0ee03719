"""Fire the events from Lightning hooks, and carry out the switches of the control in Lightning."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ...lightning_modules.common.stop_iteration import stop_iteration_surfaces
from ..flow import DefaultFlowCallback
from ..handler import CallbackHandler
from ..state import TrainerControl, TrainerState
from .arguments import BridgeArguments, only_one
from .reports import (
    BridgeCheckpoints,
    Reports,
    as_training,
    epochs_done,
    planned_epochs,
    planned_steps,
)

logger = logging.getLogger(__name__)


class BridgeFlow(DefaultFlowCallback):
    """As `DefaultFlowCallback`, but Lightning evaluates, saves and ends by itself: what was asked
    for comes on top.

    A step may count for several where several optimizers step in it, so an interval is over when it
    is passed.

    Attributes:
        is_last: whether Lightning ends after this step; the bridge sets it.
    """

    def __init__(self) -> None:
        self.is_last = False
        self._before = 0

    def on_train_begin(
        self, args: BridgeArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count from here."""
        self._before = state.global_step

    def on_step_end(
        self, args: BridgeArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Raise the switches that are due by steps."""
        before = self._before
        self._before = state.global_step
        given = args.given
        step = state.global_step
        if args.logging_strategy == "steps" and _passed(before, step, state.logging_steps):
            control.should_log = True
        if args.logging_first_step and before == 0:
            control.should_log = True
        late_enough = step >= args.eval_delay
        if (
            given.get("eval_strategy") == "steps"
            and late_enough
            and _passed(before, step, state.eval_steps)
        ):
            control.should_evaluate = True
        if given.get("save_strategy") == "steps" and (
            self.is_last or _passed(before, step, state.save_steps)
        ):
            control.should_save = True
        if self.is_last:
            control.should_training_stop = True

    def on_epoch_end(
        self, args: BridgeArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Raise the switches that are due by epochs."""
        if args.logging_strategy == "epoch":
            control.should_log = True
        if args.given.get("eval_strategy") == "epoch" and args.eval_delay <= state.epoch:
            control.should_evaluate = True
        if args.given.get("save_strategy") == "epoch":
            control.should_save = True

    def will_log(self, args: BridgeArguments, state: TrainerState, step: int) -> bool:
        """Return whether the current step will be logged."""
        first = args.logging_first_step and self._before == 0
        return first or (
            args.logging_strategy == "steps" and _passed(self._before, step, state.logging_steps)
        )


def _passed(before: int, step: int, interval: float) -> bool:
    """Return whether a multiple of the interval lies after `before` and up to `step`."""
    return interval > 0 and step // interval > before // interval


def wrap_method(undo: ExitStack, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a method of this one object by `around(original, *args, **kwargs)`, until `undo`
    is closed.
    """
    original = getattr(owner, name)
    before = vars(owner).get(name)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    object.__setattr__(owner, name, method)
    if before is None:
        undo.callback(object.__delattr__, owner, name)
    else:
        undo.callback(object.__setattr__, owner, name, before)


class ValidationRequest:
    """Makes Lightning validate after the current batch by changing its settings."""

    def __init__(self) -> None:
        self._settings: tuple[Any, Any] | None = None
        self._said = False

    def make(self, trainer: Any) -> bool:
        """Request the validation; warn once and return False where Lightning has no validation
        data.
        """
        possible = trainer.enable_validation and trainer.val_check_batch is not None
        if not possible:
            if not self._said:
                why = (
                    "an interval in time"
                    if trainer.enable_validation
                    else "no validation data or step"
                )
                logger.warning("A callback's should_evaluate has no effect: Lightning has %s.", why)
            self._said = True
            return False
        if self._settings is None:
            self._settings = (trainer.val_check_batch, trainer.check_val_every_n_epoch)
        trainer.val_check_batch = 1
        trainer.check_val_every_n_epoch = 1
        return True

    def settle(self, trainer: Any) -> None:
        """Put back the user's settings."""
        if self._settings is not None:
            trainer.val_check_batch, trainer.check_val_every_n_epoch = self._settings
            self._settings = None


class BridgeCore:
    """What a `LightningBridge` does between the hooks: it holds the handler, the state and the
    control.
    """

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
        self._known = False
        self._loaded = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._reports = Reports()
        self._checkpoints = BridgeCheckpoints()
        self._interception = ExitStack()
        self._validation = ValidationRequest()

        # Between `on_train_start` and the end of the training.
        self._fitting = False

        # Between `on_epoch_begin` and `on_epoch_end`; batches of the epoch that are done.
        self._in_epoch = False
        self._batches_in_epoch = 0
        self._leaves_epoch = False  # `should_epoch_stop`: the next hook of the module returns -1

        # Between `on_step_begin` and `on_step_end`, over all micro-batches of a step.
        self._in_step = False
        self._steps_before = 0  # Lightning's count before the current batch
        self._awaits_pre_step = False  # `on_pre_optimizer_step` is still to be fired for this batch
        self._awaits_step = False  # and `on_optimizer_step`

        self._evaluated_at = 0  # the step of the last evaluation
        self._evaluation_started = 0.0

    @stop_iteration_surfaces
    def _tell(self, event: str) -> None:
        self.control = getattr(self.callback_handler, event)(self.args, self.state, self.control)

    def _connect(self, trainer: Any, module: Any) -> None:
        """Set the objects that events are called with."""
        self.args.of(trainer)
        handler = self.callback_handler
        handler.model = _model_of(module) if self._model is None else self._model
        handler.optimizer = trainer.optimizers[0] if trainer.optimizers else None
        configs = trainer.lr_scheduler_configs
        handler.lr_scheduler = configs[0].scheduler if configs else None
        handler.train_dataloader = trainer.train_dataloader
        handler.eval_dataloader = only_one(trainer.val_dataloaders)

    def _apply_plan(self, trainer: Any) -> None:
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
        self._reports.last_logged = self._first_step = trainer.global_step

    def _intercept(self, trainer: Any, module: Any) -> None:
        wrap_method(self._interception, module, "on_train_batch_start", self._around_batch_start)
        if module.automatic_optimization:
            wrap_method(
                self._interception, module, "configure_gradient_clipping", self._around_clipping
            )
        for optimizer in trainer.optimizers:
            if hasattr(optimizer, "register_step_post_hook"):
                handle = optimizer.register_step_post_hook(
                    lambda stepped, args, kwargs: self._stepped(stepped)
                )
                self._interception.callback(handle.remove)

    def _around_batch_start(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Return -1, which makes Lightning leave the epoch, where a callback asked for it."""
        return -1 if self._leaves_epoch else original(*args, **kwargs)

    def _around_clipping(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self._about_to_step(optimizer)

    def _about_to_step(self, optimizer: Any) -> None:
        self._awaits_pre_step = False
        self.callback_handler.optimizer = getattr(optimizer, "optimizer", optimizer)
        self._tell("on_pre_optimizer_step")

    def _stepped(self, optimizer: Any) -> None:
        if self._in_step:
            self._awaits_step = False
            self.callback_handler.optimizer = optimizer
            self._reports.learning_rate = optimizer.param_groups[0]["lr"]
            self._tell("on_optimizer_step")

    def _end_step(self, trainer: Any, batch_idx: int) -> None:
        self._tell_of_skipped_step(trainer)
        self._in_step = False
        self._count_steps(trainer, batch_idx)
        self._flow.is_last = is_last_step(trainer)
        self.control.should_training_stop = self.control.should_training_stop or trainer.should_stop
        self._tell("on_step_end")
        self._log_if_asked(trainer)
        if not self._validation_is_asked(trainer) and self.control.should_save:
            self._save(trainer)
        self._obey_stop(trainer)

    def _tell_of_skipped_step(self, trainer: Any) -> None:
        """Fire the step events where the scaler skipped the step or the optimizer has no hooks."""
        if self._awaits_pre_step:
            self._tell("on_pre_optimizer_step")
        if self._awaits_step:
            self._stepped(self.callback_handler.optimizer or trainer.optimizers[0])

    def _count_steps(self, trainer: Any, batch_idx: int) -> None:
        state = self.state
        at_once = trainer.global_step - self._steps_before
        if state.global_step == self._first_step and at_once > 1 and trainer.max_steps == -1:
            state.max_steps *= at_once  # several optimizers, each of whose steps Lightning counts
        state.global_step = trainer.global_step
        state.epoch = epochs_done(trainer, batch_idx + 1, state.max_steps)
        self.callback_handler.optimizer = trainer.optimizers[0] if trainer.optimizers else None

    def _log_if_asked(self, trainer: Any) -> None:
        if self.control.should_log and self.state.global_step > self._reports.last_logged:
            new = as_training(self._reports.changed(trainer.callback_metrics))
            self._log(new | as_training(self._reports.of_training(trainer)))
            self._reports.last_logged = self.state.global_step

    def _log_epoch(self, trainer: Any) -> None:
        """Log the metrics that are only known at the end of an epoch, and the training loss if a
        log is due.
        """
        metrics = self._reports.of_epoch(trainer.callback_metrics)
        due = self.control.should_log and self.state.global_step > self._reports.last_logged
        if due:
            metrics |= as_training(self._reports.of_training(trainer))
            self._reports.last_logged = self.state.global_step
        if metrics:
            self._log(metrics)

    def _look_at_metrics(self, trainer: Any) -> None:
        """Record the metrics after the last batch of an epoch; those that change after it are
        epoch metrics.
        """
        if (
            trainer.is_last_batch
            or trainer.should_stop
            or self.control.should_epoch_stop
            or is_last_step(trainer)
        ):
            self._reports.changed(trainer.callback_metrics)

    @stop_iteration_surfaces
    def _log(self, logs: dict[str, Any]) -> None:
        logs["epoch"] = self.state.epoch
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def _validation_is_asked(self, trainer: Any) -> bool:
        """Request the validation that a callback asked for; return whether Lightning will run it
        after this batch.
        """
        if not self.control.should_evaluate:
            return False
        self.control.should_evaluate = self._validation.make(trainer)
        return self.control.should_evaluate

    def _validate_now(self, trainer: Any) -> None:
        """Run the validation loop directly: at the end of an epoch Lightning does not start one
        any more.
        """
        if self._evaluated_at == self.state.global_step or not self._validation.make(trainer):
            self.control.should_evaluate = False
            return
        trainer.validating = True
        try:
            trainer.fit_loop.epoch_loop.val_loop.run()
        finally:
            trainer.training = True
            self._validation.settle(trainer)

    def _evaluation_begins(self, trainer: Any, loaders: Any) -> None:
        if trainer.sanity_checking:
            return
        self._validation.settle(trainer)
        self._catch_up()
        self._reports.changed(trainer.callback_metrics)
        self.callback_handler.eval_dataloader = only_one(loaders)
        self._evaluation_started = time.perf_counter()

    def _note_best(self, metrics: dict[str, float]) -> None:
        value = metrics.get(self.args.metric_for_best_model or "")
        if value is None or value != value:
            return
        best = self.state.best_metric
        greater = self.args.greater_is_better
        if best is None or (value > best if greater else value < best):
            self.state.best_metric = value
            self.state.best_global_step = self.state.global_step

    def _note_best_checkpoint(self, trainer: Any) -> None:
        path = getattr(trainer.checkpoint_callback, "best_model_path", None)
        if path and self.state.best_model_checkpoint not in self._checkpoints.written:
            self.state.best_model_checkpoint = str(path)

    def _save(self, trainer: Any) -> None:
        # before it is written, so that it is not asked for after a resumption
        self.control.should_save = False
        self._checkpoints.save(trainer, self.state, self.args)
        self._tell("on_save")

    def _catch_up(self) -> None:
        """Fire `on_save` for a checkpoint that another callback has written since the last hook."""
        if self._checkpoints.was_written_by_another:
            self._checkpoints.was_written_by_another = False
            if self.args.trainer is not None:
                self._note_best_checkpoint(self.args.trainer)
            self._tell("on_save")

    def _obey_stop(self, trainer: Any) -> None:
        if self.control.should_training_stop and not is_last_step(trainer):
            trainer.should_stop = True

    def _agree_to_stop(self, trainer: Any) -> None:
        """Stop all ranks where one asks to: metrics differ between ranks unless the module
        reduces them.
        """
        if trainer.world_size > 1:
            wanted = self.control.should_training_stop
            self.control.should_training_stop = trainer.strategy.reduce_boolean_decision(
                wanted, all=False
            )

    def _leave(self, trainer: Any) -> None:
        self._validation.settle(trainer)
        self._interception.close()
        self._fitting = self._in_step = False


def _model_of(module: Any) -> Any:
    """Return the attribute `model` of the module if it holds all parameters, otherwise the
    module.
    """
    from torch import nn

    inner = getattr(module, "model", None)
    if not isinstance(inner, nn.Module):
        return module
    own = {id(parameter) for parameter in inner.parameters()}
    return inner if all(id(parameter) in own for parameter in module.parameters()) else module


def is_last_step(trainer: Any) -> bool:
    """Return whether Lightning ends by itself after this step."""
    by_steps = 0 < trainer.max_steps <= trainer.global_step
    last_epoch = (
        trainer.max_epochs is not None and 0 < trainer.max_epochs <= trainer.current_epoch + 1
    )
    return by_steps or (last_epoch and trainer.is_last_batch)
