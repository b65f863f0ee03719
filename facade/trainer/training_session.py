"""One call of `train`: from the arguments to a run of Lightning, and to its result."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ...callbacks import TrainerState
from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import TRAINER_STATE_NAME
from ...lightning_modules.data.lengths import has_length
from ..arguments.parallelism import samples_of_rank
from ..distributed.consistency import require_same_training
from ..evaluation.results import TrainingLength, TrainOutput
from .base import is_own
from .data import TrainerData

if TYPE_CHECKING:
    from ...lightning_modules.training.accumulation import WindowLoader


logger = logging.getLogger(__name__)


class TrainingSession:
    """What one call of `train` does around its run; with `auto_find_batch_size` the run is tried more than once.

    Args:
        trainer: the Trainer.
        trial: the trial of a hyperparameter search.
        ignore_keys: outputs of the model that are no predictions, for evaluations in between.
    """

    def __init__(self, trainer: Any, trial: Any, ignore_keys: list[str] | None) -> None:
        self.trainer = trainer
        self.trial = trial
        self.ignore_keys = ignore_keys
        self.device = trainer.args.device

    def run(self, resume_from_checkpoint: str | bool | None) -> TrainOutput:
        """Check everything before anything is written, make the model anew, and train."""
        trainer, trial = self.trainer, self.trial
        trainer._apply_arguments()
        trainer._signals.begin_training(trainer._save_at_once)
        trainer._hub.begin_training()
        own_weights = is_own(trainer, "_load_from_checkpoint")
        checkpoint = trainer._restorer.where_to_begin(
            resume_from_checkpoint, is_trial=trial is not None, own_weights=own_weights
        )
        require_training_data(trainer)
        require_evaluation_data(trainer)
        trainer._checkpoints.begin_training()
        trainer._memory_tracker.start("train")
        trainer.is_in_train = True
        try:
            trainer._renew_model(trial)
            trainer._model_preparation.apply_liger_kernels()
            if trainer.args.fp16_full_eval or trainer.args.bf16_full_eval:
                trainer._move_model_to_device(trainer.model, trainer.args.device)
            trainer._trial = trial
            if checkpoint is not None:
                trainer._load_from_checkpoint(checkpoint)
            if trainer.args.auto_find_batch_size and not trainer.keep_effective_batch_size:
                trainer._batch_size_finder.apply_found_size(checkpoint)
            with trainer._elastic.same_global_batch(checkpoint):
                return trainer._batch_size_finder.until_it_fits(lambda: self._attempt(checkpoint), checkpoint)
        finally:
            trainer.is_in_train = False
            trainer._memory_tracker.drop()

    def _attempt(self, checkpoint: str | None) -> TrainOutput:
        return self.trainer._inner_training_loop(
            args=self.trainer.args,
            resume_from_checkpoint=checkpoint,
            trial=self.trial,
            ignore_keys_for_eval=self.ignore_keys,
        )

    def train_from(self, checkpoint: str | None) -> TrainOutput:
        """Train once, from the first loader to the result.

        Args:
            checkpoint: the folder to go on from.
        """
        from .lightning_trainer import run_fit
        from .trainer_module import TrainerModule

        trainer, trial, args = self.trainer, self.trial, self.trainer.args
        dataloader: Any = trainer.get_train_dataloader()
        length = trainer.set_initial_training_values(args, dataloader)
        require_same_training(trainer, length, checkpoint)
        self._start_state(length, checkpoint)
        windows, length = trainer._data_position.windows(
            dataloader, length, checkpoint, self._read_window, partial(self._positioned, checkpoint)
        )
        trainer.state.max_steps, trainer.state.num_train_epochs = length.max_steps, length.num_train_epochs
        self._announce(length, checkpoint, windows)
        trainer._checkpoints.remove_leftovers(trainer._get_output_dir(trial))
        trainer._initial_num_input_tokens_seen = trainer.state.num_input_tokens_seen
        trainer._prepared = True
        module = TrainerModule(
            trainer,
            length,
            windows,
            checkpoint=checkpoint,
            trial=trial,
            ignore_keys=self.ignore_keys,
            memory=trainer._batch_size_finder.consensus(),
            lends_losses=not is_own(trainer, "_maybe_log_save_evaluate"),
        )
        trainer._data_position.apply_progress(module, checkpoint)
        has_steps = trainer.state.global_step < length.max_steps
        if windows.epoch >= length.num_train_epochs or not (has_steps or windows.is_at_end):
            module.skip()
            return trainer._output
        trainer._run = module
        try:
            run_dir = trainer._get_output_dir(trial)
            with trainer._checkpoints.writing_to(run_dir), trainer._model_preparation.until_end():
                run_fit(module, max_epochs=-1 if length.num_train_epochs == sys.maxsize else length.num_train_epochs)
        finally:
            module.detach()
            trainer._run = None
            if _makes_own_loader(trainer):
                dataloader.end_workers()
        return trainer._output

    def _positioned(self, checkpoint: str | None) -> None:
        """Have the generators as they were, and begin with the evaluation in which the training was interrupted."""
        self.trainer._load_rng_state(checkpoint)
        if self.trainer._run is not None:
            self.trainer._run.interrupted_evaluation.make_up()

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

    def _read_window(self, batches: Iterator[Any], size: int) -> tuple[list[Any], Any]:
        return self.trainer.get_batch_samples(batches, size, self.device)

    def _announce(self, length: TrainingLength, checkpoint: str | None, windows: WindowLoader) -> None:
        trainer = self.trainer
        rows = {
            "Num examples": length.num_examples,
            "Num epochs": length.num_train_epochs,
            "Batch size per device": samples_of_rank(trainer.args, trainer._train_batch_size),
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


def require_training_data(trainer: Any) -> None:
    """Say at once, and before anything is written, that there is nothing to train on."""
    if not _makes_own_loader(trainer):
        return
    dataset = trainer.train_dataset
    if dataset is None:
        raise ValueError("train() needs data: pass train_dataset=... to the Trainer.")
    if isinstance(dataset, dict):
        raise TypeError(
            f"train_dataset is a dict ({', '.join(map(str, dataset))}), but training takes one dataset: pass the one "
            "to train on, or override get_train_dataloader."
        )
    if has_length(dataset) and len(dataset) == 0:
        raise ValueError("train_dataset is empty: it has length 0, so there is nothing to train on.")


def require_new_models(trainer: Any) -> None:
    """Say at once that a search cannot make a new model for each trial."""
    if trainer.model_init is None:
        raise RuntimeError(
            "hyperparameter_search needs a new model for each trial: pass model_init=... (a function that makes "
            "one) to the Trainer, instead of model=..."
        )
    if trainer.optimizer is not None and not trainer._created_lr_scheduler and not trainer._prepared:
        raise RuntimeError(
            "hyperparameter_search cannot go with an optimizer that was set on the Trainer: it holds the "
            "parameters of another model. Override create_optimizer_and_scheduler, or pass "
            "optimizer_cls_and_kwargs."
        )


def require_evaluation_data(trainer: Any) -> None:
    """Say at once that no evaluation can find a best model, for there is nothing to evaluate on."""
    package, args = __name__.rpartition(".")[0], trainer.args
    steps = (trainer.evaluate, trainer.get_eval_dataloader)
    own = all(getattr(step, "__module__", "").startswith(package) for step in steps)
    judged = args.load_best_model_at_end or args.save_strategy == "best"
    if not own or not judged or args.eval_strategy == "no":
        return
    given = trainer.eval_dataset
    found = list(given.values()) if isinstance(given, dict) else [given]
    if given is not None and all(has_length(one) and len(one) == 0 for one in found):
        raise ValueError(
            f"eval_dataset is empty ({given!r:.40}), so that no evaluation has "
            f"metric_for_best_model={args.metric_for_best_model!r}. Pass data to evaluate on, or set "
            "load_best_model_at_end=False and another save_strategy than 'best'."
        )


def length_of_stream(args: Any, each_step: int) -> TrainingLength:
    """How long a training is whose data has no length.

    Args:
        args: the training arguments.
        each_step: samples of an optimizer step, over all processes.

    Raises:
        ValueError: `max_steps` does not say it either.
    """
    if args.max_steps <= 0:
        raise ValueError(
            f"The training data has no length and max_steps is {args.max_steps}, so nothing says when to stop. Set "
            "max_steps to the number of optimizer steps to take."
        )
    return TrainingLength(
        num_train_epochs=sys.maxsize,
        num_update_steps_per_epoch=args.max_steps,
        num_examples=args.max_steps * each_step,
        num_train_samples=args.max_steps * each_step,
        total_train_batch_size=each_step,
        steps_in_epoch=args.max_steps * args.gradient_accumulation_steps,
        max_steps=args.max_steps,
    )


def warn_of_differences(stored: TrainerState, now: TrainerState, *, batch_size: bool) -> None:
    """Say where the arguments want other intervals or another batch size: those of the checkpoint stay.

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


def _makes_own_loader(trainer: Any) -> bool:
    return getattr(trainer.get_train_dataloader, "__func__", None) is TrainerData.get_train_dataloader
