"""Lightning callback that runs TrainerCallbacks without the Trainer."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

from lightning.pytorch import Callback
from lightning.pytorch.trainer.states import TrainerFn

from ...lightning_modules.common.loss_scale import unscale_gradients
from ...lightning_modules.common.stop_iteration import stop_iteration_guard
from .._closing import close_after_error
from ..ema import evaluated_averages
from ..handler import CallbackHandler
from ..state import (
    ExportableState,
    TrainerControl,
    TrainerState,
    collect_states,
    is_exportable,
)
from ..tensor_states import load_state_dicts, state_dicts
from .arguments import BridgeArguments, only_loader
from .averaged_weights import (
    copy_averaged_weights,
    load_trained_weights,
    use_evaluated_weights,
)
from .checkpoints import BridgeCheckpoints
from .flow import BridgeFlow
from .interception import ValidationRequest, wrap_method
from .lengths import epochs_done, is_last_step, planned_epochs, planned_steps
from .logs import LogCollector, as_evaluation, as_training, last_evaluated_step
from .phase import TrainingPhase

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from ...facade import TrainingArguments


class LightningBridge(Callback):
    """Runs TrainerCallbacks in a plain `lightning.Trainer`: same events, arguments and effects.

        stopping = EarlyStoppingCallback(2)
        bridge = LightningBridge(
            stopping, PrinterCallback(), metric_for_best_model="val_loss"
        )
        lightning.Trainer(callbacks=[bridge]).fit(module, loader, val_loader)

    `bridge/phase.py` has the hooks of Lightning in which each event fires. `TrainerState` and
    `TrainerControl` follow Lightning: a step is an optimizer step (of each optimizer, if a module
    steps several), `epoch` counts fractions, logs are the metrics of `self.log` with `loss`,
    `grad_norm` and `learning_rate`. The switches take effect: `should_training_stop` and
    `should_epoch_stop` end the training and the epoch, `should_evaluate` runs Lightning's
    validation, `should_save` writes `checkpoint-N.ckpt` to `output_dir`, or a folder with
    `FolderCheckpointIO`, `should_log` logs. State, control and callbacks that export a state are
    saved in Lightning's checkpoints.

    Args:
        callbacks: TrainerCallbacks, or classes that can be constructed without arguments.
        model: passed to events as `model`; by default the module's attribute `model` if that has
            all parameters, otherwise the LightningModule.
        processing_class: passed to events under this name.
        name: distinguishes two bridges of one Lightning Trainer in checkpoints.
        settings: settings that Lightning lacks, and callbacks read from `args`: `output_dir`,
            `metric_for_best_model`, `logging_steps`, `eval_strategy`, `save_strategy` and others,
            see `BRIDGE_SETTINGS`. With the strategy "steps" or "epoch" the bridge evaluates or
            saves in addition to what Lightning does.

    Attributes:
        callback_handler: as in the Trainer; callbacks can be added and removed through it.
        state: the `TrainerState`.
        control: the `TrainerControl`.
        args: settings under their documented names; they cannot be set.
    """

    def __init__(
        self,
        *callbacks: Any,
        model: Any = None,
        processing_class: Any = None,
        name: str = "",
        **settings: Any,
    ) -> None:
        self.args = BridgeArguments(**settings)
        self.state = TrainerState()
        self.control = TrainerControl()
        self._flow = BridgeFlow()
        self.callback_handler = CallbackHandler(
            [self._flow, *callbacks], model, processing_class, None, None
        )
        self._model = model
        self._name = name
        self._has_fired_init_end = False
        self._loaded_state: dict[str, Any] = {}  # with which the next training continues
        self._reset()

    def _reset(self) -> None:
        """Set everything that belongs to one training to its initial value."""
        self._phase = TrainingPhase()
        self._logs = LogCollector()
        self._checkpoints = BridgeCheckpoints()
        self._validation_request = ValidationRequest()
        self._interception = ExitStack()
        self._evaluated_averages = ExitStack()
        self._trained_weights: dict[str, Tensor] = {}
        """The weights of the last step, once the averages have replaced them in the module."""

    # The state of this callback in Lightning's checkpoints.

    @property
    def state_key(self) -> str:
        """The key of this callback's state in Lightning's checkpoints."""
        return f"LightningBridge{self._name}"

    def state_dict(self) -> dict[str, Any]:
        """Return state, control and stateful callbacks, in plain values."""
        exportable = [candidate for candidate in self._exporters() if is_exportable(candidate)]
        self.state.stateful_callbacks = collect_states(exportable)
        return {
            "trainer_state": dataclasses.asdict(self.state),
            "callback_states": state_dicts(self.callback_handler.callbacks),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state; in a training also the callbacks, in place."""
        # A checkpoint of another version may have other fields.
        field_names = {field.name for field in dataclasses.fields(TrainerState)}
        stored_state: Mapping[str, Any] = state_dict["trainer_state"]
        self.state = TrainerState(
            **{name: stored_state[name] for name in stored_state.keys() & field_names}
        )
        if not self._loaded_state:
            return

        load_state_dicts(self.callback_handler.callbacks, state_dict.get("callback_states", {}))
        for class_name, states in self.state.stateful_callbacks.items():
            self._load_exported_states(class_name, states)

    def _exporters(self) -> list[Any]:
        """Return all objects that may be an `ExportableState`."""
        return [*self.callback_handler.callbacks, self.control]

    def _load_exported_states(
        self, class_name: str, states: dict[str, Any] | list[dict[str, Any]]
    ) -> None:
        """Load the states of all objects of a class, in their order.

        Args:
            class_name: the class name of the objects.
            states: a list of states, or a single state.
        """
        if not isinstance(states, list):
            states = [states]
        exporters: list[ExportableState] = [
            candidate for candidate in self._exporters() if type(candidate).__name__ == class_name
        ]

        # The number of objects may have changed since.
        for exporter, state in zip(exporters, states, strict=False):
            restored = type(exporter).from_state(state)
            vars(exporter).update(vars(restored))

    # Hooks of Lightning, in the order in which they are called.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Fire `on_init_end`, once."""
        self._read_trainer(trainer, pl_module)
        if not self._has_fired_init_end:
            self._has_fired_init_end = True
            self._fire("on_init_end")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fire `on_train_begin`."""
        loaded_state = self._loaded_state
        self._loaded_state = {}
        if not loaded_state:
            self.state = TrainerState()
            self.control = TrainerControl()

        # An earlier training may have ended by an exception.
        self._interception.close()
        self._reset()

        self._phase.is_training = True
        self._read_trainer(trainer, pl_module)
        self._phase.must_exclude_metrics = True
        self._initialize_state(trainer)
        self._logs.load_losses(loaded_state.get("losses", {}), trainer)
        self._intercept(trainer, pl_module)
        if "trained_weights" in loaded_state:
            load_trained_weights(pl_module, loaded_state["trained_weights"])
        self._fire("on_train_begin")
        # A checkpoint may have been written between the request for an evaluation and its end.
        self._request_validation_if_due(trainer)
        self._apply_stop(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fire `on_epoch_begin`."""
        self._fire_unreported_save()
        self._phase.is_in_epoch = True
        self._phase.batches_done_in_epoch = 0
        self._phase.must_leave_epoch = False
        self._fire("on_epoch_begin")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Fire `on_step_begin`, before the first micro-batch of a step."""
        phase = self._phase
        self._validation_request.restore(trainer)
        self._fire_unreported_save()

        if phase.must_exclude_metrics:
            phase.must_exclude_metrics = False
            self._logs.mark_as_seen(trainer.callback_metrics)

        # A training that resumes in mid-epoch has not called `on_train_epoch_start`.
        if not phase.is_in_epoch:
            self._begin_inside_epoch(batch_idx)

        # Lightning calls the module's hook of this name next, which leaves the epoch.
        has_trained = phase.batches_done_in_epoch > 0
        phase.must_leave_epoch = self.control.should_epoch_stop and has_trained
        if phase.must_leave_epoch:
            return

        if not phase.is_in_step:
            phase.is_in_step = True
            self._fire("on_step_begin")
        self._logs.grad_norms = {}
        phase.global_step_before_batch = trainer.global_step
        phase.awaits_pre_optimizer_step = True
        phase.awaits_optimizer_step = True

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Fire `on_pre_optimizer_step` under manual optimization.

        Under automatic optimization, gradients are clipped after this hook, so the event fires
        later; callbacks that need the gradients before have a method `before_clipping`.
        """
        unscale_gradients(trainer.precision_plugin, optimizer)
        # The other optimizers may step after this one.
        last_step = self._phase.global_step_before_batch + len(trainer.optimizers)
        if self._flow.will_log(self.args, self.state, max(trainer.global_step + 1, last_step)):
            self._logs.record_grad_norm(trainer, pl_module, optimizer)
        handler = self.callback_handler
        for callback in handler.callbacks:
            before_clipping = getattr(callback, "before_clipping", None)
            if before_clipping is not None:
                before_clipping(self.args, self.state, self.control, handler.model, optimizer)
        if not pl_module.automatic_optimization:
            self._before_optimizer_step(optimizer)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Fire `on_substep_end`, or `on_step_end`, and apply the switches of the control."""
        self._phase.batches_done_in_epoch += 1
        self._phase.has_trained_in_epoch = True
        self._logs.add_loss(trainer, pl_module, outputs)
        is_step_done = trainer.global_step != self._phase.global_step_before_batch
        if is_step_done:
            self._logs.end_step(pl_module)
            self._end_step(trainer, batch_idx)
        else:
            self._fire("on_substep_end")
        self._mark_metrics_of_last_batch(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fire `on_epoch_end`, and apply the switches of the control."""
        self._fire_unreported_save()
        self._phase.is_in_epoch = False
        self._phase.is_in_step = False
        if trainer.should_stop:
            self.control.should_training_stop = True
        self._fire("on_epoch_end")

        self._log_epoch(trainer)
        if self.control.should_evaluate:
            self._validate_now(trainer)
        if self.control.should_save:
            self._save(trainer)
        self._apply_stop(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fire `on_train_end`, after the last log."""
        self._fire_unreported_save()
        self._update_best_checkpoint(trainer)
        steps_of_this_call = self.state.global_step - self._phase.first_step
        self._log(self._logs.summary(trainer, steps_of_this_call))
        self._trained_weights = copy_averaged_weights(self.callback_handler.callbacks, pl_module)
        self._fire("on_train_end")
        self._end_training(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock of the evaluation, which uses averaged weights; fires no event."""
        self._begin_evaluation(trainer, trainer.val_dataloaders)
        self._evaluated_averages.enter_context(evaluated_averages(self.callback_handler.callbacks))

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Fire `on_prediction_step`."""
        if not trainer.sanity_checking:
            self._fire("on_prediction_step")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fire `on_log` and `on_evaluate`.

        In a training, also write the checkpoint that waited for the evaluation.
        """
        self._evaluated_averages.close()
        if trainer.sanity_checking:
            return

        # The metrics that were logged since the evaluation began.
        metrics = as_evaluation(self._logs.new_metrics(trainer.callback_metrics))
        runtime = time.perf_counter() - self._phase.evaluation_start_time
        metrics["eval_runtime"] = round(runtime, 4)
        self._log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(
            self._event_args, self.state, self.control, {**metrics, "epoch": self.state.epoch}
        )

        # A `trainer.validate` of the script neither saves nor stops anything.
        if not self._phase.is_training:
            return
        self._phase.must_exclude_metrics = True
        self._phase.last_evaluated_step = self.state.global_step
        self._share_stop(trainer)
        self._update_best_metric(metrics)
        if self.control.should_save:
            self._save(trainer)
        self._apply_stop(trainer)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock of a test; fires no event."""
        self._begin_evaluation(trainer, trainer.test_dataloaders)

    on_test_batch_end = on_validation_batch_end

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fire `on_predict`, with the metrics."""
        metrics = as_evaluation(self._logs.new_metrics(trainer.callback_metrics), "test")
        self.control = self.callback_handler.on_predict(
            self._event_args, self.state, self.control, metrics
        )

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock of a prediction; fires no event."""
        self._begin_evaluation(trainer, trainer.predict_dataloaders)

    on_predict_batch_end = on_validation_batch_end

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fire `on_predict`, without metrics: Lightning computes none."""
        self.control = self.callback_handler.on_predict(
            self._event_args, self.state, self.control, {}
        )

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the losses of all processes, and save the averaged weights that evaluations use.

        `on_save` fires at the next hook.
        """
        self._checkpoints.record_write()
        state = checkpoint["callbacks"][self.state_key]
        state["losses"] = self._logs.losses_since_log(trainer)
        trained_weights = use_evaluated_weights(
            self.callback_handler.callbacks, pl_module, checkpoint["state_dict"]
        )
        if trained_weights or self._trained_weights:
            state["trained_weights"] = trained_weights or self._trained_weights

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the state until the training begins; Lightning loads states for evaluations, too.

        If the checkpoint has averages, and its training is complete, the model keeps them.
        """
        if trainer.state.fn == TrainerFn.FITTING:
            self._loaded_state = checkpoint.get("callbacks", {}).get(self.state_key, {})

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Close the callbacks' bars and profilers, and restore module and optimizers."""
        close_after_error(self.callback_handler.callbacks)
        self._end_training(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Fire a pending `on_save`, and restore module and optimizers."""
        self._fire_unreported_save()
        self._end_training(trainer)

    # What the hooks do: events.

    @property
    def _event_args(self) -> TrainingArguments:
        """The `args` of events: settings of Lightning under the names of `TrainingArguments`."""
        return cast("TrainingArguments", self.args)

    @stop_iteration_guard
    def _fire(self, event: str) -> None:
        fire_event = getattr(self.callback_handler, event)
        self.control = fire_event(self._event_args, self.state, self.control)

    @stop_iteration_guard
    def _log(self, logs: dict[str, Any]) -> None:
        """Add logs to the history, and fire `on_log`."""
        logs["epoch"] = self.state.epoch
        entry = {**logs, "step": self.state.global_step}
        self.state.log_history.append(entry)
        handler = self.callback_handler
        self.control = handler.on_log(self._event_args, self.state, self.control, logs)

    def _fire_unreported_save(self) -> None:
        """Fire `on_save` for a checkpoint that Lightning has written since the last hook."""
        if not self._checkpoints.has_unreported_write:
            return
        self._checkpoints.has_unreported_write = False
        if self.args.trainer is not None:
            self._update_best_checkpoint(self.args.trainer)
        self._fire("on_save")

    # The begin of a training.

    def _read_trainer(self, trainer: Trainer, module: LightningModule) -> None:
        """Set the objects that events are called with, and the ranks in the state."""
        self.args.read_from(trainer)
        self.state.is_local_process_zero = trainer.local_rank == 0
        self.state.is_world_process_zero = trainer.is_global_zero

        handler = self.callback_handler
        handler.model = self._model
        if handler.model is None:
            handler.model = _model_of(module)

        handler.optimizer = _first_optimizer(trainer)
        handler.lr_scheduler = None
        if trainer.lr_scheduler_configs:
            handler.lr_scheduler = trainer.lr_scheduler_configs[0].scheduler

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
        self._phase.first_step = trainer.global_step
        self._phase.last_evaluated_step = last_evaluated_step(state)
        self._logs.last_logged_step = trainer.global_step

    def _intercept(self, trainer: Trainer, module: LightningModule) -> None:
        """Wrap methods where Lightning has no hook, until the end of the training."""

        def wrap(name: str, wrapper: Callable[..., object]) -> None:
            wrap_method(self._interception, module, name, wrapper)

        wrap("on_train_batch_start", self._leave_epoch_if_requested)
        wrap("on_save_checkpoint", functools.partial(self._save_weights_only, module))
        if module.automatic_optimization:
            wrap("configure_gradient_clipping", self._clip_gradients)

        for optimizer in trainer.optimizers:
            if hasattr(optimizer, "register_step_post_hook"):
                handle = optimizer.register_step_post_hook(self._after_optimizer_step)
                self._interception.callback(handle.remove)

    def _save_weights_only(
        self, module: LightningModule, original: Callable[..., object], checkpoint: dict[str, Any]
    ) -> None:
        """Replace the module's `on_save_checkpoint`, to handle files of weights only as well.

        For such files Lightning calls no hook of callbacks.
        """
        original(checkpoint)
        if "callbacks" not in checkpoint:
            self._checkpoints.record_write()
            callbacks = self.callback_handler.callbacks
            use_evaluated_weights(callbacks, module, checkpoint["state_dict"])

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
        self, original: Callable[..., object], *args: object, **kwargs: object
    ) -> Any:
        """Replace the module's `on_train_batch_start`, and return -1 to leave the epoch."""
        if self._phase.must_leave_epoch:
            return -1
        return original(*args, **kwargs)

    def _clip_gradients(
        self, original: Callable[..., object], optimizer: Optimizer, *args: object, **kwargs: object
    ) -> None:
        """Replace the module's `configure_gradient_clipping`, and fire the event after it."""
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

        That happens if the scaler of fp16 skipped the step, or if the optimizer has no hooks.
        """
        if self._phase.awaits_pre_optimizer_step:
            self._fire("on_pre_optimizer_step")
        if self._phase.awaits_optimizer_step:
            optimizer = self.callback_handler.optimizer
            if optimizer is None:
                optimizer = trainer.optimizers[0]
            self._after_optimizer_step(optimizer)

    def _count_step(self, trainer: Trainer, batch_idx: int) -> None:
        """Update step and epoch of the state."""
        state = self.state
        # Lightning counts the steps of each optimizer, but plans one step for each batch, unless
        # the user set `max_steps`.
        phase = self._phase
        is_first_step = state.global_step == phase.first_step
        counted_steps = trainer.global_step - phase.global_step_before_batch
        has_no_limit = trainer.max_steps == -1
        if is_first_step and has_no_limit and counted_steps > 1:
            state.max_steps *= counted_steps

        state.global_step = trainer.global_step
        state.epoch = epochs_done(trainer, batch_idx + 1, state.max_steps)
        self.callback_handler.optimizer = _first_optimizer(trainer)

    def _log_if_due(self, trainer: Trainer) -> None:
        """Log the loss, and the metrics that the module has logged since the last log."""
        if not self._is_log_due():
            return
        logs = as_training(self._logs.new_metrics(trainer.callback_metrics))
        logs |= as_training(self._logs.pop_training_logs(trainer))
        self._log(logs)
        self._logs.last_logged_step = self.state.global_step

    def _is_log_due(self) -> bool:
        is_logged = self.state.global_step <= self._logs.last_logged_step
        return self.control.should_log and not is_logged

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

        If a log is due, the loss is logged with them. If the last batch of the epoch was trained
        before the training resumed, all metrics come from the checkpoint.
        """
        logs: dict[str, float] = {}
        if self._phase.has_trained_in_epoch:
            logs = self._logs.epoch_metrics(trainer.callback_metrics)
        self._phase.has_trained_in_epoch = False
        if self._is_log_due():
            logs |= as_training(self._logs.pop_training_logs(trainer))
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
            trainer.fit_loop.epoch_loop.val_loop.run()  # pyright: ignore[reportUnknownMemberType] - untyped in Lightning
        finally:
            trainer.training = True
            self._validation_request.restore(trainer)

    def _begin_evaluation(self, trainer: Trainer, loaders: object) -> None:
        """Start the clock, and record the present metrics, to tell new ones from them."""
        if trainer.sanity_checking:
            return
        self._validation_request.restore(trainer)
        self._fire_unreported_save()
        self._logs.mark_as_seen(trainer.callback_metrics)
        self.callback_handler.eval_dataloader = only_loader(loaders)
        self._phase.evaluation_start_time = time.perf_counter()

    def _update_best_metric(self, metrics: dict[str, float]) -> None:
        """Store the metric in the state if it is the best so far; NaN never is."""
        value = metrics.get(self.args.metric_for_best_model or "")
        if value is None or math.isnan(value):
            return

        best = self.state.best_metric
        is_better = best is None
        if best is not None and self.args.greater_is_better:
            is_better = value > best
        elif best is not None:
            is_better = value < best

        if is_better:
            self.state.best_metric = value
            self.state.best_global_step = self.state.global_step

    # Checkpoints.

    def _save(self, trainer: Trainer) -> None:
        """Write a checkpoint, and fire `on_save`."""
        # Reset before the checkpoint is written, so that a resumed training does not save again.
        self.control.should_save = False
        self._checkpoints.save(trainer, self.state, self.args)
        self._fire("on_save")

    def _update_best_checkpoint(self, trainer: Trainer) -> None:
        """Use Lightning's best checkpoint, unless the bridge wrote the best one."""
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
            must_stop = self.control.should_training_stop
            any_stops = trainer.strategy.reduce_boolean_decision(must_stop, all=False)
            self.control.should_training_stop = any_stops

    def _end_training(self, trainer: Trainer) -> None:
        """Restore module and optimizers, and the settings of the Lightning Trainer."""
        self._validation_request.restore(trainer)
        self._evaluated_averages.close()
        self._interception.close()
        self._phase.is_training = False
        self._phase.is_in_step = False


def _first_optimizer(trainer: Trainer) -> Optimizer | None:
    if not trainer.optimizers:
        return None
    return trainer.optimizers[0]


def _model_of(module: LightningModule) -> nn.Module:
    """Return the attribute `model` if it has all parameters of the module, else the module."""
    from torch import nn

    model = getattr(module, "model", None)
    if not isinstance(model, nn.Module):
        return module

    parameters_of_model = set(model.parameters())
    if parameters_of_model.issuperset(module.parameters()):
        return model
    return module
