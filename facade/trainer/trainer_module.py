"""The LightningModule around the user's model, whose hooks call the methods of the Trainer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...lightning_modules.internals import fast_path, lightning_internals
from ...lightning_modules.internals.lightning_import import callbacks_of
from ...lightning_modules.models.signatures import accepted_arguments, takes_by_position
from ...lightning_modules.tasks.resuming import add_process_states
from ...lightning_modules.training.accumulation import Window
from ...lightning_modules.training.micro_batch_loss import MicroBatchLoss, ScaledBackward
from ...lightning_modules.training.out_of_memory import explain
from ..arguments.enums import DebugOption
from ..distributed.xla_device import print_metrics
from ..evaluation.metrics import StartTime
from ..evaluation.module import EvaluationModule
from ..evaluation.out_of_memory_advice import advice_for_training
from . import optimization
from .checks import check_labels
from .epoch import Epoch
from .lightning_callbacks import ReplacedSchedule
from .overrides import is_own, mentions
from .step_items import LossWeights
from .steps import wrong_loss

if TYPE_CHECKING:
    from .. import TrainingRun
    from ..evaluation.loop import Evaluation

logger = logging.getLogger(__name__)


class TrainerModule(EvaluationModule):
    """LightningModule that trains the model of a Trainer; each batch is a `Window`, one optimizer
    step.

    It uses manual optimization, because the overridable `Trainer.training_step` runs the backward
    pass itself, and clipping, callback events and the schedule must run in the documented order.
    Users of plain Lightning should use `LossModule` instead.

    Args:
        run: the current call of `train` and its state. `run.trainer` is the Trainer whose methods
            and callbacks are called; `self.trainer` is the Lightning Trainer, as in every
            LightningModule.
    """

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run.trainer.model)
        self.automatic_optimization = False
        self.run = run
        self.memory = run.trainer._lightrainer.batch_size_finder.consensus()
        self.loss_weights = LossWeights(run.trainer, run.windows.loader)
        self.exposes_losses = not is_own(run.trainer, "_maybe_log_save_evaluate")
        self.schedule = ReplacedSchedule()
        self.stepped_optimizer: Any = None
        """The optimizer that is stepped; a callback may replace that of the Trainer."""
        self.has_begun = False

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the run, and with it the data and the Trainer, for callbacks that copy the
        module.
        """
        state = super().__getstate__()
        for name in ("run", "memory", "loss_weights", "schedule", "stepped_optimizer"):
            state.pop(name, None)
        return state

    def skip(self) -> None:
        """Start and end a training whose checkpoint is already at the last step."""
        windows = self.run.windows
        self._make_optimizers()
        self.on_train_start()
        if windows.on_positioned is not None:
            windows.on_positioned()
            windows.on_positioned = None
        self.on_train_end()

    # Lightning hooks, in the order in which they are called.

    def setup(self, stage: str) -> None:
        """Restore the states of Lightning callbacks when a training resumes.

        Lightning has already called their `setup`.
        """
        run = self.run

        # Disable Lightning's own validation, because the Trainer evaluates. This is not set
        # earlier, because callbacks such as ThroughputMonitor only prepare for evaluations if it is
        # not 0.
        run.lightning_trainer.limit_val_batches = 0
        if stage == "fit" and run.checkpoint is not None:
            run.trainer._lightrainer.lightning_callback_states.load(run.checkpoint, run)

    def configure_optimizers(self) -> Any:
        """Create the optimizer and the schedule, and return them for callbacks like
        LearningRateMonitor.
        """
        optimizer, schedule = self._make_optimizers()

        # The optimizer may come from an override of `create_optimizer_and_scheduler`.
        optimization.complete_optimizer(optimizer)
        self.stepped_optimizer = self.run.trainer.optimizer

        # Lightning rejects schedules that are not attached to the optimizer.
        if not optimization.is_attached(schedule, optimizer):
            return optimizer
        self.schedule.configured = schedule
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def on_train_start(self) -> None:
        """Load the optimizer and the schedule from a checkpoint; call `on_train_begin`.

        No data has been read yet.
        """
        run = self.run
        trainer = run.trainer
        self.has_begun = True

        # The optimizer has just been created, after the model was wrapped and moved to its device.
        if run.checkpoint is not None:
            trainer._load_optimizer_and_scheduler(run.checkpoint)
            trainer._load_scaler(run.checkpoint)
            trainer._lightrainer.external_parameters.load(run.checkpoint)

        # Clear gradients from before the training.
        trainer.model.zero_grad()
        trainer._lightrainer.external_parameters.zero_grad()

        handler = trainer.callback_handler
        handler.model = trainer.model
        handler.optimizer = trainer.optimizer
        handler.lr_scheduler = trainer.lr_scheduler
        handler.train_dataloader = run.windows.loader
        run.start_time = StartTime()
        trainer.control = handler.on_train_begin(trainer.args, trainer.state, trainer.control)
        if trainer.args.eval_on_start:
            trainer._evaluate(run.trial, run.ignore_keys, skip_scheduler=True)

    def on_train_epoch_start(self) -> None:
        """Cache settings for the steps of this epoch; call `on_epoch_begin`."""
        run = self.run
        trainer = run.trainer
        lightning_trainer = run.lightning_trainer
        strategy = run.strategy

        # Signatures and overrides are inspected once per epoch, because it would slow down each
        # step.
        has_scaler = trainer.accelerator.scaler is not None
        overrides_step = not is_own(trainer, "training_step")
        epoch = Epoch(
            model=strategy.forward_model,
            optimizer=fast_path.optimizer_of(lightning_trainer),
            step_context=strategy.step_context(),
            clips_in_step=strategy.clips_in_step,
            may_skip_steps=has_scaler or strategy.step_was_skipped is not None,
            items_by_position=takes_by_position(trainer.training_step, 3),
            takes_items=bool(accepted_arguments(trainer.training_step, num_items_in_batch=None)),
            runs_own_backward=overrides_step and mentions(trainer, "backward"),
            calls_callbacks=bool(callbacks_of(lightning_trainer)),
            windows=run.windows.windows_done,
        )

        # A training that resumes in this epoch may have no further steps in it. The log at its end
        # then shows values of the last step before the checkpoint.
        if run.windows.windows_done > 0:
            epoch.grad_norm = run.epoch.grad_norm
            epoch.learning_rate = run.epoch.learning_rate
        run.epoch = epoch

        # Lightning callbacks read the logging interval of the Lightning Trainer, and learning rates
        # from its schedule.
        log_every_n_steps = 0
        if trainer.args.logging_strategy == "steps":
            log_every_n_steps = int(trainer.state.logging_steps)
        # Typed as Any, because the class does not declare attributes that are set by connectors.
        connected_trainer: Any = lightning_trainer
        connected_trainer.log_every_n_steps = log_every_n_steps
        self.schedule.update(lightning_trainer)

        # No steps remain, only the end of the epoch.
        if trainer.state.global_step >= run.length.max_steps:
            trainer.control.should_training_stop = True
        run.restore_before_epoch()
        trainer.control = trainer.callback_handler.on_epoch_begin(
            trainer.args, trainer.state, trainer.control
        )

        # A callback may have changed the number of accumulation steps.
        run.windows.set_accumulation(trainer.args.gradient_accumulation_steps)

    def on_train_batch_start(self, batch: Window, batch_idx: int) -> int | None:
        """Start a step after its window was read; return -1 to end the epoch without the step."""
        run = self.run
        trainer = run.trainer

        # A callback has requested a stop after the window was read, so it is not trained.
        if run.stopped_before_step:
            run.windows.windows_done -= 1
            return -1
        run.epoch.windows += 1
        run.epoch.stepped = False
        recorded = run.losses.recorded
        recorded.before_step = recorded.sums.copy()
        if trainer.state.global_step == run.first_step:
            check_labels(trainer, batch[0])
        trainer.control = trainer.callback_handler.on_step_begin(
            trainer.args, trainer.state, trainer.control
        )

    def training_step(self, batch: Window, batch_idx: int) -> torch.Tensor | None:
        """Run an optimizer step over a window of micro-batches; return the loss of the last one.

        The optimizer is not stepped if a callback ends the epoch between two micro-batches.
        """
        run = self.run
        trainer = run.trainer
        epoch = run.epoch
        strategy = run.strategy
        memory = self.memory
        args = trainer.args
        state = trainer.state
        handler = trainer.callback_handler
        gradient_state = trainer.accelerator.gradient_state

        # Accumulate gradients over the micro-batches of the window; ranks synchronize them in the
        # last one.
        trainer.current_gradient_accumulation_steps = len(batch)
        is_last = False
        loss = None
        if memory.is_active:
            memory.begin_step(trainer.model.buffers())

        # A single micro-batch of a single rank is the full step, so nothing scales its loss.
        micro_batches: Sequence[MicroBatchLoss | None] = (None,)
        if len(batch) > 1 or self.loss_weights.shares_batches:
            micro_batches = self.loss_weights.of_step(batch, batch.items)
        for index, (inputs, micro_batch) in enumerate(
            zip(batch, micro_batches, strict=True), start=1
        ):
            is_last = index == len(batch)
            gradient_state.sync_gradients = is_last
            # The last round of an epoch may repeat samples, which `gather_for_metrics` leaves out.
            gradient_state.loader_end = batch.loader_end if is_last else (False, -1)
            exchanging: AbstractContextManager[Any] = nullcontext()
            # With auto_find_batch_size, `settle` averages the gradients after all ranks have
            # confirmed that none ran out of memory.
            if strategy.synchronizes_gradients:
                exchange = (is_last or trainer.accelerator.sync_each_batch) and not memory.is_active
                exchanging = strategy.micro_batch(synchronize=exchange, is_last=is_last)

            # Forward and backward.
            with exchanging:
                loss = self._forward_backward(inputs, batch.items, micro_batch)
            if not is_last:
                trainer.control = handler.on_substep_end(args, state, trainer.control)
                if trainer.control.should_epoch_stop or trainer.control.should_training_stop:
                    run.require_in_all("should_epoch_stop", "should_training_stop")
                    break
        if memory.is_active:
            memory.settle(trainer.model.parameters() if is_last else ())
        if not is_last:
            return loss

        # DDP averages the gradients of the model only.
        external_parameters = trainer._lightrainer.external_parameters
        if external_parameters.parameters:
            external_parameters.average_gradients()
        # `settle` has averaged all gradients.
        if not memory.is_active:
            strategy.average_unsynchronised()

        # Clip.
        if not epoch.clips_in_step:
            norm = trainer._clip_grad_norm(epoch.model) if args.max_grad_norm > 0 else None
            epoch.grad_norm = trainer._get_grad_norm(epoch.model, grad_norm=norm)

        # Step.
        trainer.control = handler.on_pre_optimizer_step(args, state, trainer.control)
        if trainer.optimizer is not self.stepped_optimizer:
            self._step_other_optimizer()
        try:
            with epoch.step_context():
                epoch.optimizer.step()
        except Exception as error:
            explain(error, lambda: advice_for_training(args))
            if not memory.store(error):
                raise
        if memory.is_active:
            memory.settle()
        if epoch.clips_in_step:
            epoch.grad_norm = trainer._get_grad_norm(
                epoch.model, grad_norm=strategy.last_grad_norm()
            )
        trainer.control = handler.on_optimizer_step(args, state, trainer.control)

        # Step the schedule, unless the optimizer step was skipped.
        schedule = trainer.lr_scheduler
        if self.schedule.config is not None:
            epoch.learning_rate = self.schedule.step()
        else:
            epoch.learning_rate = trainer._get_learning_rate()
            skipped = epoch.may_skip_steps and trainer.accelerator.optimizer_step_was_skipped
            if schedule is not None and not skipped and not isinstance(schedule, ReduceLROnPlateau):
                schedule.step()

        # Count.
        state.global_step += 1
        state.epoch = run.windows.epochs_done(run.length.steps_in_epoch)
        epoch.stepped = True

        # Zero.
        if epoch.calls_callbacks:
            fast_path.call_callback_hooks(
                run.lightning_trainer, "on_before_zero_grad", trainer.optimizer
            )
        epoch.model.zero_grad()
        if external_parameters.parameters:
            external_parameters.zero_grad()
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Window, batch_idx: int) -> None:
        """End a step; log, evaluate and save if they are due."""
        run = self.run
        trainer = run.trainer
        if run.epoch.stepped:
            # A callback may return a control object of another library, which does not have this
            # flag.
            if getattr(trainer.control, "should_go_back", False):
                self._go_back()
            trainer.control = trainer.callback_handler.on_step_end(
                trainer.args, trainer.state, trainer.control
            )
            self._log_save_evaluate()

        control = trainer.control
        if control.should_epoch_stop or control.should_training_stop:
            run.require_in_all("should_epoch_stop", "should_training_stop")
            run.windows.stop()
        if control.should_training_stop:
            run.lightning_trainer.should_stop = True

    def on_train_epoch_end(self) -> None:
        """End an epoch; log, evaluate and save if they are due."""
        run = self.run
        trainer = run.trainer
        if run.epoch.windows == 0:
            self._stop_without_data()

        self.schedule.epoch_ended()
        trainer.control = trainer.callback_handler.on_epoch_end(
            trainer.args, trainer.state, trainer.control
        )

        # A checkpoint written from now on resumes in the next epoch, unless it is written during an
        # evaluation.
        run.epoch.is_over = True
        self._log_save_evaluate()
        if DebugOption.TPU_METRICS_DEBUG in trainer.args.debug:
            print_metrics()

        run.windows.end_epoch()
        if trainer.control.should_training_stop:
            run.require_in_all("should_training_stop")
            run.lightning_trainer.should_stop = True

    def on_train_end(self) -> None:
        """Finish the training while the model is still wrapped and on its device."""
        self.run.finish()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the states of all processes to the checkpoint of a `ModelCheckpoint`."""
        add_process_states(checkpoint, self.trainer)

    def backward(
        self, loss: torch.Tensor, *args: Any, learning_rate: float | None = None, **kwargs: Any
    ) -> None:
        """Run the backward pass.

        A learning rate is passed for optimizers such as LOMO, which step during the backward pass.
        """
        if learning_rate is None:
            loss.backward(*args, **kwargs)
        else:
            optimizer: Any = self.optimizers(use_pl_optimizer=False)
            optimizer.fused_backward(loss, learning_rate)

    # Helpers of the hooks.

    def evaluate(self, evaluation: Evaluation) -> None:
        """Run an evaluation during the training."""
        outer_evaluation = self.evaluation
        self.evaluation = evaluation
        try:
            lightning_internals.evaluate_inside_fit(self.run.lightning_trainer, evaluation.feed)
        finally:
            self.evaluation = outer_evaluation

    def _make_optimizers(self) -> tuple[Any, Any]:
        """Create optimizer and schedule, after the model was wrapped and moved to its device."""
        run = self.run
        trainer = run.trainer

        optimization.leave_earlier_training(trainer)
        is_new = trainer.optimizer is None

        # If no steps remain, the strategy is not set up.
        if not run.is_fitting:
            trainer.create_optimizer_and_scheduler(num_training_steps=run.length.max_steps)
            return trainer.optimizer, trainer.lr_scheduler

        optimizers = run.strategy.make_optimizers(self, run.length.max_steps)
        if run.strategy.makes_schedule:
            trainer._created_lr_scheduler = True
        if trainer.args.parameter_rules:
            optimization.check_rules(trainer.args, trainer.optimizer)
        if run.strategy.optimizer_holds_parameters:
            creator = None
            if is_new:
                creator = trainer
            optimization.complete_optimizer(trainer.optimizer, creator)
            self._begin_parameters()
        return optimizers

    def _begin_parameters(self) -> None:
        """Check the parameters of the optimizer, and start to train those outside of the model.

        Raises:
            ValueError: see `optimization.check_trains`.
            NotImplementedError: the model is sharded, and the optimizer trains other parameters.
        """
        run = self.run
        trainer = run.trainer
        left_out, outside = optimization.check_trains(
            trainer.optimizer, trainer.model, run.strategy.forward_model
        )
        if outside and run.strategy.sharded_model is not None:
            raise NotImplementedError(
                f"{type(trainer.optimizer).__name__} trains {len(outside)} parameters that are "
                "not part of the model, which is sharded: torch cannot save the states of "
                "both. Make their module an attribute of the model."
            )
        trainer._lightrainer.external_parameters.begin(outside)

        # Parameters that are in no group contribute to the gradient norm, so their gradients must
        # be unscaled too.
        if trainer.accelerator.scaler is not None:
            trainer.accelerator.scaler.extra_parameters = left_out

    def _forward_backward(
        self, inputs: Any, items: Any, micro_batch: MicroBatchLoss | None
    ) -> torch.Tensor | None:
        """Run `Trainer.training_step` for a micro-batch.

        Returns:
            The loss; None after an out-of-memory error, which all ranks raise together at the end
            of the step.
        """
        if self.memory.failure is not None:
            return None
        run = self.run
        trainer = run.trainer
        epoch = run.epoch
        losses = run.losses

        # `accelerator.backward` and `record` scale by this micro-batch's share of the step.
        if micro_batch is not None:
            items = micro_batch.items
            trainer.accelerator.micro_batch = micro_batch
            losses.recorded.batch = micro_batch

        # Pass the number of items by position, by name, or not at all, depending on the signature
        # of `training_step`.
        positional: tuple[Any, ...] = ()
        keywords: dict[str, Any] = {}
        if epoch.items_by_position:
            positional = (items,)
        elif epoch.takes_items:
            keywords["num_items_in_batch"] = items
        scaling = ExitStack()
        if micro_batch is not None:
            scaling.enter_context(self.loss_weights.scale_router_losses(micro_batch))
            if epoch.runs_own_backward:
                scaling.enter_context(ScaledBackward(micro_batch))

        try:
            with scaling:
                loss = trainer.training_step(epoch.model, inputs, *positional, **keywords)
            if loss is None:
                raise wrong_loss(f"{type(trainer).__name__}.training_step", loss)
        except Exception as error:
            explain(error, lambda: advice_for_training(trainer.args, inputs))
            if not self.memory.store(error):
                raise
            return None
        finally:
            if micro_batch is not None:
                trainer.accelerator.micro_batch = None
                losses.recorded.batch = None

        # Meters.
        if micro_batch is not None:
            if micro_batch.is_scaled_by_trainer:
                epoch.runs_own_backward = False
            loss = micro_batch.to_log(loss)
        losses.meter.add(loss, trainer.state.global_step - losses.last_logged)
        trainer.current_flos += float(trainer.floating_point_ops(inputs))
        trainer._track_num_input_tokens(inputs)
        return loss

    def _step_other_optimizer(self) -> None:
        """Step the optimizer by which a callback has replaced the Trainer's optimizer."""
        run = self.run
        optimizer = run.trainer.optimizer
        if not run.strategy.optimizer_holds_parameters:
            raise NotImplementedError(
                f"trainer.optimizer was replaced by {type(optimizer).__name__} during the "
                "training, but DeepSpeed steps its own. Change the param_groups of the optimizer "
                "instead, or train without DeepSpeed."
            )
        optimization.complete_optimizer(optimizer)
        run.lightning_trainer.optimizers = [optimizer]
        run.epoch.optimizer = fast_path.optimizer_of(run.lightning_trainer)
        self.stepped_optimizer = optimizer

    def _go_back(self) -> None:
        """Roll back to the newest checkpoint, as requested by a callback."""
        trainer = self.run.trainer
        components = trainer._lightrainer
        components.restorer.go_back(
            self.run,
            self.run.strategy,
            replaces_weights=components.lightning_callback_states.weights(self.run) is not None,
            load_scaler=trainer._load_scaler,
            load_external_parameters=components.external_parameters.load,
        )

    def _log_save_evaluate(self) -> None:
        run = self.run

        # As in the reference, an override receives the loss as a tensor. Creating it synchronizes
        # with the device.
        losses: Any = run.losses
        if self.exposes_losses:
            losses = losses.since_log
        run.trainer._maybe_log_save_evaluate(
            losses,
            run.epoch.grad_norm,
            run.epoch.model,
            run.trial,
            run.windows.epoch,
            run.ignore_keys,
            run.start_time,
            learning_rate=run.epoch.learning_rate,
        )

    def _stop_without_data(self) -> None:
        trainer = self.run.trainer
        if trainer.state.global_step == 0:
            raise ValueError(
                "The training data is empty: it gave no batch, so there is nothing to train on."
            )
        logger.warning(
            "This epoch gave no batch, so training stops at step %s. Set max_steps to at most the "
            "number of steps that the data provides (it is %s).",
            trainer.state.global_step,
            trainer.state.max_steps,
        )
        trainer.control.should_training_stop = True
