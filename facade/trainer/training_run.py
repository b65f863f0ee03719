"""Run one call of `train`, from the checks of the arguments to the result."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...callbacks import TrainerState
from ...callbacks._closing import close_after_error
from ...callbacks.recording import recording_into
from ...callbacks.switch_setters import SwitchSetters
from ...lightning_modules import checkpoints
from ...lightning_modules.common.file_names import TRAINER_STATE_NAME
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.models.signatures import accepted_arguments, takes_by_position
from ..accelerator.refusals import warn_of_replaced_methods
from ..arguments.rank_groups import samples_of_rank
from ..checkpointing.generators import capture_generators, restore_generators
from ..checkpointing.interrupted_evaluation import InterruptedEvaluation
from ..distributed.consistency import require_same_training
from ..distributed.shared_decisions import SharedDecisions
from ..evaluation.metrics import StartTime, speed_metrics
from ..evaluation.results import TrainingLength, TrainOutput
from .checks import require_training_data
from .epoch import Epoch
from .meters import RunningLoss
from .optimization import freeze_by_rules
from .overrides import is_own

if TYPE_CHECKING:
    from lightning.pytorch import Trainer as LightningTrainer

    from ...lightning_modules.training.accumulation import ItemCount, WindowLoader
    from .. import Trainer, TrainerModule
    from ..arguments import TrainingArguments
    from ..strategies.strategy import Strategy

logger = logging.getLogger(__name__)

# The Trainer decides when to evaluate. Lightning callbacks that monitor a metric read these
# settings; with `check_val_every_n_epoch=None` they check it after each evaluation instead of at
# the end of the epoch.
_NO_EVALUATIONS_OF_LIGHTNING: dict[str, Any] = {
    "check_val_every_n_epoch": None,
    "val_check_interval": sys.maxsize,
}


class TrainingRun:
    """One call of `train` and its state. With `auto_find_batch_size` it may run `fit` several
    times.

    Args:
        trainer: the Trainer.
        trial: the trial of a hyperparameter search.
        ignore_keys: outputs of the model that are not predictions, for evaluations during the
            training.
    """

    output: TrainOutput
    """The result; set at the end of the training."""

    # The state of a fit.
    checkpoint: str | None
    """The folder to resume from."""
    length: TrainingLength
    windows: WindowLoader
    """The data."""
    losses: RunningLoss
    epoch: Epoch
    """The current epoch; before the first one, values of the last step before the checkpoint."""
    generators_before_epoch: dict[str, Any] | None
    """States of the random generators before `on_epoch_begin` of the current epoch."""
    interrupted_evaluation: InterruptedEvaluation
    decisions: SharedDecisions | None
    """Compares the flags of the control between processes; None in a single process."""
    stopped_before_step: bool
    first_step: int
    """Number of optimizer steps before this run: 0, or the step of the checkpoint."""
    start_time: float

    module = WeakAttribute["TrainerModule"]()
    """The module of the current fit. A weak reference, because the module refers to this run, and a
    cycle would delay freeing both.
    """

    # The state of a run of Lightning.
    lightning_trainer: LightningTrainer
    strategy: Strategy

    def __init__(self, trainer: Trainer, trial: Any, ignore_keys: list[str] | None) -> None:
        self.trainer = trainer
        self.trial = trial
        self.ignore_keys = ignore_keys
        self.is_fitting = False
        self.checkpoint_is_due = False
        """Whether the checkpoint being written was requested by the control, and not written by the
        script itself.
        """

    def run(self, resume_from_checkpoint: str | bool | None) -> TrainOutput:
        """Check everything before anything is written, create the model, and train."""
        trainer = self.trainer
        components = trainer._lightrainer
        trial = self.trial

        # Checks, and the checkpoint to resume from.
        components.applied_arguments.apply()
        components.signals.begin_training()
        components.hub.begin_training()
        if trial is None:
            components.object_store.begin_training(trainer._get_output_dir(None))
        components.search.count_training()
        checkpoint = components.restorer.find_checkpoint(
            resume_from_checkpoint,
            strategy=components.strategy,
            is_trial=trial is not None,
            own_weights=is_own(trainer, "_load_from_checkpoint"),
        )
        components.hub.resume_from(checkpoint)

        require_training_data(trainer)
        warn_of_replaced_methods()
        components.checkpoint_saver.begin_training()
        trainer._memory_tracker.start("train")
        trainer.is_in_train = True
        try:
            # The model. This also applies the values of a trial, which may determine the name of
            # its folder.
            components.model_setup.renew(trial)
            if trial is not None:
                components.object_store.begin_training(trainer._get_output_dir(trial))
            components.model_preparation.replace_layers()
            if trainer.args.parameter_rules:
                freeze_by_rules(trainer)

            args = trainer.args
            # With these arguments the model was not moved when the Trainer was constructed.
            if args.fp16_full_eval or args.bf16_full_eval:
                trainer._move_model_to_device(trainer.model, args.device)
            trainer._trial = trial
            if checkpoint is not None:
                trainer._load_from_checkpoint(checkpoint)

            # The training.
            if args.auto_find_batch_size and not trainer.keep_effective_batch_size:
                components.batch_size_finder.apply_found_size(checkpoint)
            batch_size = trainer._train_batch_size
            with (
                components.elastic.same_global_batch(checkpoint, batch_size) as adjusted,
                self._adjusted(adjusted),
            ):
                output = components.batch_size_finder.run_with_fitting_batch(
                    lambda: trainer._inner_training_loop(
                        batch_size=trainer._train_batch_size,
                        args=trainer.args,
                        resume_from_checkpoint=checkpoint,
                        trial=trial,
                        ignore_keys_for_eval=self.ignore_keys,
                    ),
                    checkpoint,
                )
            components.object_store.finish_uploads()
            return output
        except BaseException:
            close_after_error(trainer.callback_handler.callbacks)
            raise
        finally:
            trainer.is_in_train = False
            trainer._memory_tracker.drop()
            components.object_store.wait_for_uploads()

    @contextmanager
    def _adjusted(self, args: TrainingArguments | None) -> Iterator[None]:
        """Train with other arguments and their batch size in the block; None changes nothing."""
        if args is None:
            yield
            return
        trainer = self.trainer
        args_before = trainer.args
        batch_size_before = trainer._train_batch_size
        trainer.args = args
        trainer._train_batch_size = args.per_device_train_batch_size
        trainer.accelerator.apply_accumulation(args)
        try:
            yield
        finally:
            trainer.args = args_before
            trainer._train_batch_size = batch_size_before
            trainer.accelerator.apply_accumulation(args_before)

    def fit(self, checkpoint: str | None) -> TrainOutput:
        """Train once, from the loader to the result.

        Args:
            checkpoint: the folder to resume from.
        """
        from .trainer_module import TrainerModule

        # The data, and the length of the training.
        trainer = self.trainer
        components = trainer._lightrainer
        self.checkpoint = checkpoint
        components.elastic.batch_size = trainer._train_batch_size
        loader: Any = trainer.get_train_dataloader()
        length = trainer.set_initial_training_values(trainer.args, loader)
        require_same_training(
            trainer,
            length,
            checkpoint,
            distributes_model=components.strategy.configures_model,
        )

        # The initial state, or the state of the checkpoint.
        self._start_trainer_state(length)
        self._position_data(loader, length)
        self._announce()
        self._start_own_state()

        # Keep a strong reference in this variable; the attribute is a weak one.
        module = TrainerModule(self)
        self.module = module

        # If no steps remain, only the events at the end are called.
        writing = components.checkpoint_saver.writing_to(trainer._get_output_dir(self.trial))
        has_steps = self.first_step < self.length.max_steps or self.windows.is_at_end
        if self.windows.epoch >= self.length.num_train_epochs or not has_steps:
            with writing:
                module.skip()
            return self.output

        self.is_fitting = True
        try:
            with (
                writing,
                components.model_preparation.prepared(),
                recording_into(self.losses.recorded),
            ):
                self._run_lightning(module)
        finally:
            self.is_fitting = False

            # Break the reference cycle between the windows and this run.
            self.windows.on_positioned = None

            # The loader of an override may be of any class, and still in use by the script.
            if is_own(trainer, "get_train_dataloader"):
                loader.shut_down_workers()
        return self.output

    def _position_data(self, loader: Any, length: TrainingLength) -> None:
        """Create the windows of the training data at the position to resume from, and set the
        length.

        Args:
            loader: the training data.
            length: the length of the training without a checkpoint.
        """
        trainer = self.trainer
        device = trainer.args.device

        def read_window(batches: Iterator[object], count: int) -> tuple[list[object], ItemCount]:
            # Pass arguments by position, because an override may name its parameters differently.
            return trainer.get_batch_samples(batches, count, device)

        self.windows, self.length = trainer._lightrainer.data_position.windows(
            loader,
            length,
            self.checkpoint,
            read_window,
            self._positioned,
        )
        trainer.state.max_steps = self.length.max_steps
        trainer.state.num_train_epochs = self.length.num_train_epochs

    def _start_own_state(self) -> None:
        """Initialize the state of a fit that this object holds: meters, epoch, shared decisions."""
        trainer = self.trainer
        components = trainer._lightrainer
        trainer._initial_num_input_tokens_seen = trainer.state.num_input_tokens_seen
        components.was_prepared = True
        self.first_step = trainer.state.global_step
        self.start_time = StartTime()
        self.losses = RunningLoss(trainer)
        components.loss_of_run = self.losses
        self.epoch = Epoch()
        self.generators_before_epoch = None
        self.interrupted_evaluation = InterruptedEvaluation(self)
        self.decisions = self._shared_decisions()
        self.stopped_before_step = False
        components.data_position.apply_progress(self)

    def _run_lightning(self, module: TrainerModule) -> None:
        from ...lightning_modules.internals import lightning_internals
        from .lightning_callbacks import check_training
        from .lightning_trainer import backward_of, lightning_run

        trainer = self.trainer
        components = trainer._lightrainer
        max_epochs = self.length.num_train_epochs

        # A stream may be read any number of times; -1 means no limit in Lightning.
        if max_epochs == sys.maxsize:
            max_epochs = -1
        check_training(
            trainer._lightning_callbacks,
            trainer.model,
            sharded=components.strategy.configures_model,
            resumed=self.checkpoint is not None,
        )
        with lightning_run(
            trainer, module, max_epochs=max_epochs, **_NO_EVALUATIONS_OF_LIGHTNING
        ) as lightning_trainer:
            self.lightning_trainer = lightning_trainer
            self.strategy = components.strategy
            # The strategy may have replaced the model when it prepared it.
            module.model = trainer.model
            lightning_internals.start_at(
                lightning_trainer,
                epoch=self.windows.epoch,
                window=self.windows.windows_done,
                global_step=self.first_step,
            )
            windows = lightning_internals.combined(self.windows, training=True)
            backward = backward_of(lightning_trainer, module)
            with (
                trainer.accelerator.training(backward, lambda: trainer.optimizer),
                lightning_internals.optimizers_in_place(lightning_trainer.strategy),
            ):
                lightning_trainer.fit(module, windows, val_dataloaders=[])
                # A callback such as Timer has stopped the training before the first step.
                if not module.has_begun:
                    module.skip()

    def finish(self) -> None:
        """Log the metrics, load the best model, and fire `on_train_end`.

        The model is still on its device.
        """
        trainer = self.trainer
        components = trainer._lightrainer
        args = trainer.args
        state = trainer.state
        for listener in components.signals.listeners():
            listener.finish_steps(state)
        is_leaving = components.signals.is_leaving

        # Metrics.
        train_loss = self.losses.mean()
        steps = state.global_step - self.first_step
        samples = self.length.num_train_samples * steps / max(state.max_steps, 1)
        metrics = speed_metrics("train", self.start_time, num_samples=samples, num_steps=steps)
        trainer.store_flos()
        components.tokens_of_run.flush()
        metrics["total_flos"] = state.total_flos
        metrics["train_loss"] = train_loss
        trainer._memory_tracker.stop("train", metrics)
        # Logging them would mark an interrupted training as complete.
        if not is_leaving:
            trainer.log(metrics)

        # Checkpoints.
        run_dir = trainer._get_output_dir(self.trial)
        components.checkpoint_saver.finish_training(run_dir, self.checkpoint)
        if not is_leaving:
            if args.load_best_model_at_end and components.restorer.has_best():
                trainer._load_best_model()
                components.callback_states.load_best()
            if not components.signals.time_is_up:
                components.checkpoint_saver.keep_only_best(run_dir)

        trainer.control = trainer.callback_handler.on_train_end(args, state, trainer.control)
        components.hub.end_training(
            uploads_model=self.trial is None and not is_leaving,
            push_checkpoint=trainer._push_from_checkpoint,
            finish_push=trainer._finish_current_push,
        )
        self.output = TrainOutput(state.global_step, train_loss, metrics)

    # The current position, for checkpoints.

    @property
    def stopping(self) -> bool:
        """Whether a callback has requested to end the epoch or the training."""
        control = self.trainer.control
        return control.should_epoch_stop or control.should_training_stop

    @property
    def epoch_is_over(self) -> bool:
        """Whether the epoch is over, including the evaluation at its end."""
        return self.epoch.is_over and self.module.evaluation is None

    @property
    def next_position(self) -> tuple[int, int]:
        """Epoch and number of finished windows at which a checkpoint saved now resumes."""
        windows = self.windows
        stops_epoch = self.trainer.control.should_epoch_stop
        is_cut_short = (windows.is_cut_short and not stops_epoch) or not self.is_last_done
        if self.epoch_is_over and not is_cut_short:
            return windows.epoch + 1, 0

        # A callback has stopped the epoch in this step, so only the end of the epoch remains.
        if stops_epoch:
            return windows.epoch, windows.windows_per_epoch

        # A step that is not finished is repeated.
        if not self.is_last_done:
            return windows.epoch, windows.windows_done - 1
        return windows.epoch, windows.windows_done

    @property
    def is_last_done(self) -> bool:
        """Whether the last window that was read has been trained, or is skipped because its epoch
        ends.
        """
        return self.epoch.stepped or self.trainer.control.should_epoch_stop

    def progress(self) -> dict[str, Any]:
        """Return losses and recorded values since the last log, for a checkpoint.

        Those of a step that is not finished are left out, because it is taken again.
        """
        is_step_done = self.is_last_done
        grad_norm = self.epoch.grad_norm
        if isinstance(grad_norm, torch.Tensor):
            grad_norm = grad_norm.item()
        return {
            "losses": self.losses.state_dict(is_step_done=is_step_done),
            "recorded": self.losses.recorded.state_dict(is_step_done=is_step_done),
            "grad_norm": grad_norm,
            "learning_rate": self.epoch.learning_rate,
        }

    def apply_progress(self, progress: dict[str, Any]) -> None:
        """Restore the result of `progress`, so that the next log includes steps before the
        checkpoint.
        """
        self.losses.load_state_dict(progress["losses"])
        self.losses.recorded.load_state_dict(progress.get("recorded", {}))
        self.epoch.grad_norm = progress["grad_norm"]
        self.epoch.learning_rate = progress["learning_rate"]

    # Steps of the training.

    def restore_before_epoch(self) -> None:
        """Restore the generators, so that `on_epoch_begin` draws the same numbers as before the
        interruption.
        """
        self.windows.restore_before_epoch()
        if self.generators_before_epoch is not None and self.windows.windows_done > 0:
            restore_generators(self.trainer, self.generators_before_epoch)
        self.generators_before_epoch = capture_generators(self.trainer)

    def stop_before_step(self) -> None:
        """End the epoch before the next step, even if its window has been read."""
        self.stopped_before_step = True
        self.windows.stop()
        if self.trainer.control.should_training_stop:
            self.lightning_trainer.should_stop = True

    def require_in_all(self, *switches: str) -> None:
        """Check that the control flags that are set on this rank are set on all ranks.

        Otherwise an evaluation or a save would deadlock; see `SharedDecisions`.
        """
        if self.decisions is None:
            return
        for switch in switches:
            if getattr(self.trainer.control, switch):
                self.decisions.require(switch, self.trainer.state.global_step)

    def require_log_in_all(self) -> None:
        """Check that all ranks call `Trainer.log`, if the call replaces a log that is due.

        The switch of that log is reset by the call, and other ranks would wait for this one.
        """
        trainer = self.trainer
        is_due = trainer.control.should_log and trainer.state.global_step > self.losses.last_logged
        if is_due and self.decisions is not None:
            self.decisions.require_log(trainer.state.global_step)

    def log_progress(self, grad_norm: Any, learning_rate: float | None, start_time: float) -> None:
        """Log the mean loss since the last log, and the gradient norm and learning rate of the last
        step.
        """
        trainer = self.trainer
        losses = self.losses
        steps = trainer.state.global_step - losses.last_logged
        logs: dict[str, float] = {"loss": losses.take() / steps}
        recorded = losses.pop_recorded()
        if isinstance(grad_norm, torch.Tensor):
            grad_norm = grad_norm.item()
        if grad_norm is not None:
            logs["grad_norm"] = grad_norm
        if learning_rate is None:
            learning_rate = trainer._get_learning_rate()
        logs["learning_rate"] = learning_rate
        logs.update(recorded)

        losses.last_logged = trainer.state.global_step
        trainer.store_flos()
        trainer._lightrainer.tokens_of_run.flush()

        # Overrides may not have this parameter, or name it differently.
        log: Callable[..., None] = trainer.log
        if takes_by_position(log, 2):
            log(logs, start_time)
        else:
            log(logs, **accepted_arguments(log, start_time=start_time))

    def save(self, model: nn.Module, trial: object, *, is_due: bool) -> bool:
        """Write a checkpoint; return False, with a warning, if the disk is full.

        Args:
            model: the model, passed to `_save_checkpoint`.
            trial: the trial, passed to `_save_checkpoint`.
            is_due: whether the control has requested it. Others are read right after.
        """
        trainer = self.trainer
        self.checkpoint_is_due = is_due
        try:
            trainer._save_checkpoint(model, trial)
            # An override may have modified files.
            trainer._lightrainer.checkpoint_saver.accept_changes()
        except OSError as error:
            checkpoints.warn_if_disk_full(error, trainer._get_output_dir(trial))
            return False
        finally:
            self.checkpoint_is_due = False
        return True

    def _save_at_once(self) -> None:
        """Write a checkpoint between two steps, and wait until it is written to disk."""
        trainer = self.trainer
        components = trainer._lightrainer
        components.tokens_of_run.flush()
        self.save(trainer.model_wrapped, trainer._trial, is_due=False)
        components.checkpoint_saver.finish_writing(flushed=True)

    def _positioned(self) -> None:
        """Continue after the data was moved to the position of the checkpoint.

        Restores the random generators, and repeats an interrupted evaluation.
        """
        self.trainer._load_rng_state(self.checkpoint)
        if self.is_fitting:
            self.interrupted_evaluation.repeat(self._evaluate, self.trainer._eval_dataloaders)

    def _evaluate(self) -> None:
        trainer = self.trainer
        metrics = trainer._evaluate(self.trial, self.ignore_keys)
        trainer._determine_best_metric(metrics=metrics, trial=self.trial)

    def _start_trainer_state(self, length: TrainingLength) -> None:
        """Create the Trainer's state, or read it from the checkpoint."""
        trainer = self.trainer
        components = trainer._lightrainer
        trainer.state = TrainerState(stateful_callbacks=components.callback_states.exported())
        trainer.state.is_hyper_param_search = self.trial is not None
        trainer.state.train_batch_size = trainer._train_batch_size
        trainer.state.compute_steps(trainer.args, length.max_steps)

        # Use the state of the checkpoint, and restore the callbacks.
        if self.checkpoint is not None:
            finds_batch_size = trainer.args.auto_find_batch_size
            saved_state = components.restorer.read_state(self.checkpoint)
            warn_of_differences(saved_state, trainer.state, batch_size=not finds_batch_size)
            trainer.state = saved_state
            trainer.state.is_hyper_param_search = self.trial is not None
            # The batch size of this attempt may be smaller than that of the checkpoint.
            if finds_batch_size:
                trainer.state.train_batch_size = trainer._train_batch_size
            trainer._load_callback_state()
            components.callback_states.load(self.checkpoint)

        trainer.state.init_training_references(
            trainer, length.max_steps, length.num_train_epochs, self.trial
        )
        components.search.begin_training(trainer.state, self.trial)

    def _shared_decisions(self) -> SharedDecisions | None:
        args = self.trainer.args
        if args.world_size == 1:
            return None
        setters = SwitchSetters()
        self.trainer.callback_handler.switch_setters = setters
        return SharedDecisions(
            setters,
            rank=args.process_index,
            world_size=args.world_size,
            timeout=float(args.ddp_timeout),
        )

    def _announce(self) -> None:
        trainer = self.trainer
        args = trainer.args
        length = self.length
        rows = {"Num examples": length.num_examples, "Num epochs": length.num_train_epochs}
        if args.max_tokens_per_batch:
            rows["Tokens of a batch"] = args.max_tokens_per_batch
        else:
            rows["Batch size per device"] = samples_of_rank(args, trainer._train_batch_size)
        rows["Total batch size (processes and accumulation)"] = length.total_train_batch_size
        rows["Gradient accumulation steps"] = args.gradient_accumulation_steps
        rows["Optimizer steps"] = length.max_steps
        rows["Trainable parameters"] = trainer.get_num_trainable_parameters()

        logger.info("***** Running training *****")
        for name, value in rows.items():
            logger.info("  %s = %s", name, f"{value:,}")
        if self.checkpoint is not None:
            logger.info(
                "  Resuming from %s: epoch %s, step %s",
                self.checkpoint,
                self.windows.epoch,
                trainer.state.global_step,
            )


def warn_of_differences(
    saved_state: TrainerState, new_state: TrainerState, *, batch_size: bool
) -> None:
    """Warn about intervals or a batch size that differ from those of the checkpoint.

    Args:
        saved_state: the state of the checkpoint, whose intervals stay in effect.
        new_state: the state that the current arguments describe, whose batch size applies.
        batch_size: whether to compare the batch size too.
    """
    intervals = ("logging_steps", "eval_steps", "save_steps")
    lines = [_difference(name, name, saved_state, new_state) for name in intervals]

    # Use the same logger as the checkpoints, because scripts may filter by its name.
    checkpoint_logger = logging.getLogger(checkpoints.__name__)
    if any(lines):
        checkpoint_logger.warning(
            "Arguments differ from those of the checkpoint, which remain in effect:%s",
            "".join(lines),
        )
    line = _difference("train_batch_size", "per_device_train_batch_size", saved_state, new_state)
    if batch_size and line:
        checkpoint_logger.warning(
            "An argument differs from that of the checkpoint, and applies from now on:%s", line
        )


def _difference(
    name: str, argument: str, saved_state: TrainerState, new_state: TrainerState
) -> str:
    """Return a line about a value that differs in the checkpoint; empty if it is the same.

    Args:
        name: the name of the value in the states.
        argument: the name of the argument.
        saved_state: the state of the checkpoint.
        new_state: the state that the current arguments describe.
    """
    saved = getattr(saved_state, name)
    new = getattr(new_state, name)
    if saved is None or saved == new:
        return ""
    return f"\n\t{argument}: {new} (from args) != {saved} (from {TRAINER_STATE_NAME})"
