"""`Trainer`, put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..arguments.enums import HPSearchBackend
from .training import Training
from .training_session import require_training_data

if TYPE_CHECKING:
    from ..search.hyperparameters import BestRun


class Trainer(Training):
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
        self._require_new_models()
        require_training_data(self)
        try:
            return self._search.run(hp_space, compute_objective, n_trials, direction, backend, hp_name, kwargs)
        finally:
            self._trial = None

    def _require_new_models(self) -> None:
        if self.model_init is None:
            raise RuntimeError(
                "hyperparameter_search needs a new model for each trial: pass model_init=... (a function that makes "
                "one) to the Trainer, instead of model=..."
            )
        if self.optimizer is not None and not self._created_lr_scheduler and not self._prepared:
            raise RuntimeError(
                "hyperparameter_search cannot go with an optimizer that was set on the Trainer: it holds the "
                "parameters of another model. Override create_optimizer_and_scheduler, or pass "
                "optimizer_cls_and_kwargs."
            )
