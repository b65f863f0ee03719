"""Lightning callback that runs TrainerCallbacks without the Trainer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback
from lightning.pytorch.trainer.states import TrainerFn

from ..state import (
    ExportableState,
    TrainerControl,
    TrainerState,
    collect_states,
    is_exportable,
)
from ..tensor_states import load_state_dicts, state_dicts
from .averaged_weights import load_trained_weights, use_evaluated_weights
from .core import BridgeCore
from .logs import as_evaluation

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch.optim import Optimizer


class LightningBridge(BridgeCore, Callback):
    """Runs TrainerCallbacks in a plain `lightning.Trainer`: same events, arguments and effects.

        stopping = EarlyStoppingCallback(2)
        bridge = LightningBridge(stopping, PrinterCallback(), metric_for_best_model="val_loss")
        lightning.Trainer(callbacks=[bridge]).fit(module, loader, val_loader)

    `HOOKS` has the hooks of Lightning in which each event fires. `TrainerState` and
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
        super().__init__(*callbacks, model=model, processing_class=processing_class, **settings)
        self._name = name

    # What Lightning's checkpoints hold of this callback.

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
            "losses": self._logs.losses_since_log(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore state, control and callbacks, in place."""
        # A checkpoint of another version may have other fields.
        field_names = {field.name for field in dataclasses.fields(TrainerState)}
        stored_state: Mapping[str, Any] = state_dict["trainer_state"]
        self.state = TrainerState(
            **{name: stored_state[name] for name in stored_state.keys() & field_names}
        )
        self._has_loaded_state = True
        self._loaded_losses = state_dict.get("losses", {})

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
            class_name: of the objects.
            states: a list of states, or a single state.
        """
        if not isinstance(states, list):
            states = [states]
        exporters: list[ExportableState] = []
        for candidate in self._exporters():
            if type(candidate).__name__ == class_name:
                exporters.append(candidate)

        # There may be fewer objects now, or more.
        for exporter, state in zip(exporters, states, strict=False):
            restored = type(exporter).from_state(state)
            vars(exporter).update(vars(restored))

    # Hooks of Lightning, in the order in which they are called.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Fire `on_init_end`, once."""
        self._update_handler(trainer, pl_module)
        self.state.is_local_process_zero = trainer.local_rank == 0
        self.state.is_world_process_zero = trainer.is_global_zero
        if not self._has_fired_init_end:
            self._has_fired_init_end = True
            self._fire("on_init_end")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fire `on_train_begin`."""
        if not self._has_loaded_state:
            self.state = TrainerState()
            self.control = TrainerControl()
        self._has_loaded_state = False

        # An earlier training may have ended by an exception.
        self._interception.close()
        self._reset()

        self._phase.is_training = True
        self._update_handler(trainer, pl_module)
        self._phase.must_exclude_metrics = True
        self._initialize_state(trainer)
        self._logs.load_losses(self._loaded_losses, trainer.strategy.root_device)
        self._loaded_losses = {}
        self._intercept(trainer, pl_module)
        self._fire("on_train_begin")
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

        # The module's hook of this name, which comes next, leaves the epoch.
        has_trained = phase.batches_done_in_epoch > 0
        phase.must_leave_epoch = self.control.should_epoch_stop and has_trained
        if phase.must_leave_epoch:
            return

        if not phase.is_in_step:
            phase.is_in_step = True
            self._fire("on_step_begin")
        phase.global_step_before_batch = trainer.global_step
        phase.awaits_pre_optimizer_step = True
        phase.awaits_optimizer_step = True

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Fire `on_pre_optimizer_step` under manual optimization.

        Under automatic optimization, gradients are clipped after this hook, so the event fires
        later.
        """
        if self._flow.will_log(self.args, self.state, trainer.global_step + 1):
            self._logs.record_grad_norm(trainer, pl_module)
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
        self._log(self._logs.summary(trainer, self.state.global_step))
        self._fire("on_train_end")
        self._end_training(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock of the evaluation; fires no event."""
        self._begin_evaluation(trainer, trainer.val_dataloaders)

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Fire `on_prediction_step`."""
        if not trainer.sanity_checking:
            self._fire("on_prediction_step")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fire `on_log` and `on_evaluate`.

        In a training, also write the checkpoint that waited for the evaluation.
        """
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
        """Prepare a test, as a validation."""
        self._begin_evaluation(trainer, trainer.test_dataloaders)

    def on_test_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Fire `on_prediction_step`."""
        self._fire("on_prediction_step")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fire `on_predict`, with the metrics."""
        metrics = as_evaluation(self._logs.new_metrics(trainer.callback_metrics), "test")
        self.control = self.callback_handler.on_predict(
            self._event_args, self.state, self.control, metrics
        )

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prepare a prediction, as a validation."""
        self._begin_evaluation(trainer, trainer.predict_dataloaders)

    on_predict_batch_end = on_test_batch_end

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fire `on_predict`, without metrics: Lightning computes none."""
        self.control = self.callback_handler.on_predict(
            self._event_args, self.state, self.control, {}
        )

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Replace the weights in a checkpoint by those that evaluations use.

        `on_save` fires at the next hook.
        """
        self._checkpoints.record_write()
        trained_weights = use_evaluated_weights(
            self.callback_handler.callbacks, pl_module, checkpoint["state_dict"]
        )
        if trained_weights:
            checkpoint["callbacks"][self.state_key]["trained_weights"] = trained_weights

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Load the trained weights into a resumed training, if a checkpoint has others too."""
        state = checkpoint.get("callbacks", {}).get(self.state_key, {})
        trained_weights = state.get("trained_weights")
        if trained_weights and trainer.state.fn == TrainerFn.FITTING:
            load_trained_weights(pl_module, trained_weights)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Restore module and optimizers."""
        self._end_training(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Fire a pending `on_save`, and restore module and optimizers."""
        self._fire_unreported_save()
        self._end_training(trainer)
