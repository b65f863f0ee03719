"""Entry point of a hyperparameter search, and the Trainer's calls around each trial."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from ...lightning_modules.common.libraries import is_installed
from ...lightning_modules.common.suggestions import did_you_mean
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ..arguments import trial_values
from ..arguments.enums import HPSearchBackend
from . import sweep_reports
from .hyperparameters import default_compute_objective
from .original_arguments import recreate_accelerator
from .retries import failure_reasons, format_failures, is_pruned
from .search_run import OPTIONS, SearchOptions, SearchRun, TrainerAccess
from .trial_folders import folder_name

if TYPE_CHECKING:
    from optuna import Trial

    from ...callbacks import TrainerState
    from ...lightning_modules.search.shared_study import SharedTrial
    from .. import Trainer
    from .hyperparameters import BestRun
    from .optuna_backend import OptunaBackend
    from .ray_backend import RayBackend
    from .search_run import OptunaTrial

    AnyTrial = OptunaTrial | dict[str, Any] | None
    """A trial of optuna, the values of a trial of Ray, or None outside of a search."""

logger = logging.getLogger(__name__)

_FINAL_MODELS = ("best", "last")
_DIRECTIONS = ("minimize", "maximize")
_UNSUPPORTED = {
    "wandb": (
        "the server of W&B controls its sweeps. To see the trials in W&B, leave backend out and "
        "set report_to='wandb'"
    ),
    "sigopt": (
        "the service was shut down, and later versions of transformers dropped it too. Leave "
        "backend out"
    ),
}
"""Backends of transformers that are not supported, each with the reason and the alternative."""


class MissingBackendError(RuntimeError, ImportError):
    """The library of a backend is not installed.

    It is a RuntimeError because transformers raises one in this case, and also an ImportError.
    """


class HyperparameterSearch:
    """The search or sweep that a Trainer belongs to. Outside of both, methods do nothing.

    Args:
        trainer: the Trainer.
        access: the functions that change the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer, access: TrainerAccess) -> None:
        self.trainer = trainer
        self.access = access
        self.current: SearchRun | None = None

    def run(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None,
        compute_objective: Callable[[dict[str, float]], Any] | None,
        n_trials: int | None,
        direction: str | list[str] | None,
        backend: str | HPSearchBackend | None,
        hp_name: Callable[[Any], str] | None,
        keywords: dict[str, Any],
    ) -> BestRun | list[BestRun]:
        """Run a search; the parameters are those of `Trainer.hyperparameter_search`."""
        # Check everything before changing the Trainer.
        trainer = self.trainer
        search_backend = make_backend(backend)
        options = read_options(n_trials, direction, keywords)
        if compute_objective is None:
            compute_objective = default_compute_objective
        if not callable(compute_objective):
            raise TypeError(
                f"compute_objective={compute_objective!r:.60} must be a function of the metrics, "
                "such as lambda metrics: metrics['eval_accuracy']."
            )
        search_backend.check(trainer, options)
        _require_evaluation(trainer)

        # Like in transformers, the Trainer keeps these attributes after the search.
        trainer.hp_space = search_backend.default_hp_space if hp_space is None else hp_space
        trainer.compute_objective = compute_objective
        trainer.hp_name = hp_name
        trainer.hp_search_backend = search_backend.name
        search = SearchRun(trainer, options, self.access)
        self.current = search
        logger.info("Search: %s the objective.", ", ".join(options.directions))

        # Create the final model with the original arguments instead of those of the last trial.
        try:
            best = search_backend.run(trainer, search)
            search.original_arguments.restore()
            search.install_final_model(best)
        finally:
            search.end()
            self.current = None
            trainer.hp_search_backend = None
        self._conclude(best)
        return best

    def _conclude(self, best: BestRun | list[BestRun]) -> None:
        """Log the best trials and the failed ones."""
        best_runs = best if isinstance(best, list) else [best]
        for run in best_runs:
            logger.info("Best: trial %s with %s.", run.run_id, run.objective)

        # Only process 0 has the study.
        study = self.trainer.study
        if study is None:
            return
        reasons = failure_reasons(study.get_trials(deepcopy=False))
        if reasons:
            logger.warning("Failed trials (%s):%s", len(reasons), format_failures(reasons))

    def apply(self, trial: AnyTrial) -> bool:
        """Set the values of a trial on the arguments, and return whether there is a trial."""
        trainer = self.trainer
        if trainer.hp_search_backend is None or trial is None:
            return False

        # Ray has sampled the values; with Optuna, calling the space samples them.
        if trainer.hp_search_backend == HPSearchBackend.OPTUNA:
            assert trainer.hp_space is not None
            values = trainer.hp_space(trial)
        else:
            values = dict(cast("dict[str, Any]", trial))
        trial_values.apply(trainer.args, values)
        logger.info("Trial: %s", getattr(trial, "params", values))

        # The accelerator depends on arguments that may have changed.
        recreate_accelerator(trainer)
        return True

    def output_dir(self, folder: str, trial: AnyTrial) -> str:
        """Return the folder of a trial.

        Args:
            folder: the `output_dir` of the arguments, which contains the folder of the trial.
            trial: the trial; outside of a search, `folder` itself is returned.
        """
        trainer = self.trainer
        if trainer.hp_search_backend is None or trial is None:
            return folder
        if self.current is not None:
            return str(self.current.run_dir(trial))

        # A script with its own loop over trials has called `train(trial=...)`.
        number = getattr(trial, "number", 0)
        return os.path.join(folder, folder_name(trainer.hp_name, trial, number))

    def count_training(self) -> None:
        """Number this call of `train` in a script that is a trial of a sweep."""
        sweep_reports.count_training()

    def begin_training(self, state: TrainerState, trial: AnyTrial) -> None:
        """Record the folder of the trial in the state and in the study.

        Called before anything is written into the folder.
        """
        sweep_reports.begin_training(self.trainer)
        if self.current is not None and trial is not None:
            folder = self.output_dir(str(self.trainer.args.output_dir), trial)
            state.trial_name = os.path.basename(folder)
            state.is_hyper_param_search = True
            self.current.record_folder(trial)

    def record_evaluation(self, metrics: dict[str, float], prefix: str) -> None:
        """Write an evaluation into the result of a trial, in a script that a sweep runs.

        Args:
            metrics: the metrics of the evaluation.
            prefix: the prefix of their names; other prefixes than `eval` are ignored.
        """
        if prefix == "eval":
            sweep_reports.record_evaluation(self.trainer, metrics)

    def report(self, trial: AnyTrial, step: int, metrics: dict[str, float]) -> None:
        """Report an evaluation during a trial to the study, and end the trial if it is pruned.

        With several objectives nothing is pruned, because Optuna compares only single numbers.

        Args:
            trial: the trial.
            step: number of optimizer steps taken.
            metrics: the metrics of the evaluation.

        Raises:
            optuna.TrialPruned: the trial is pruned. `on_train_end` has been called, so that
                trackers close their runs.
            SystemExit: the trial is pruned, and belongs to a sweep.
        """
        trainer = self.trainer
        sweep_reports.report(trainer, step, metrics)
        if trainer.hp_search_backend is None or trial is None:
            return

        # Compute the objective even if nothing is reported below, because that of the last
        # evaluation becomes the objective of the trial.
        self._set_objective(metrics)
        value = trainer.objective
        if self.current is not None and isinstance(trial, dict):
            from .ray_backend import report as report_to_ray

            report_to_ray(self.current, metrics, value)
            return

        # A script may pass its own object as the trial, which cannot be pruned.
        if isinstance(value, (int, float)) and hasattr(trial, "should_prune"):
            self._prune(cast("Trial | SharedTrial", trial), value, step)

    def _set_objective(self, metrics: dict[str, float]) -> None:
        if self.current is not None:
            self.current.set_objective(metrics)
            return
        # A script with its own loop over trials has called `train(trial=...)`.
        trainer = self.trainer
        compute = trainer.compute_objective or default_compute_objective
        trainer.objective = compute(dict(metrics))

    def _prune(self, trial: Trial | SharedTrial, value: float, step: int) -> None:
        """Report a value to the study, and raise `optuna.TrialPruned` if it prunes the trial."""
        if not is_pruned(trial, value, step):
            return
        import optuna

        sweep_reports.end_training(self.trainer)
        raise optuna.TrialPruned(f"Pruned at step {step}, with an objective of {value:.6g}.")


def make_backend(backend: str | HPSearchBackend | None) -> OptunaBackend | RayBackend:
    """Create the backend for the argument `backend`; None means Optuna.

    Raises:
        ValueError: the name is unknown.
        NotImplementedError: the backend is not supported; the message says why.
        MissingBackendError: the library of the backend is not installed.
    """
    from .optuna_backend import OptunaBackend
    from .ray_backend import RayBackend

    # For a member of our enum or of that of transformers, the name is the value.
    name = "optuna" if backend is None else str(getattr(backend, "value", backend))
    if name in _UNSUPPORTED:
        raise NotImplementedError(f"backend={name!r} is not supported: {_UNSUPPORTED[name]}.")
    _require_choice("backend", name, ("optuna", "ray"))
    if name == "optuna":
        return OptunaBackend()
    if not is_installed("ray"):
        raise MissingBackendError("backend='ray' is not installed: pip install 'ray[tune]'")
    return RayBackend()


def read_options(
    n_trials: int | None,
    direction: str | Sequence[str] | None,
    keywords: dict[str, Any],
) -> SearchOptions:
    """Check the keywords of `hyperparameter_search`, and separate those of the backend.

    Args:
        n_trials: see `hyperparameter_search`.
        direction: one word, or one word for each objective; None for `minimize`.
        keywords: the other keywords.

    Raises:
        ValueError: an option has an invalid value, or the search would never end.
    """
    # Separate our options from those of the backend.
    backend_options = dict(keywords)
    options = {}
    for name in OPTIONS:
        if name in keywords:
            options[name] = backend_options.pop(name)
    if "final_model" in options:
        _require_choice("final_model", options["final_model"], _FINAL_MODELS)

    if n_trials is None and backend_options.get("timeout") is None:
        raise ValueError(
            "n_trials=None and timeout=None: the search would never end. Pass at least one of them."
        )
    if n_trials is not None and n_trials < 1:
        raise ValueError(f"n_trials={n_trials!r} must be at least 1.")

    return SearchOptions(
        n_trials=n_trials,
        directions=_read_directions(direction),
        is_direction_implied=direction is None,
        backend=backend_options,
        **options,
    )


def _read_directions(direction: str | Sequence[str] | None) -> list[str]:
    """Return `minimize` or `maximize` for each objective; see `read_options`."""
    if direction is None:
        return ["minimize"]

    # A direction may also be an optuna.study.StudyDirection.
    words = direction if isinstance(direction, (list, tuple)) else [direction]
    directions = [str(getattr(word, "name", word)).lower() for word in words]
    for word in directions:
        _require_choice("direction", word, _DIRECTIONS)
    if not directions:
        raise ValueError("direction=[] is empty. Pass 'minimize' or 'maximize' for each objective.")
    return directions


def _require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise for a value that is not one of the choices."""
    if value not in choices:
        suggestion = did_you_mean(value, choices)
        raise ValueError(
            f"{name}={value!r} is not known.{suggestion} Choose from: {', '.join(choices)}."
        )


def _require_evaluation(trainer: Trainer) -> None:
    """Check that the Trainer can evaluate: with a dataset, or with an overridden method."""
    if trainer.eval_dataset is not None:
        return
    # A method from another package is a user's override.
    facade_package = __name__.partition(".search.")[0]
    for method in (trainer.evaluate, trainer.get_eval_dataloader):
        if not getattr(method, "__module__", "").startswith(facade_package):
            return
    raise ValueError(
        "hyperparameter_search judges trials by an evaluation, and eval_dataset is None: pass "
        "eval_dataset=... to the Trainer."
    )
