"""One training run: what happens at each point of Lightning's loops, in the documented order."""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...lightning_modules.distributed.sharding import is_sharded, unsynchronised
from ...lightning_modules.distributed.tensor_parallel import stepping
from ...lightning_modules.internals import fast_path, lightning_internals
from ...lightning_modules.models.inspection import accepted_arguments, to_call
from ...lightning_modules.training.out_of_memory import OutOfMemoryConsensus, explained
from ..arguments.enums import DebugOption
from ..checkpointing.interrupted_evaluation import InterruptedEvaluation
from ..distributed.xla_device import print_metrics
from ..evaluation.out_of_memory_advice import advice_for_training
from ..evaluation.speed import Moment
from . import deepspeed_run as deepspeed_runs
from . import optimizer_limits
from .replaced_schedule import ReplacedSchedule
from .running_loss import RunningLoss

if TYPE_CHECKING:
    from lightning.pytorch import Trainer as LightningTrainer

    from ...lightning_modules.training.accumulation import Window, WindowLoader
    from ...lightning_modules.training.trainer_module import DrivenModule
    from ..evaluation.loop import Evaluation
    from ..evaluation.results import TrainingLength
    from ..protocols.trainer import TrainingProtocol

logger = logging.getLogger(__name__)


class TrainingRun:
    """The driver of a training: called by `DrivenModule`, it calls the Trainer's steps and callbacks.

    Args:
        trainer: the Trainer.
        length: how long the training is.
        windows: the data.
        checkpoint: the folder to go on from.
        trial: the trial of a hyperparameter search.
        ignore_keys: outputs of the model that are no predictions, for evaluations in between.
        pact: lets several processes run out of memory together; gradients are then averaged after the backward pass.
    """

    def __init__(
        self,
        trainer: TrainingProtocol,
        length: TrainingLength,
        windows: WindowLoader,
        *,
        checkpoint: str | None,
        trial: Any,
        ignore_keys: list[str] | None,
        pact: OutOfMemoryConsensus | None = None,
    ) -> None:
        self.trainer = trainer
        self.pact = pact
        self.length = length
        self.windows = windows
        self.checkpoint = checkpoint
        self.trial = trial
        self.ignore_keys = ignore_keys
        self.start_time = Moment()
        self.losses = RunningLoss(trainer)
        self.grad_norm: torch.Tensor | float | None = None
        self.learning_rate: float | None = None
        self.of_last_step: tuple[float | None, float | None] = (None, None)
        self.seen_in_epoch = 0
        self.epoch_ended = False
        self.stepped = False
        self.records_graph = bool(trainer.args.ddp_static_graph)  # DDP does that in the first pass, as it exchanges
        self.evaluation: Evaluation | None = None
        self.redoing = InterruptedEvaluation(self)
        self.schedule = ReplacedSchedule()
        self._stopped_before_step = False
        self.begun = False
        self.model: nn.Module = trainer.model
        self.sharded = False
        self.deepspeed = deepspeed_runs.EngineSteps(None)
        self.ddp: Any = None
        self.lightning_trainer: LightningTrainer
        self.module: DrivenModule

    def attach(self, lightning_trainer: LightningTrainer, module: DrivenModule) -> None:
        """Take the Lightning Trainer that is about to run, and put it where the training goes on."""
        self.lightning_trainer = lightning_trainer
        self.module = module
        lightning_internals.start_at(
            lightning_trainer,
            epoch=self.windows.epoch,
            window=self.windows.done,
            global_step=self.trainer.state.global_step,
        )

    def skip(self) -> None:
        """Begin and end a training whose checkpoint has done all of its steps."""
        self.optimizers()
        self.train_begin()
        if self.windows.on_positioned is not None:
            self.windows.on_positioned()
        self.train_end()

    @property
    def epoch_is_over(self) -> bool:
        """Whether nothing is left to do in this epoch but to save: what was due at its end is done."""
        return self.epoch_ended and self.evaluation is None

    @property
    def next_position(self) -> tuple[int, int]:
        """Epoch, and windows of it that are done, where a training goes on that is saved now."""
        windows = self.windows
        cut_short = windows.is_cut_short and not self.trainer.control.should_epoch_stop
        return (windows.epoch, windows.done) if cut_short or not self.epoch_is_over else (windows.epoch + 1, 0)

    def progress(self) -> dict[str, Any]:
        """What the next logs are made of, for `apply_progress`."""
        norm = self.grad_norm.item() if isinstance(self.grad_norm, torch.Tensor) else self.grad_norm
        return {"losses": self.losses.state_dict(), "grad_norm": norm, "learning_rate": self.learning_rate}

    def apply_progress(self, progress: dict[str, Any]) -> None:
        """Let the logs go on where those of an interrupted training ended."""
        self.losses.load_state_dict(progress["losses"])
        self.of_last_step = progress["grad_norm"], progress["learning_rate"]

    @property
    def stopping(self) -> bool:
        """Whether a callback wants the epoch, or the training, to end."""
        return self.trainer.control.should_epoch_stop or self.trainer.control.should_training_stop

    def set_up(self) -> None:
        """See `Driver.set_up`."""
        if self.checkpoint is not None:
            self.trainer._load_lightning_callbacks(self.checkpoint)

    def optimizers(self) -> tuple[Any, Any]:
        """See `Driver.optimizers`."""
        trainer = self.trainer
        if trainer._created_lr_scheduler:
            trainer.lr_scheduler, trainer._created_lr_scheduler = None, False
        takes_steps = hasattr(self, "lightning_trainer")
        if deepspeed_runs.asked_for(trainer) and takes_steps:
            return deepspeed_runs.optimizers(self)
        trainer.create_optimizer_and_scheduler(num_training_steps=self.length.max_steps)
        if takes_steps:
            called = to_call(trainer.model, trainer.model_wrapped)
            left_out = optimizer_limits.check_trains(trainer.optimizer, trainer.model, called)
            if (scaler := trainer.accelerator.scaler) is not None:
                scaler.others = left_out
        return trainer.optimizer, trainer.lr_scheduler

    def train_begin(self) -> None:
        """See `Driver.train_begin`."""
        trainer, handler = self.trainer, self.trainer.callback_handler
        self.begun = True
        trainer._load_optimizer_and_scheduler(self.checkpoint)
        trainer._load_scaler(self.checkpoint)
        trainer.model.zero_grad()
        handler.model, handler.optimizer, handler.lr_scheduler = trainer.model, trainer.optimizer, trainer.lr_scheduler
        handler.train_dataloader = self.windows.loader
        self.start_time = Moment()
        trainer.control = handler.on_train_begin(trainer.args, trainer.state, trainer.control)
        if trainer.args.eval_on_start:
            trainer._evaluate(self.trial, self.ignore_keys, skip_scheduler=True)

    def epoch_begin(self) -> None:
        """See `Driver.epoch_begin`."""
        trainer = self.trainer
        self.seen_in_epoch = self.windows.done
        self.epoch_ended = False
        self.model = to_call(trainer.model, trainer.model_wrapped)
        self.sharded = is_sharded(self.model)
        self.deepspeed = deepspeed_runs.EngineSteps(self.model)
        by_steps = trainer.args.logging_strategy == "steps"
        every = int(trainer.state.logging_steps) if by_steps else 0
        connected: Any = self.lightning_trainer  # its class does not declare what connectors set
        connected.log_every_n_steps = every
        self.schedule.look(self.lightning_trainer, trainer.lr_scheduler)
        take_step = fast_path.stepper(self.lightning_trainer, self.module.optimizers())
        self._take_optimizer_step = stepping(take_step, self.model) if self.sharded else take_step
        self.grad_norm, self.learning_rate = self.of_last_step if self.windows.is_at_end else (None, None)
        wrapper: Any = self.lightning_trainer.strategy.model
        self.ddp = wrapper if hasattr(wrapper, "require_forward_param_sync") else None
        if trainer.state.global_step >= self.length.max_steps:  # only the end of the epoch is left
            trainer.control.should_training_stop = True
        trainer.control = trainer.callback_handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)

    def step_begin(self, window: Window) -> int | None:
        """See `Driver.step_begin`."""
        trainer = self.trainer
        if self._stopped_before_step:  # this window had been read already
            self.windows.done -= 1
            return -1
        self.seen_in_epoch += 1
        if self.ddp is not None:  # Lightning's manual optimization turns it off: buffers come from the first process
            self.ddp.require_forward_param_sync = True
        trainer.control = trainer.callback_handler.on_step_begin(trainer.args, trainer.state, trainer.control)

    def step(self, window: Window) -> torch.Tensor | None:
        """See `Driver.step`."""
        trainer, last = self.trainer, len(window) - 1
        trainer.current_gradient_accumulation_steps = len(window)
        self.stepped = False
        loss = None
        for index, inputs in enumerate(window):
            sync = index == last
            trainer.accelerator.sync_gradients = sync and window.steps
            self.deepspeed.begin_batch(steps=sync and window.steps)
            exchange = (sync or trainer.accelerator.sync_each_batch or self.records_graph) and self.pact is None
            with contextlib.nullcontext() if exchange else self._unsynchronised():
                loss = self._attempt(partial(self._micro_step, inputs, window.items))
            self.records_graph = False
            if sync and window.steps:
                self._optimizer_step()
                break
            trainer.control = trainer.callback_handler.on_substep_end(trainer.args, trainer.state, trainer.control)
            if self.stopping:
                break
        if self.pact is not None and not self.stepped:
            self.pact.settle()
        return loss

    def step_end(self, window: Window) -> None:
        """See `Driver.step_end`."""
        trainer = self.trainer
        if self.stepped:
            trainer.control = trainer.callback_handler.on_step_end(trainer.args, trainer.state, trainer.control)
            self._log_save_evaluate()
        if self.stopping:
            self.windows.stop()
        if trainer.control.should_training_stop:
            self.lightning_trainer.should_stop = True

    def epoch_end(self) -> None:
        """See `Driver.epoch_end`."""
        trainer = self.trainer
        if self.seen_in_epoch == 0:
            if trainer.state.global_step == 0:
                raise ValueError("The training data is empty: it gave no batch, so there is nothing to train on.")
            logger.warning(
                "The data gave no batch in this epoch, so training stops at step %s. For an iterable dataset, set "
                "max_steps (now %s) to what it holds.",
                trainer.state.global_step,
                trainer.state.max_steps,
            )
            trainer.control.should_training_stop = True
        self.schedule.epoch_ended()
        trainer.control = trainer.callback_handler.on_epoch_end(trainer.args, trainer.state, trainer.control)
        self.epoch_ended = True
        self._log_save_evaluate()
        if DebugOption.TPU_METRICS_DEBUG in trainer.args.debug:
            print_metrics()
        self.windows.end_epoch()
        if trainer.control.should_training_stop:
            self.lightning_trainer.should_stop = True

    def train_end(self) -> None:
        """See `Driver.train_end`: what the Trainer does at the end, while the model is still in place."""
        self.trainer._finalize_training(self)

    def evaluation_step(self, inputs: Any) -> Any:
        """See `Driver.evaluation_step`."""
        assert self.evaluation is not None
        return self.evaluation.step(inputs)

    def evaluation_end(self) -> dict[str, float]:
        """See `Driver.evaluation_end`."""
        assert self.evaluation is not None
        return self.evaluation.numbers()

    def evaluate(self, evaluation: Evaluation) -> None:
        """Run an evaluation in the middle of the training."""
        outer, self.evaluation = self.evaluation, evaluation
        try:
            lightning_internals.evaluate_inside_fit(self.lightning_trainer, evaluation.feed)
        finally:
            self.evaluation = outer

    def stop_before_step(self) -> None:
        """End the epoch here, although a window may have been read that nobody has seen yet."""
        self._stopped_before_step = True
        self.windows.stop()
        if self.trainer.control.should_training_stop:
            self.lightning_trainer.should_stop = True

    def _micro_step(self, inputs: Any, items: Any) -> torch.Tensor:
        trainer = self.trainer
        known = accepted_arguments(trainer.training_step, num_items_in_batch=items)
        with explained(lambda: advice_for_training(trainer.args, inputs)):
            loss = trainer.training_step(self.model, inputs, **known)
        self.losses.add(loss)
        trainer.current_flos += float(trainer.floating_point_ops(inputs))
        trainer._track_num_input_tokens(inputs)
        return loss

    def _optimizer_step(self) -> None:
        trainer, model = self.trainer, self.model
        args, handler = trainer.args, trainer.callback_handler
        self._settle_gradients()
        if not self.deepspeed.clips:
            grad_norm = trainer._clip_grad_norm(model) if args.max_grad_norm > 0 else None
            self.grad_norm = trainer._get_grad_norm(model, grad_norm=grad_norm)
        trainer.control = handler.on_pre_optimizer_step(args, trainer.state, trainer.control)
        with explained(lambda: advice_for_training(args)):
            self._attempt(self._take_optimizer_step)
            if self.pact is not None:
                self.pact.settle()
        if self.deepspeed.clips:
            self.grad_norm = trainer._get_grad_norm(model, grad_norm=self.deepspeed.norm())
        trainer.control = handler.on_optimizer_step(args, trainer.state, trainer.control)
        self._step_schedule()
        model.zero_grad()
        trainer.state.global_step += 1
        trainer.state.epoch = self._epochs_done()
        self.stepped = True

    def _step_schedule(self) -> None:
        trainer, own = self.trainer, self.trainer.lr_scheduler
        if self.schedule.config is not None:
            self.learning_rate = self.schedule.learning_rate
            self.schedule.step_ended()
            return
        self.learning_rate = trainer._get_learning_rate()
        skipped = trainer.accelerator.optimizer_step_was_skipped  # the rate should not change
        if own is not None and not skipped and not isinstance(own, ReduceLROnPlateau):
            own.step()

    def _attempt(self, work: Any) -> Any:
        """Do what takes much memory, and with a pact keep an error until all processes can hear of it."""
        return work() if self.pact is None else self.pact.attempt(work)

    def _settle_gradients(self) -> None:
        if self.pact is not None:
            self.pact.settle(self.trainer.model.parameters())

    def _epochs_done(self) -> float:
        micro_batches = self.windows.done * self.windows.accumulation
        if self.windows.batches is not None:
            micro_batches = min(micro_batches, self.windows.batches)
        return self.windows.epoch + micro_batches / self.length.steps_in_epoch

    def _log_save_evaluate(self) -> None:
        trainer = self.trainer
        trainer._maybe_log_save_evaluate(
            self.losses,
            self.grad_norm,
            trainer.model,
            self.trial,
            self.windows.epoch,
            self.ignore_keys,
            self.start_time,
            learning_rate=self.learning_rate,
        )

    def _unsynchronised(self) -> Any:
        if self.deepspeed.engine is not None:  # it knows by `begin_batch`
            return contextlib.nullcontext()
        if self.sharded:
            return unsynchronised(self.model)
        strategy: Any = self.lightning_trainer.strategy
        return strategy.block_backward_sync() if hasattr(strategy, "block_backward_sync") else contextlib.nullcontext()
