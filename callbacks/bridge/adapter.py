"""Lightning callback that runs TrainerCallbacks without the Trainer."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.trainer.states import TrainerFn

from ..state import TrainerControl, TrainerState, collect_states, is_exportable
from ..tensor_states import load_state_dicts, state_dicts
from .averaged_weights import load_trained_weights, use_evaluated_weights
from .core import BridgeCore
from .reports import as_evaluation


class LightningBridge(BridgeCore, Callback):
    """TrainerCallbacks in a plain `lightning.Trainer`: same events, same arguments, and what they
    ask for is done.

        bridge = LightningBridge(EarlyStoppingCallback(2), PrinterCallback(),
        metric_for_best_model="val_loss") lightning.Trainer(callbacks=[bridge]).fit(module, loader,
        val_loader)

    `HOOKS` says which hook of Lightning carries which event. `TrainerState` and `TrainerControl`
    follow Lightning: a step is an optimizer step (of each optimizer, where a module steps several),
    `epoch` counts fractions, logs are the metrics of `self.log` with `loss`, `grad_norm` and
    `learning_rate`. The switches are obeyed: `should_training_stop` and `should_epoch_stop` end the
    training and the epoch, `should_evaluate` runs Lightning's validation, `should_save` writes
    `checkpoint-N.ckpt` to `output_dir`, or a folder with `FolderCheckpointIO`, `should_log` logs.
    State, control and callbacks that export a state are kept in Lightning's checkpoints.

    Args:
        callbacks: TrainerCallbacks, or classes that can be constructed without arguments.
        model: passed to events as `model`; by default the module's attribute `model` where that has
            all parameters, otherwise the LightningModule.
        processing_class: passed to events under this name.
        name: distinguishes two bridges of one Lightning Trainer in checkpoints.
        settings: those that Lightning lacks, and callbacks read as `args`: `output_dir`,
            `metric_for_best_model`, `logging_steps`, `eval_strategy`, `save_strategy` and others,
            see `SETTINGS`. With "steps" or "epoch" the bridge evaluates or saves then, in addition
            to what Lightning does.

    Attributes:
        callback_handler: as in the Trainer; callbacks can be added and removed through it.
        state: the `TrainerState`.
        control: the `TrainerControl`.
        args: settings under their documented names, to read only.
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

    @property
    def state_key(self) -> str:
        """Under this name Lightning's checkpoints hold the state."""
        return f"LightningBridge{self._name}"

    def state_dict(self) -> dict[str, Any]:
        """Return state, control and stateful callbacks, in plain values."""
        exportable = [*self.callback_handler.callbacks, self.control]
        self.state.stateful_callbacks = collect_states(
            one for one in exportable if is_exportable(one)
        )
        tensors = state_dicts(self.callback_handler.callbacks)
        return {"trainer_state": dataclasses.asdict(self.state), "callback_states": tensors}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore state, control and callbacks, in place."""
        known = {field.name for field in dataclasses.fields(TrainerState)}
        stored = {
            name: value for name, value in state_dict["trainer_state"].items() if name in known
        }
        self.state = TrainerState(**stored)
        self._loaded = True
        load_state_dicts(self.callback_handler.callbacks, state_dict.get("callback_states", {}))
        for name, states in self.state.stateful_callbacks.items():
            present = [
                one
                for one in [*self.callback_handler.callbacks, self.control]
                if type(one).__name__ == name
            ]
            for callback, state in zip(
                present, states if isinstance(states, list) else [states], strict=False
            ):
                vars(callback).update(vars(type(callback).from_state(state)))

    # Hooks of Lightning, in the order in which they are called.

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Fire `on_init_end`, once."""
        self._connect(trainer, pl_module)
        self.state.is_local_process_zero = trainer.local_rank == 0
        self.state.is_world_process_zero = trainer.is_global_zero
        if not self._known:
            self._known = True
            self._tell("on_init_end")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Fire `on_train_begin`."""
        if not self._loaded:
            self.state = TrainerState()
            self.control = TrainerControl()
        self._loaded = False
        self._interception.close()
        self._begin_anew()
        self._fitting = True
        self._connect(trainer, pl_module)
        self._apply_plan(trainer)
        self._reports.changed(trainer.callback_metrics)
        self._intercept(trainer, pl_module)
        self._tell("on_train_begin")
        self._obey_stop(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Fire `on_epoch_begin`."""
        self._catch_up()
        self._in_epoch = True
        self._batches_in_epoch = 0
        self._leaves_epoch = False
        self._tell("on_epoch_begin")

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Fire `on_step_begin`, before the first micro-batch of a step."""
        self._validation.settle(trainer)
        self._catch_up()
        if not self._in_epoch:  # a training that resumes in mid-epoch
            self._in_epoch = True
            self._tell("on_epoch_begin")
        self._leaves_epoch = self.control.should_epoch_stop and self._batches_in_epoch > 0
        if self._leaves_epoch:
            return
        if not self._in_step:
            self._in_step = True
            self._tell("on_step_begin")
        self._steps_before = trainer.global_step
        self._awaits_pre_step = self._awaits_step = True

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Fire `on_pre_optimizer_step` under manual optimization; otherwise clipping comes
        first.
        """
        if self._flow.will_log(self.args, self.state, trainer.global_step + 1):
            self._reports.note_norm(trainer, pl_module)
        if not pl_module.automatic_optimization:
            self._about_to_step(optimizer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Fire `on_substep_end`, or `on_step_end`, and obey the control."""
        self._batches_in_epoch += 1
        self._reports.add_loss(trainer, pl_module, outputs)
        if trainer.global_step == self._steps_before:
            self._tell("on_substep_end")
        else:
            self._reports.end_step(pl_module)
            self._end_step(trainer, batch_idx)
        self._look_at_metrics(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Fire `on_epoch_end`, and obey the control."""
        self._catch_up()
        self._in_epoch = self._in_step = False
        self.control.should_training_stop = self.control.should_training_stop or trainer.should_stop
        self._tell("on_epoch_end")
        self._log_epoch(trainer)
        if self.control.should_evaluate:
            self._validate_now(trainer)
        if self.control.should_save:
            self._save(trainer)
        self._obey_stop(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Fire `on_train_end`, after the last log."""
        self._catch_up()
        self._note_best_checkpoint(trainer)
        self._log(self._reports.at_the_end(trainer, self.state.global_step))
        self._tell("on_train_end")
        self._leave(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Set aside the metrics logged before this evaluation; fires no event."""
        self._evaluation_begins(trainer, trainer.val_dataloaders)

    def on_validation_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Fire `on_prediction_step`."""
        if not trainer.sanity_checking:
            self._tell("on_prediction_step")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Fire `on_log` and `on_evaluate`; in a training, write the checkpoint that waited for
        the evaluation.
        """
        if trainer.sanity_checking:
            return
        metrics = as_evaluation(self._reports.changed(trainer.callback_metrics))
        metrics["eval_runtime"] = round(time.perf_counter() - self._evaluation_started, 4)
        self._log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, {**metrics, "epoch": self.state.epoch}
        )
        if not self._fitting:
            return
        self._evaluated_at = self.state.global_step
        self._agree_to_stop(trainer)
        self._note_best(metrics)
        if self.control.should_save:
            self._save(trainer)
        self._obey_stop(trainer)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Set aside the metrics logged before, as for a validation."""
        self._evaluation_begins(trainer, trainer.test_dataloaders)

    def on_test_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Fire `on_prediction_step`."""
        self._tell("on_prediction_step")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Fire `on_predict`, with the metrics."""
        metrics = as_evaluation(self._reports.changed(trainer.callback_metrics), "test")
        self.control = self.callback_handler.on_predict(
            self.args, self.state, self.control, metrics
        )

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Set aside the metrics logged before, as for a validation."""
        self._evaluation_begins(trainer, trainer.predict_dataloaders)

    on_predict_batch_end = on_test_batch_end

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """Fire `on_predict`, without metrics: Lightning computes none."""
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, {})

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Write the weights that evaluations use; `on_save` fires at the next hook."""
        self._checkpoints.note()
        trained = use_evaluated_weights(
            self.callback_handler.callbacks, pl_module, checkpoint["state_dict"]
        )
        if trained:
            checkpoint["callbacks"][self.state_key]["trained_weights"] = trained

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Give a resumed training the weights that were trained, where others were evaluated."""
        trained = checkpoint.get("callbacks", {}).get(self.state_key, {}).get("trained_weights")
        if trained and trainer.state.fn == TrainerFn.FITTING:
            load_trained_weights(pl_module, trained)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave module and optimizers as they were."""
        self._leave(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Fire a pending `on_save` and restore the module."""
        self._catch_up()
        self._leave(trainer)
