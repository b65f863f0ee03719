"""`hyperparameter_search`: the same training many times, each with other arguments."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..arguments.enums import HPSearchBackend
from ..compat.hyperparameters import BestRun
from ..search import child
from .training import Training
from .training_session import require_training_data

if TYPE_CHECKING:
    from ..evaluation.results import TrainingLength
    from ..search.search import Search

logger = logging.getLogger(__name__)


class Searching(Training):
    """Looks for the best arguments."""

    study: Any = None
    """The study of the last search with optuna; in the first process."""
    hp_space: Callable[[Any], dict[str, Any]] | None = None
    compute_objective: Callable[[dict[str, float]], Any] | None = None
    objective: Any = None
    """The value of the last evaluation of a trial."""
    _search: Search | None = None

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
        from ..search.backends import choose_backend
        from ..search.final import settle_model
        from ..search.objective import metric_names, objective_from
        from ..search.options import check_functions, read_options
        from ..search.search import Search

        chosen = choose_backend(backend)
        self._require_model_init()
        objective = objective_from(compute_objective)
        options = read_options(n_trials, direction, kwargs, metric_names(compute_objective))
        check_functions(hp_space, hp_name)
        chosen.check(self, options)
        self._require_evaluation()
        self.hp_space = chosen.default_hp_space if hp_space is None else hp_space
        self.compute_objective, self.hp_name, self.hp_search_backend = objective, hp_name, chosen.name
        self._search = search = Search(self, options)
        logger.info("Search: %s.", options.goal)
        try:
            found = chosen.run(self, search)
            search.given.restore()
            settle_model(search, found)
        finally:
            search.end()
            self._trial = self._search = self.hp_search_backend = None
        for best in found if isinstance(found, list) else [found]:
            logger.info("Best (%s): trial %s with %s.", options.goal, best.run_id, best.objective)
        self._report_search(options.report)
        return found

    def _hp_search_setup(self, trial: Any) -> None:
        """Take up the values of a trial; an override point, called with None too, in every training."""
        self._trial = trial
        if self.hp_search_backend is None or trial is None:
            return
        from ..arguments.trial_values import apply
        from ..search.kept import renew_accelerator

        assert self.hp_space is not None
        values = self.hp_space(trial) if self.hp_search_backend == HPSearchBackend.OPTUNA else dict(trial)
        apply(self.args, values)
        if self._search is not None:
            self._search.compare_units(values)
        logger.info("Trial: %s", getattr(trial, "params", values))
        self._train_batch_size = self.args.train_batch_size
        renew_accelerator(self)
        self._apply_arguments()

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Tell the study about an evaluation, and end the trial if it is not worth to go on with; an override point.

        Raises:
            optuna.TrialPruned: the pruner says so.
            SystemExit: it says so, and this script is a trial of a sweep.
        """
        if "LIGHTRAINER_TRIAL" in os.environ:
            child.report(self, step, metrics)
        if self.hp_search_backend is None or trial is None:
            return
        from ..search.reporting import report

        report(self, trial, step, metrics)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """See `TrainerEvaluation.evaluate`; where this script is a trial of a sweep, that hears of it."""
        metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        if "LIGHTRAINER_TRIAL" in os.environ and metric_key_prefix == "eval":
            child.note(self, metrics)
        return metrics

    def _find_checkpoint(self, resume_from_checkpoint: str | bool | None) -> str | None:
        """In a trial of a sweep that was interrupted, where that was."""
        begins = resume_from_checkpoint is None or resume_from_checkpoint is False
        if begins and "LIGHTRAINER_TRIAL" in os.environ and child.has_checkpoint(self.args):
            resume_from_checkpoint = True
        return super()._find_checkpoint(resume_from_checkpoint)

    def _renew_model(self, trial: Any) -> None:
        """A new model; once more if the trial changes the seed, so that what a run is called is what it was."""
        if self._search is not None:
            self._search.drop_model()
        super()._renew_model(trial)
        seed = (self.args.seed, self.args.full_determinism)
        self._hp_search_setup(trial)
        if self.model_init is not None and seed != (self.args.seed, self.args.full_determinism):
            if self._search is not None:
                self._search.drop_model()
            super()._renew_model(trial)

    def _start_state(self, length: TrainingLength, checkpoint: str | None, trial: Any) -> None:
        super()._start_state(length, checkpoint, trial)
        if "LIGHTRAINER_TRIAL" in os.environ:
            child.begin_training(self)
        if self._search is not None and trial is not None:
            self.state.trial_name = os.path.basename(self._get_output_dir(trial))
            self.state.is_hyper_param_search = True
            self._search.note_folder(trial)

    def _get_output_dir(self, trial: Any) -> str:
        """As the method of that name in the reference: a trial has a folder of its own."""
        folder = super()._get_output_dir(trial)
        if self.hp_search_backend is None or trial is None:
            return folder
        if self._search is not None:
            return str(self._search.run_dir(trial))
        from ..search.naming import RunFolders

        return os.path.join(folder, RunFolders(self.hp_name).name(trial))

    def _require_model_init(self) -> None:
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

    def _require_evaluation(self) -> None:
        require_training_data(self)
        own = getattr(self.get_eval_dataloader, "__func__", None) is Training.get_eval_dataloader
        own = own and getattr(self.evaluate, "__func__", None) is Searching.evaluate
        if own and self.eval_dataset is None:
            raise ValueError(
                "hyperparameter_search judges trials by an evaluation, but there is nothing to evaluate on: pass "
                "eval_dataset=... to the Trainer."
            )

    def _report_search(self, wanted: bool | str) -> None:
        if wanted is False or self.study is None or not self.is_world_process_zero():
            return
        from ..search.report import write_report

        folder = os.path.join(str(self.args.output_dir), "search") if wanted is True else wanted
        try:
            write_report(self.study, folder)
        except Exception as error:  # hours of training would be lost for it
            logger.warning("The report of the search is not in %s: %s: %s", folder, type(error).__name__, error)
