"""`Trainer`: `train`, `hyperparameter_search`, and what happens around the steps of a training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import nn

from ...lightning_modules.data.lengths import has_length
from ...lightning_modules.internals.lightning_version import require_lightning
from ...lightning_modules.models.inspection import accepted_arguments
from ..arguments.enums import HPSearchBackend
from ..arguments.parallelism import read_parallelism, samples_of_rank
from ..distributed.consistency import monitored
from ..evaluation.results import TrainingLength, TrainOutput
from ..evaluation.speed import speed_metrics
from .construction import seed_everything
from .evaluating import TrainerEvaluation
from .optimization import TrainerOptimization
from .saving import TrainerSaving
from .tracebacks import ShortTraceback
from .training_session import TrainingSession, length_of_stream, require_new_models, require_training_data

if TYPE_CHECKING:
    from ..search.hyperparameters import BestRun
    from .trainer_module import TrainerModule

# Lightning itself is imported when a training begins.
require_lightning()


class Trainer(TrainerEvaluation, TrainerOptimization, TrainerSaving):
    """As `transformers.Trainer`, but PyTorch Lightning's loops, strategies and precision plugins do the work.

    Every documented method is called by the running system and can be overridden. Nothing of Lightning is built
    before `train`, `evaluate` or `predict`, so arguments may be changed until then; `print(trainer.plan)` shows what
    they become.

    Args:
        model: the model to train: any `torch.nn.Module` that returns a loss, in a mapping, as the first of a tuple, or
            as an attribute `loss`.
        args: the training arguments, by default those of the folder `tmp_trainer`.
        data_collator: a list of samples -> a batch; by default padding with the processing class, if it can pad,
            and otherwise `default_data_collator`.
        train_dataset: map-style or iterable. Columns that the model does not take are left out.
        eval_dataset: the same, or a dict of datasets, each evaluated under its name.
        processing_class: tokenizer or the like, saved beside the model.
        model_init: makes the model, anew for each `train`; may take a trial.
        compute_loss_func: `(outputs, labels, num_items_in_batch)` -> loss. Where `compute_loss` is overridden it may be
            any value, which says that the override divides its loss by the items of all micro-batches of a step.
        compute_metrics: `EvalPrediction` -> metrics by name.
        callbacks: TrainerCallbacks, their classes, and callbacks of Lightning.
        optimizers: optimizer and learning rate scheduler, instead of those that the arguments describe.
        optimizer_cls_and_kwargs: optimizer class and arguments, for parameters that are grouped as usual.
        preprocess_logits_for_metrics: `(logits, labels)` -> what is kept of the logits of a batch.

    Attributes:
        model: the user's model, never a wrapper.
        model_wrapped: the model to call for a forward pass.
        state, control: see `TrainerState`, `TrainerControl`.
        callback_handler: holds the TrainerCallbacks.
        is_in_train: whether `train` is running.
        accelerator: the members of `accelerate.Accelerator` that scripts use.

    Raises:
        RuntimeError: there is neither a model nor a model_init (also a ValueError).
        ValueError, TypeError: parameters that cannot be, or not together; all of them in one message.
    """

    study: Any = None
    """The study of the last search with optuna; in the first process."""

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """As `transformers.Trainer.train`; Lightning's loops do the work.

        Args:
            resume_from_checkpoint: a checkpoint folder to go on from; True for the newest intact one in `output_dir`.
                A training that `torchrun` starts again goes on from its own last checkpoint, unless this is False.
            trial: the trial of a hyperparameter search.
            ignore_keys_for_eval: outputs of the model that are no predictions, for evaluations in between.

        Returns:
            Steps taken, mean training loss, and metrics.

        Raises:
            ValueError: there is nothing to train on, or the checkpoint is damaged.
            FileNotFoundError: the checkpoint is not there.
            OtherProcessError: another process failed, is gone, or did not come; it says which, and why.
            SystemExit, KeyboardInterrupt: a signal ended the training, and a checkpoint to go on from is written; see
                `checkpoint_on_signals`.
        """
        with (
            ShortTraceback(),
            self._signals.until_the_end(),
            self._hub.quiet(),
            monitored(self, acts=trial is None),
        ):
            return TrainingSession(self, trial, ignore_keys_for_eval).run(resume_from_checkpoint)

    def end(self) -> None:
        """As `transformers.Trainer.end`, of 5.18: wait for the uploads, and leave the process group.

        For the end of a script: after it no process hears of others, so several cannot train, evaluate or save.
        """
        self._finish_current_push()
        self.accelerator.end_training()

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """All of one training, with the parameters that it has in the reference: libraries do something around it."""
        session = TrainingSession(self, trial, ignore_keys_for_eval)
        return session.train_from(resume_from_checkpoint)

    @overload
    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | str | None = None,
        n_trials: int | None = 20,
        direction: str | None = None,
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun: ...

    @overload
    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | list[str] | None = None,
        n_trials: int | None = 20,
        *,
        direction: list[str],
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> list[BestRun]: ...

    @overload
    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        *,
        compute_objective: list[str],
        n_trials: int | None = 20,
        direction: list[str] | None = None,
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> list[BestRun]: ...

    @overload
    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | str | list[str] | None = None,
        n_trials: int | None = 20,
        direction: str | list[str] | None = None,
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun | list[BestRun]: ...

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | str | list[str] | None = None,
        n_trials: int | None = 20,
        direction: str | list[str] | None = None,
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun | list[BestRun]:
        """As `transformers.Trainer.hyperparameter_search`, but every trial begins from the same arguments.

        Afterwards the arguments are what they were, and the Trainer holds the best model (`final_model`); `study` is
        the study. In several processes all stop together, and each gets the result.

        Args:
            hp_space: a trial -> values by name of a training argument; by default a space of the reference.
            compute_objective: metrics of an evaluation -> a number, or a list of numbers for several objectives; also
                the name of a metric, or a list of names. By default the loss, or the sum of all other metrics.
            n_trials: how many trials; with `timeout` also None.
            direction: `minimize` or `maximize`; a list of them for several objectives. By default `minimize`; where
                `compute_objective` is the name of a metric, what is usual for that, and an error where nothing is.
            backend: `optuna`, or `ray`.
            hp_name: a trial -> the name of its folder in `output_dir`; by default `run-<number>`.
            kwargs: for optuna those of `optuna.create_study` (`study_name`, `storage`, `sampler`, `pruner`,
                `load_if_exists`) and of `Study.optimize` (`timeout`, `catch`, `callbacks`, `gc_after_trial`,
                `show_progress_bar`, and `n_jobs`, in processes of their own); for ray those of `ray.tune.run`. Besides:

                - `final_model`: what the Trainer holds afterwards: `"best"`, the model of the best trial; `"retrain"`,
                  one that is trained once more with its values, in the folder `best`; `"last"`, that of the last trial.
                - `remove_pruned`: whether folders of pruned trials are removed; False.
                - `resume_trials`: whether a trial that was interrupted goes on from its newest checkpoint; True.
                - `pruning_unit`: what evaluations are reported under, `"steps"` or completed `"epochs"`; steps of
                  different batch sizes have seen different amounts of data.
                - `report`: True to write a report to the folder `search` in `output_dir`, or a folder for it.

        Returns:
            The best run, or all that no other beats where there are several objectives.

        Raises:
            RuntimeError: there is no model_init, or the library of the backend is not installed.
            ValueError, TypeError: parameters that cannot be; an objective that is no number; no trial was completed.
            KeyError: the objective needs a metric that does not exist.
            ConnectionError: the storage cannot be reached.
            NotImplementedError: the backend is one that is refused.
        """
        require_new_models(self)
        require_training_data(self)
        try:
            return self._search.run(hp_space, compute_objective, n_trials, direction, backend, hp_name, kwargs)
        finally:
            self._trial = None

    def set_initial_training_values(self, args: Any, dataloader: Any) -> TrainingLength:
        """As `transformers.Trainer.set_initial_training_values`: how long the training is, counted in several ways.

        Raises:
            ValueError: neither the loader nor `max_steps` says how long.
        """
        batches = len(dataloader) if has_length(dataloader) else None
        each_step = self.get_total_train_batch_size(args)
        if batches is None:
            return length_of_stream(args, each_step)
        steps_per_epoch = max(math.ceil(batches / args.gradient_accumulation_steps), 1)
        examples = self.num_examples(dataloader)
        by_steps = args.max_steps > 0
        max_steps = args.max_steps if by_steps else math.ceil(args.num_train_epochs * steps_per_epoch)
        return TrainingLength(
            num_train_epochs=math.ceil(max_steps / steps_per_epoch) if by_steps else math.ceil(args.num_train_epochs),
            num_update_steps_per_epoch=steps_per_epoch,
            num_examples=examples,
            num_train_samples=max_steps * each_step if by_steps else examples * args.num_train_epochs,
            total_train_batch_size=each_step,
            steps_in_epoch=batches,
            max_steps=max_steps,
        )

    def get_total_train_batch_size(self, args: Any) -> int:
        """As `transformers.Trainer.get_total_train_batch_size`: samples of one optimizer step, over all processes."""
        copies = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()
        data_parallel = max(args.world_size // copies, 1)
        return samples_of_rank(self.args, self._train_batch_size) * args.gradient_accumulation_steps * data_parallel

    def get_tp_size(self) -> int:
        """As `transformers.Trainer.get_tp_size`: processes that share one copy of each layer."""
        groups = read_parallelism(self.args.parallelism_config)
        return getattr(groups, "tp_size", None) or getattr(self.model, "_tp_size", None) or 1

    def get_cp_size(self) -> int:
        """As `transformers.Trainer.get_cp_size`: processes that share each sequence in training (`cp_size`)."""
        return getattr(read_parallelism(self.args.parallelism_config), "cp_size", None) or 1

    def get_sp_size(self) -> int:
        """As `transformers.Trainer.get_sp_size`: processes that share each sequence by its heads (`sp_size`)."""
        return getattr(read_parallelism(self.args.parallelism_config), "sp_size", None) or 1

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: torch.Tensor | float | None,
        model: nn.Module,
        trial: Any,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        learning_rate: float | None = None,
    ) -> None:
        """Do what the control asks for at the end of a step, or of an epoch."""
        run = self._run
        assert run is not None
        if self.args.push_to_hub:
            self._checkpoints.push_written()
        if self.control.should_log and self.state.global_step > run.losses.last_logged:
            steps = self.state.global_step - run.losses.last_logged
            logs: dict[str, float] = {"loss": run.losses.take() / steps}
            if grad_norm is not None:
                logs["grad_norm"] = grad_norm.item() if isinstance(grad_norm, torch.Tensor) else grad_norm
            logs["learning_rate"] = self._get_learning_rate() if learning_rate is None else learning_rate
            run.losses.last_logged = self.state.global_step
            self.store_flos()
            self._token_counter.flush()
            self.log(logs, **accepted_arguments(self.log, start_time=start_time))  # overrides may lack it
        if self.control.should_evaluate:
            with run.interrupted_evaluation.possible():
                metrics = self._evaluate(trial, ignore_keys_for_eval)
            is_best = self._determine_best_metric(metrics=metrics, trial=trial)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best or self._signals.is_interrupted
        if self.control.should_save:
            self._token_counter.flush()
            if self._save_or_warn(model, trial):
                self.control = self.callback_handler.on_save(self.args, self.state, self.control)
            else:
                self.control.should_save = False

    def _finalize_training(self, run: TrainerModule) -> None:
        """The end of a training, while the model is still where it was trained."""
        train_loss = run.losses.mean()
        samples, steps = run.length.num_train_samples, self.state.max_steps
        metrics = speed_metrics("train", run.start_time, num_samples=samples, num_steps=steps)
        self.store_flos()
        metrics["total_flos"] = self.state.total_flos
        metrics["train_loss"] = train_loss
        self._memory_tracker.stop("train", metrics)
        if not self._signals.is_leaving:  # it would look as if all was done
            self.log(metrics)
        self._checkpoints.finish_writing()
        if not self._signals.is_leaving:
            if self.args.load_best_model_at_end and self._restorer.has_best():
                self._load_best_model()
            if not self._signals.time_is_up:
                self._checkpoints.keep_only_best(self._get_output_dir(run.trial))
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        self._hub.end_training(last_push=run.trial is None and not self._signals.is_leaving)
        self._output = TrainOutput(self.state.global_step, train_loss, metrics)

    def _renew_model(self, trial: Any) -> None:
        """Make a new model; once more if the trial changes the seed, so that what a run is called is what it was."""
        self._make_model(trial)
        seed = (self.args.seed, self.args.full_determinism)
        self._hp_search_setup(trial)
        if seed != (self.args.seed, self.args.full_determinism):
            self._make_model(trial)

    def _hp_search_setup(self, trial: Any) -> None:
        """Take up the values of a trial; an override point, called with None too, in every training."""
        self._trial = trial
        if self._search.apply(trial):
            self._train_batch_size = self.args.train_batch_size
            self._apply_arguments()

    def _make_model(self, trial: Any) -> None:
        if self.model_init is None:
            return
        if self._search.current is not None:
            self._search.current.drop_model()
        seed_everything(self.args)
        self.model = self.call_model_init(trial)
        self.optimizer = self.lr_scheduler = None
        if self.place_model_on_device:
            self._move_model_to_device(self.model, self.args.device)
        self.model_wrapped = self.model
