"""The LightningModule around the user's model: Lightning's loops call its hooks, and these call the Trainer's steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...callbacks.switch_setters import SwitchSetters
from ...lightning_modules.internals import fast_path, lightning_internals
from ...lightning_modules.internals.lightning_import import callbacks_of
from ...lightning_modules.models.inspection import accepted_arguments
from ...lightning_modules.tasks.resuming import add_process_states
from ...lightning_modules.training.accumulation import Window, WindowLoader
from ...lightning_modules.training.micro_batch_loss import MicroBatchLoss, WeighsBackward
from ...lightning_modules.training.out_of_memory import explain
from ..arguments.enums import DebugOption
from ..checkpointing.interrupted_evaluation import InterruptedEvaluation
from ..distributed.shared_decisions import SharedDecisions
from ..distributed.xla_device import print_metrics
from ..evaluation.metrics import Moment
from ..evaluation.module import EvaluationModule
from ..evaluation.out_of_memory_advice import advice_for_training
from . import optimization
from .lightning_callbacks import ReplacedSchedule
from .meters import RunningLoss
from .overrides import is_own, mentions
from .step_items import LossWeights

if TYPE_CHECKING:
    from lightning.pytorch import Trainer as LightningTrainer

    from .. import Trainer, TrainingRun
    from ..evaluation.loop import Evaluation
    from ..evaluation.results import TrainingLength
    from ..strategies.strategy import Strategy

logger = logging.getLogger(__name__)


@dataclass
class Epoch:
    """Cache of what the steps of an epoch use, and what the last one of them has left for the next log."""

    called: Any = None
    """The model to call for a forward pass, which a strategy may have wrapped."""
    optimizer: Any = None
    """See `fast_path.optimizer_of`."""
    step_context: Callable[[], AbstractContextManager[Any]] = nullcontext
    clips_in_step: bool = False
    may_skip_steps: bool = False
    takes_items: bool = False
    """`Trainer.training_step` has the parameter `num_items_in_batch`."""
    runs_own_backward: bool = False
    """An override of `Trainer.training_step` may call `loss.backward()` itself."""
    calls_callbacks: bool = False
    """There are Lightning callbacks."""
    windows: int = 0
    """Windows of the epoch that were read."""
    stepped: bool = False
    """The last window ended with a step of the optimizer."""
    grad_norm: torch.Tensor | float | None = None
    """Norm of the gradients in the last step, before clipping."""
    learning_rate: float | None = None
    """Learning rate of the last step."""
    is_over: bool = False


class TrainerModule(EvaluationModule):
    """A LightningModule that trains the model of a Trainer: one batch is one optimizer step, a `Window`.

    `Trainer.training_step`, an override point, runs the backward pass itself, and clipping, callbacks and the
    schedule happen in the documented order, so the optimization is manual. `LossModule` is for Lightning users.

    Args:
        facade: the Trainer whose steps and callbacks are called; `trainer` is Lightning's, as in every LightningModule.
        run: the call of `train`.
        length: of the training.
        windows: the data.
        checkpoint: the folder to resume from.

    Attributes:
        epoch: the current one.
        lightning_trainer: the `lightning.Trainer` that runs, once there is one.
        strategy: of the run, once there is a `lightning_trainer`.
    """

    lightning_trainer: LightningTrainer
    strategy: Strategy

    def __init__(
        self, facade: Trainer, run: TrainingRun, length: TrainingLength, windows: WindowLoader, checkpoint: str | None
    ) -> None:
        super().__init__(facade.model)
        self.automatic_optimization = False
        before = set(vars(self))
        self.facade, self.run, self.trial, self.ignore_keys = facade, run, run.trial, run.ignore_keys
        self.length, self.windows, self.checkpoint = length, windows, checkpoint
        self.memory = facade._batch_size_finder.consensus()
        self.decisions = self._shared_decisions()
        self.start_time = Moment()
        self.losses = facade._running_loss = RunningLoss(facade)
        self.loss_weights = LossWeights(facade)
        self.recorded = self.losses.recorded
        self.lends_losses = not is_own(facade, "_maybe_log_save_evaluate")
        self.epoch = Epoch()
        self.of_last_step: tuple[float | None, float | None] = (None, None)
        self.interrupted_evaluation = InterruptedEvaluation(self)
        self.schedule = ReplacedSchedule()
        self.begun = self._stopped_before_step = False
        self._of_the_run = frozenset(vars(self)) - before | {"lightning_trainer", "strategy"}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the run, its data and its Trainer, for copies by callbacks that average weights."""
        return {name: value for name, value in super().__getstate__().items() if name not in self._of_the_run}

    def attach(self, lightning_trainer: LightningTrainer, strategy: Strategy) -> None:
        """Attach the Lightning Trainer that is about to run, and set its position."""
        self.lightning_trainer = lightning_trainer
        self.strategy = strategy
        self.model = self.facade.model  # which may have been replaced while it was prepared
        lightning_internals.start_at(
            lightning_trainer,
            epoch=self.windows.epoch,
            window=self.windows.done,
            global_step=self.facade.state.global_step,
        )

    def skip(self) -> None:
        """Begin and end a training whose checkpoint is at its last step."""
        self._make_optimizers()
        self.on_train_start()
        if self.windows.on_positioned is not None:
            self.windows.on_positioned()
        self.on_train_end()

    @property
    def stopping(self) -> bool:
        """Return whether a callback asked to end the epoch or the training."""
        return self.facade.control.should_epoch_stop or self.facade.control.should_training_stop

    @property
    def epoch_is_over(self) -> bool:
        """Return whether the epoch is over, and the evaluation due at its end is done."""
        return self.epoch.is_over and self.evaluation is None

    @property
    def next_position(self) -> tuple[int, int]:
        """Return epoch and finished windows from which a training saved now would resume."""
        windows = self.windows
        cut_short = windows.is_cut_short and not self.facade.control.should_epoch_stop
        return (windows.epoch, windows.done) if cut_short or not self.epoch_is_over else (windows.epoch + 1, 0)

    def progress(self) -> dict[str, Any]:
        """Return the values of the next logs, for `apply_progress`."""
        norm, rate = self.epoch.grad_norm, self.epoch.learning_rate
        norm = norm.item() if isinstance(norm, torch.Tensor) else norm
        losses, recorded = self.losses.state_dict(), self.recorded.state_dict()
        return {"losses": losses, "recorded": recorded, "grad_norm": norm, "learning_rate": rate}

    def apply_progress(self, progress: dict[str, Any]) -> None:
        """Restore the values of the next logs from an interrupted training."""
        self.losses.load_state_dict(progress["losses"])
        self.recorded.load_state_dict(progress.get("recorded", {}))
        self.of_last_step = progress["grad_norm"], progress["learning_rate"]

    # The hooks of Lightning, in the order in which they are called.

    def setup(self, stage: str) -> None:
        """Restore the Lightning callbacks of a resumed training, which Lightning has set up by now.

        Lightning runs no evaluation itself; callbacks such as ThroughputMonitor have prepared for the Trainer's.
        """
        self.lightning_trainer.limit_val_batches = 0
        if stage == "fit" and self.checkpoint is not None:
            self.facade._lightning_callback_states.load(self.checkpoint, self)

    def configure_optimizers(self) -> Any:
        """Make optimizer and schedule, which Lightning callbacks such as LearningRateMonitor see."""
        optimizer, schedule = self._make_optimizers()
        optimization.complete_optimizer(optimizer)  # an override may have made it
        if not optimization.is_attached(schedule, optimizer):  # Lightning would refuse it
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """Load optimizer and schedule of a checkpoint; `on_train_begin`. Nothing has been read yet."""
        facade, handler = self.facade, self.facade.callback_handler
        self.begun = True
        facade._load_optimizer_and_scheduler(self.checkpoint)
        facade._load_scaler(self.checkpoint)
        facade.model.zero_grad()
        handler.model, handler.optimizer, handler.lr_scheduler = facade.model, facade.optimizer, facade.lr_scheduler
        handler.train_dataloader = self.windows.loader
        self.start_time = Moment()
        facade.control = handler.on_train_begin(facade.args, facade.state, facade.control)
        if facade.args.eval_on_start:
            facade._evaluate(self.trial, self.ignore_keys, skip_scheduler=True)

    def on_train_epoch_start(self) -> None:
        """Cache what the steps of this epoch use; `on_epoch_begin`."""
        facade, running, strategy = self.facade, self.lightning_trainer, self.strategy
        facade._training_mode.begin_epoch()
        norm, rate = self.of_last_step if self.windows.is_at_end else (None, None)
        self.epoch = Epoch(
            called=strategy.called,
            optimizer=fast_path.optimizer_of(running),
            step_context=strategy.step_context(),
            clips_in_step=strategy.clips_in_step,
            may_skip_steps=strategy.step_was_skipped is not None or facade.accelerator.scaler is not None,
            takes_items=bool(accepted_arguments(facade.training_step, num_items_in_batch=None)),
            runs_own_backward=not is_own(facade, "training_step") and mentions(facade, "backward"),
            calls_callbacks=bool(callbacks_of(running)),
            windows=self.windows.done,
            grad_norm=norm,
            learning_rate=rate,
        )
        by_steps = facade.args.logging_strategy == "steps"
        connected: Any = running  # its class does not declare what connectors set
        connected.log_every_n_steps = int(facade.state.logging_steps) if by_steps else 0
        self.schedule.update(running, facade.lr_scheduler)
        if facade.state.global_step >= self.length.max_steps:  # only the end of the epoch is left
            facade.control.should_training_stop = True
        facade.control = facade.callback_handler.on_epoch_begin(facade.args, facade.state, facade.control)

    def on_train_batch_start(self, batch: Window, batch_idx: int) -> int | None:
        """Begin a step, whose window has been read; -1 ends the epoch without it."""
        facade = self.facade
        if self._stopped_before_step:  # this window had been read already
            self.windows.done -= 1
            return -1
        self.epoch.windows += 1
        facade.control = facade.callback_handler.on_step_begin(facade.args, facade.state, facade.control)

    def training_step(self, batch: Window, batch_idx: int) -> torch.Tensor | None:
        """Take an optimizer step over a window of micro-batches; return the loss of the last one.

        There is no step if a callback ends the epoch between two micro-batches.
        """
        facade, epoch, strategy, memory = self.facade, self.epoch, self.strategy, self.memory
        args, state, handler, called = facade.args, facade.state, facade.callback_handler, epoch.called

        # Window: the gradients of its micro-batches add up, and are exchanged with those of the last.
        facade.current_gradient_accumulation_steps = len(batch)
        epoch.stepped = False
        is_last = False
        loss = None
        if memory.is_shared:
            memory.begin_step(facade.model.buffers())
        micro_batches = self.loss_weights.of_step(batch, batch.items)
        for index, (inputs, micro_batch) in enumerate(zip(batch, micro_batches, strict=True), start=1):
            is_last = index == len(batch)
            facade.accelerator.gradient_state.sync_gradients = is_last
            exchanging: AbstractContextManager[Any] = nullcontext()
            if strategy.exchanges:  # where memory is shared, `settle` exchanges, once no process has failed
                exchange = (is_last or facade.accelerator.sync_each_batch) and not memory.is_shared
                exchanging = strategy.micro_batch(exchange=exchange, steps=is_last)

            # Forward and backward.
            with exchanging:
                loss = self._forward_backward(inputs, batch.items, micro_batch)
            if not is_last:
                facade.control = handler.on_substep_end(args, state, facade.control)
                if facade.control.should_epoch_stop or facade.control.should_training_stop:
                    self.require_in_all("should_epoch_stop", "should_training_stop")
                    break
        if memory.is_shared:
            memory.settle(facade.model.parameters() if is_last else ())
        if not is_last:
            return loss

        # Clip.
        if not epoch.clips_in_step:
            norm = facade._clip_grad_norm(called) if args.max_grad_norm > 0 else None
            epoch.grad_norm = facade._get_grad_norm(called, grad_norm=norm)

        # Step.
        facade.control = handler.on_pre_optimizer_step(args, state, facade.control)
        try:
            with epoch.step_context():
                epoch.optimizer.step()
        except Exception as error:
            explain(error, lambda: advice_for_training(args))
            if not memory.keeps(error):
                raise
        if memory.is_shared:
            memory.settle()
        if epoch.clips_in_step:
            epoch.grad_norm = facade._get_grad_norm(called, grad_norm=strategy.norm_of_last_step())
        facade.control = handler.on_optimizer_step(args, state, facade.control)

        # Schedule: it stays where a step was skipped.
        schedule = facade.lr_scheduler
        if self.schedule.config is not None:
            epoch.learning_rate = self.schedule.step()
        else:
            epoch.learning_rate = facade._get_learning_rate()
            skipped = epoch.may_skip_steps and facade.accelerator.optimizer_step_was_skipped
            if schedule is not None and not skipped and not isinstance(schedule, ReduceLROnPlateau):
                schedule.step()

        # Count.
        state.global_step += 1
        state.epoch = self.windows.epochs_done(self.length.steps_in_epoch)
        epoch.stepped = True

        # Zero.
        if epoch.calls_callbacks:
            fast_path.call_callback_hooks(self.lightning_trainer, "on_before_zero_grad", facade.optimizer)
        called.zero_grad()
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Window, batch_idx: int) -> None:
        """End a step: log, evaluate and save, if they are due."""
        facade = self.facade
        if self.epoch.stepped:
            if getattr(facade.control, "should_go_back", False):  # a callback may return a control of another library
                facade._restorer.go_back(
                    self,
                    facade._strategy,
                    replaces_weights=facade._lightning_callback_states.weights(self) is not None,
                    load_scaler=facade._load_scaler,
                )
            facade.control = facade.callback_handler.on_step_end(facade.args, facade.state, facade.control)
            self._log_save_evaluate()
        control = facade.control
        if control.should_epoch_stop or control.should_training_stop:
            self.require_in_all("should_epoch_stop", "should_training_stop")
            self.windows.stop()
        if control.should_training_stop:
            self.lightning_trainer.should_stop = True

    def on_train_epoch_end(self) -> None:
        """End an epoch: log, evaluate and save, if they are due."""
        facade = self.facade
        if self.epoch.windows == 0:
            self._stop_without_data()
        self.schedule.epoch_ended()
        facade.control = facade.callback_handler.on_epoch_end(facade.args, facade.state, facade.control)
        self.epoch.is_over = True
        self._log_save_evaluate()
        if DebugOption.TPU_METRICS_DEBUG in facade.args.debug:
            print_metrics()
        self.windows.end_epoch()
        if facade.control.should_training_stop:
            self.require_in_all("should_training_stop")
            self.lightning_trainer.should_stop = True

    def on_train_end(self) -> None:
        """End the training, while the model is still wrapped and on its device."""
        self.run.finish(self)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the states of the processes to the files of a `ModelCheckpoint`."""
        add_process_states(checkpoint, self.trainer)

    def backward(self, loss: torch.Tensor, *args: Any, learning_rate: float | None = None, **kwargs: Any) -> None:
        """Run torch's backward pass, or with a learning rate that of an optimizer that steps in it."""
        if learning_rate is None:
            loss.backward(*args, **kwargs)
        else:
            optimizer: Any = self.optimizers(use_pl_optimizer=False)
            optimizer.fused_backward(loss, learning_rate)

    # Parts of the hooks, and calls between them.

    def evaluate(self, evaluation: Evaluation) -> None:
        """Run an evaluation in the middle of the training."""
        outer, self.evaluation = self.evaluation, evaluation
        try:
            lightning_internals.evaluate_inside_fit(self.lightning_trainer, evaluation.feed)
        finally:
            self.evaluation = outer

    def stop_before_step(self) -> None:
        """End the epoch before the next step, although its window may have been read."""
        self._stopped_before_step = True
        self.windows.stop()
        if self.facade.control.should_training_stop:
            self.lightning_trainer.should_stop = True

    def _make_optimizers(self) -> tuple[Any, Any]:
        """Make optimizer and schedule when the model is wrapped and on its device."""
        facade, steps = self.facade, self.length.max_steps
        if facade._created_lr_scheduler:
            facade.lr_scheduler, facade._created_lr_scheduler = None, False
        if not hasattr(self, "strategy"):  # there is none left to take
            facade.create_optimizer_and_scheduler(num_training_steps=steps)
            return facade.optimizer, facade.lr_scheduler
        made = self.strategy.make_optimizers(self, steps)
        optimization.check_rules(facade.args, facade.optimizer)
        if self.strategy.steps_parameters:
            left_out = optimization.check_trains(facade.optimizer, facade.model, self.strategy.called)
            if (scaler := facade.accelerator.scaler) is not None:
                scaler.others = left_out
        return made

    def _forward_backward(self, inputs: Any, items: Any, micro_batch: MicroBatchLoss | None) -> torch.Tensor | None:
        """Run a micro-batch through `Trainer.training_step`; return its loss, None after a shared failure."""
        facade = self.facade
        if self.memory.failure is not None:
            return None
        if micro_batch is not None:
            items = micro_batch.items
            self.recorded.batch = facade.accelerator.micro_batch = micro_batch
        try:
            known = {"num_items_in_batch": items} if self.epoch.takes_items else {}
            weighing: AbstractContextManager[Any] = nullcontext()
            if micro_batch is not None and self.epoch.runs_own_backward:
                weighing = WeighsBackward(micro_batch)
            with weighing:
                loss = facade.training_step(self.epoch.called, inputs, **known)
        except Exception as error:
            explain(error, lambda: advice_for_training(facade.args, inputs))
            if not self.memory.keeps(error):
                raise
            return None
        finally:
            if micro_batch is not None:
                self.recorded.batch = facade.accelerator.micro_batch = None
        if micro_batch is not None:
            if micro_batch.is_weighed_by_trainer:
                self.epoch.runs_own_backward = False
            loss = micro_batch.to_log(loss)
        self.losses.meter.add(loss, facade.state.global_step - self.losses.last_logged)
        facade.current_flos += float(facade.floating_point_ops(inputs))
        facade._track_num_input_tokens(inputs)
        return loss

    def _shared_decisions(self) -> SharedDecisions | None:
        """Return what compares the switches of the control between processes; None in a single process."""
        args = self.facade.args
        if args.world_size == 1:
            return None
        setters = self.facade.callback_handler.setters = SwitchSetters()
        return SharedDecisions(
            setters, rank=args.process_index, world_size=args.world_size, timeout=float(args.ddp_timeout)
        )

    def require_in_all(self, *switches: str) -> None:
        """Check that all processes act on those of these switches that are set here, see `SharedDecisions`."""
        if self.decisions is None:
            return
        for switch in switches:
            if getattr(self.facade.control, switch):
                self.decisions.require(switch, self.facade.state.global_step)

    def _log_save_evaluate(self) -> None:
        losses, epoch, facade = self.losses, self.epoch, self.facade
        given = losses.since_log if self.lends_losses else losses, epoch.grad_norm, epoch.called, self.trial
        given += self.windows.epoch, self.ignore_keys, self.start_time
        facade._maybe_log_save_evaluate(*given, learning_rate=epoch.learning_rate)

    def log_progress(self, grad_norm: Any, learning_rate: float | None, start_time: float) -> None:
        """Log the mean loss since the last log, and gradient norm and learning rate of the last step."""
        facade, losses = self.facade, self.losses
        steps = facade.state.global_step - losses.last_logged
        logs: dict[str, float] = {"loss": losses.take() / steps}
        recorded = losses.take_recorded()
        if grad_norm is not None:
            logs["grad_norm"] = grad_norm.item() if isinstance(grad_norm, torch.Tensor) else grad_norm
        logs["learning_rate"] = facade._get_learning_rate() if learning_rate is None else learning_rate
        logs.update(recorded)
        losses.last_logged = facade.state.global_step
        facade.store_flos()
        facade._token_counter.flush()
        facade.log(logs, **accepted_arguments(facade.log, start_time=start_time))  # overrides may lack it

    def _stop_without_data(self) -> None:
        state = self.facade.state
        if state.global_step == 0:
            raise ValueError("The training data is empty: it gave no batch, so there is nothing to train on.")
        said = "This epoch gave no batch, so training stops at step %s. Set max_steps (now %s) to what the data holds."
        logger.warning(said, state.global_step, state.max_steps)
        self.facade.control.should_training_stop = True
