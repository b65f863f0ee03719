"""One call of `train`: from the arguments to a run of Lightning, and to its result."""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from ...callbacks import TrainerState
from ...callbacks.recording import recording_into
from ...lightning_modules import checkpoints
from ...lightning_modules.common.file_names import TRAINER_STATE_NAME
from ..arguments.parallelism import samples_of_rank
from ..distributed.consistency import require_same_training
from ..evaluation.metrics import speed_metrics
from ..evaluation.results import TrainingLength, TrainOutput
from .checks import require_training_data
from .optimization import freeze_by_rules
from .overrides import is_own

if TYPE_CHECKING:
    from ...lightning_modules.training.accumulation import WindowLoader
    from .. import Trainer, TrainerModule

logger = logging.getLogger(__name__)

# The Trainer decides when to evaluate. Lightning's callbacks that watch a metric read these settings: an interval of
# no epoch tells them to look after each evaluation, not at the end of the epoch.
_NO_EVALUATIONS_OF_LIGHTNING: dict[str, Any] = {"check_val_every_n_epoch": None, "val_check_interval": sys.maxsize}


class TrainingRun:
    """One call of `train`; with `auto_find_batch_size` it fits more than once.

    Args:
        trainer: the Trainer.
        trial: the trial of a hyperparameter search.
        ignore_keys: outputs of the model that are no predictions, for evaluations during the training.
    """

    output: TrainOutput
    """The result, once the training has ended."""

    def __init__(self, trainer: Trainer, trial: Any, ignore_keys: list[str] | None) -> None:
        self.trainer, self.trial, self.ignore_keys = trainer, trial, ignore_keys

    def run(self, resume_from_checkpoint: str | bool | None) -> TrainOutput:
        """Check everything before anything is written, make the model, and train."""
        trainer, args, trial = self.trainer, self.trainer.args, self.trial
        trainer._apply_arguments()
        trainer._signals.begin_training(self._save_at_once)
        trainer._hub.begin_training()
        if trial is None:
            trainer._object_store.begin_training(trainer._get_output_dir(None))
        trainer._search.count_training()
        checkpoint = trainer._restorer.find_checkpoint(
            resume_from_checkpoint,
            strategy=trainer._strategy,
            is_trial=trial is not None,
            own_weights=is_own(trainer, "_load_from_checkpoint"),
        )
        require_training_data(trainer)
        trainer._checkpoints.begin_training()
        trainer._memory_tracker.start("train")
        trainer.is_in_train = True
        try:
            trainer._renew_model(trial)
            if trial is not None:  # its values may name its folder
                trainer._object_store.begin_training(trainer._get_output_dir(trial))
            trainer._model_preparation.exchange_layers()
            freeze_by_rules(trainer)
            if args.fp16_full_eval or args.bf16_full_eval:
                trainer._move_model_to_device(trainer.model, args.device)
            trainer._trial = trial
            if checkpoint is not None:
                trainer._load_from_checkpoint(checkpoint)
            if args.auto_find_batch_size and not trainer.keep_effective_batch_size:
                trainer._batch_size_finder.apply_found_size(checkpoint)
            with trainer._elastic.same_global_batch(checkpoint):
                output = trainer._batch_size_finder.until_it_fits(lambda: self._attempt(checkpoint), checkpoint)
            trainer._object_store.finish()
            return output
        finally:
            trainer._object_store.wait()
            trainer.is_in_train = False
            trainer._memory_tracker.drop()

    def _attempt(self, checkpoint: str | None) -> TrainOutput:
        return self.trainer._inner_training_loop(
            args=self.trainer.args,
            resume_from_checkpoint=checkpoint,
            trial=self.trial,
            ignore_keys_for_eval=self.ignore_keys,
        )

    def fit(self, checkpoint: str | None) -> TrainOutput:
        """Train once, from the loader to the result.

        Args:
            checkpoint: the folder to resume from.
        """
        from .trainer_module import TrainerModule

        trainer, args = self.trainer, self.trainer.args
        loader: Any = trainer.get_train_dataloader()
        length = trainer.set_initial_training_values(args, loader)
        require_same_training(trainer, length, checkpoint)
        self._start_state(length, checkpoint)
        windows, length = trainer._data_position.windows(
            loader,
            length,
            checkpoint,
            partial(trainer.get_batch_samples, device=args.device),
            partial(self._positioned, checkpoint),
        )
        trainer.state.max_steps, trainer.state.num_train_epochs = length.max_steps, length.num_train_epochs
        self._announce(length, checkpoint, windows)
        trainer._initial_num_input_tokens_seen = trainer.state.num_input_tokens_seen
        trainer._initial_global_step = trainer.state.global_step
        trainer._prepared = True
        module = TrainerModule(trainer, self, length, windows, checkpoint)
        trainer._data_position.apply_progress(module, checkpoint)
        has_steps = trainer.state.global_step < length.max_steps
        if windows.epoch >= length.num_train_epochs or not (has_steps or windows.is_at_end):
            module.skip()
            return self.output
        trainer._run = module
        try:
            run_dir, recording = trainer._get_output_dir(self.trial), recording_into(module.recorded)
            with trainer._checkpoints.writing_to(run_dir), trainer._model_preparation.until_end(), recording:
                self._run_lightning(module)
        finally:
            trainer._run = None
            if is_own(trainer, "get_train_dataloader"):
                loader.end_workers()
        return self.output

    def _run_lightning(self, module: TrainerModule) -> None:
        from ...lightning_modules.internals import lightning_internals
        from .lightning_callbacks import check_training
        from .lightning_trainer import build_lightning_trainer, distribute, planned, running

        trainer, epochs = self.trainer, module.length.num_train_epochs
        with planned(trainer) as strategy:
            sharded, resumed = trainer.plan.strategy.distributes, module.checkpoint is not None
            check_training(trainer._lightning_callbacks, trainer.model, sharded=sharded, resumed=resumed)
            distribute(trainer, module)
            lightning_trainer = build_lightning_trainer(
                trainer, max_epochs=-1 if epochs == sys.maxsize else epochs, **_NO_EVALUATIONS_OF_LIGHTNING
            )
            module.attach(lightning_trainer, strategy)
            with running(trainer, lightning_trainer, module):
                windows = lightning_internals.combined(module.windows, training=True)
                lightning_trainer.fit(module, windows, val_dataloaders=[])
                if not module.begun:  # stopped by a callback such as Timer before the first step
                    module.skip()

    def finish(self, module: TrainerModule) -> None:
        """Log the metrics, load the best model, and call `on_train_end`, while the model is still on its device."""
        trainer, args, state = self.trainer, self.trainer.args, self.trainer.state
        leaving, folder = trainer._signals.is_leaving, trainer._get_output_dir(self.trial)
        train_loss = module.losses.mean()
        steps = state.global_step - trainer._initial_global_step
        samples = module.length.num_train_samples * steps / max(state.max_steps, 1)
        metrics = speed_metrics("train", module.start_time, num_samples=samples, num_steps=steps)
        trainer.store_flos()
        metrics["total_flos"] = state.total_flos
        metrics["train_loss"] = train_loss
        trainer._memory_tracker.stop("train", metrics)
        if not leaving:  # these metrics would say that the training is complete
            trainer.log(metrics)
        trainer._checkpoints.finish_training()
        if not leaving:
            if args.load_best_model_at_end and trainer._restorer.has_best():
                trainer._load_best_model()
            if not trainer._signals.time_is_up:
                trainer._checkpoints.keep_only_best(folder)
        trainer.control = trainer.callback_handler.on_train_end(args, state, trainer.control)
        trainer._hub.end_training(last_push=self.trial is None and not leaving)
        self.output = TrainOutput(state.global_step, train_loss, metrics)

    def _save_at_once(self) -> None:
        """Write a checkpoint between two steps, and wait until it is on the disk."""
        trainer = self.trainer
        trainer._token_counter.flush()
        save_or_warn(trainer, trainer.model_wrapped, trainer._trial)
        trainer._checkpoints.finish_writing(flushed=True)

    def _positioned(self, checkpoint: str | None) -> None:
        """Restore the generators, and make up for an evaluation in which the training was interrupted."""
        self.trainer._load_rng_state(checkpoint)
        if self.trainer._run is not None:
            self.trainer._run.interrupted_evaluation.repeat()

    def _start_state(self, length: TrainingLength, checkpoint: str | None) -> None:
        trainer = self.trainer
        trainer.state = TrainerState(stateful_callbacks=trainer._callback_states.exported())
        trainer.state.is_hyper_param_search = self.trial is not None
        trainer.state.train_batch_size = trainer._train_batch_size
        trainer.state.compute_steps(trainer.args, length.max_steps)
        if checkpoint is not None:
            stored = trainer._restorer.read_state(checkpoint)
            warn_of_differences(stored, trainer.state, batch_size=not trainer.args.auto_find_batch_size)
            trainer.state = stored
            trainer.state.is_hyper_param_search = self.trial is not None
            if trainer.args.auto_find_batch_size:
                trainer.state.train_batch_size = trainer._train_batch_size
            trainer._load_callback_state()
            trainer._callback_states.load(checkpoint)
        trainer.state.init_training_references(trainer, length.max_steps, length.num_train_epochs, self.trial)
        trainer._search.begin_training(trainer.state, self.trial)

    def _announce(self, length: TrainingLength, checkpoint: str | None, windows: WindowLoader) -> None:
        trainer, budget = self.trainer, self.trainer.args.max_tokens_per_batch
        rows = {
            "Num examples": length.num_examples,
            "Num epochs": length.num_train_epochs,
            "Tokens of a batch" if budget else "Batch size per device": budget
            or samples_of_rank(trainer.args, trainer._train_batch_size),
            "Total batch size (processes and accumulation)": length.total_train_batch_size,
            "Gradient accumulation steps": trainer.args.gradient_accumulation_steps,
            "Optimizer steps": length.max_steps,
            "Trainable parameters": trainer.get_num_trainable_parameters(),
        }
        logger.info("***** Running training *****")
        for name, value in rows.items():
            logger.info("  %s = %s", name, f"{value:,}")
        if checkpoint is not None:
            logger.info("  Going on from %s: epoch %s, step %s", checkpoint, windows.epoch, trainer.state.global_step)


def save_or_warn(trainer: Trainer, model: nn.Module, trial: Any) -> bool:
    """Write a checkpoint; return False, with a warning, if the disk is full."""
    try:
        trainer._save_checkpoint(model, trial)
        trainer._checkpoints.accept_changes()  # an override may have made some
    except OSError as error:
        checkpoints.warn_if_disk_full(error, trainer._get_output_dir(trial))
        return False
    return True


def warn_of_differences(stored: TrainerState, now: TrainerState, *, batch_size: bool) -> None:
    """Warn of intervals, or a batch size, that differ from those of the checkpoint, which stay in force.

    Args:
        stored: the state in the checkpoint.
        now: that which the arguments describe.
        batch_size: compare the batch size too.
    """
    names = ["logging_steps", "eval_steps", "save_steps", *(["train_batch_size"] if batch_size else [])]
    argument = {"train_batch_size": "per_device_train_batch_size"}
    changed = [
        f"\n\t{argument.get(name, name)}: {getattr(now, name)} (from args) != {getattr(stored, name)} (from "
        f"{TRAINER_STATE_NAME})"
        for name in names
        if getattr(stored, name) is not None and getattr(stored, name) != getattr(now, name)
    ]
    if changed:
        # The logger is the one that scripts know this by.
        logging.getLogger(checkpoints.__name__).warning(
            "Arguments that do not match those of the checkpoint, which stay in force:%s", "".join(changed)
        )
