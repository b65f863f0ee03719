"""Hyperparameter search of a Trainer: the entry point, and the calls that the Trainer makes
around each trial.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...lightning_modules.common.libraries import is_installed
from ...lightning_modules.common.suggestions import did_you_mean
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ..arguments.enums import HPSearchBackend
from ..arguments.trial_values import apply
from . import sweep_reports
from .hyperparameters import default_compute_objective
from .metric_objective import directions_of, metric_names, objective_from, report_position
from .retries import failures, listed
from .search_run import OPTIONS, SearchOptions, SearchRun, Transport, renew_accelerator
from .trial_folders import folder_name

if TYPE_CHECKING:
    from ...callbacks import TrainerState
    from .. import Trainer
    from .hyperparameters import BestRun

logger = logging.getLogger(__name__)

_CHOICES = {"final_model": ("best", "retrain", "last"), "pruning_unit": ("steps", "epochs")}
_DIRECTIONS = ("minimize", "maximize")
_PACKAGES = {"optuna": "optuna", "ray": "'ray[tune]'"}
_REFUSED = {
    "wandb": (
        "a sweep of W&B is led by its server. To see trials there leave backend out and set "
        "report_to='wandb'"
    ),
    "sigopt": (
        "the service was shut down, and later versions of the reference dropped it too. Leave "
        "backend out"
    ),
}


class MissingBackendError(RuntimeError, ImportError):
    """The library of a backend is not installed: a RuntimeError as in the reference, and an
    ImportError.
    """


class HyperparameterSearch:
    """The search, or the sweep, that a Trainer takes part in; outside of both each method does
    nothing.

    Args:
        trainer: the Trainer.
        transport: moves it to the processes of Ray.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer, transport: Transport) -> None:
        self.trainer = trainer
        self.transport = transport
        self.current: SearchRun | None = None

    def run(
        self,
        hp_space: Any,
        compute_objective: Any,
        number: Any,
        direction: Any,
        backend: Any,
        hp_name: Any,
        more: Any,
    ) -> BestRun | list[BestRun]:
        """Search; the parameters are those of `Trainer.hyperparameter_search`."""
        trainer = self.trainer
        chosen = make_backend(backend)
        objective = objective_from(compute_objective)
        options = read_options(number, direction, more, metric_names(compute_objective))
        chosen.check(trainer, options)
        _require_evaluation(trainer)
        trainer.hp_space = chosen.default_hp_space if hp_space is None else hp_space
        trainer.compute_objective = objective
        trainer.hp_name = hp_name
        trainer.hp_search_backend = chosen.name
        self.current = search = SearchRun(trainer, options, self.transport)
        logger.info("Search: %s.", options.goal)
        try:
            found = chosen.run(trainer, search)
            search.given.restore()
            search.install_final_model(found)
        finally:
            search.end()
            self.current = trainer.hp_search_backend = None
        for best in found if isinstance(found, list) else [found]:
            logger.info("Best (%s): trial %s with %s.", options.goal, best.run_id, best.objective)
        failed = (
            failures(trainer.study.get_trials(deepcopy=False)) if trainer.study is not None else {}
        )
        if failed:
            logger.warning("Failed trials (%s):%s", len(failed), listed(failed))
        self._write_report(options.report)
        return found

    def apply(self, trial: Any) -> bool:
        """Set the values of a trial on the arguments; return whether there were any."""
        trainer = self.trainer
        if trainer.hp_search_backend is None or trial is None:
            return False
        assert trainer.hp_space is not None
        by_optuna = trainer.hp_search_backend == HPSearchBackend.OPTUNA
        values = trainer.hp_space(trial) if by_optuna else dict(trial)
        apply(trainer.args, values)
        if self.current is not None:
            self.current.warn_of_batch_sizes(values)
        logger.info("Trial: %s", getattr(trial, "params", values))
        renew_accelerator(trainer)
        return True

    def output_dir(self, folder: str, trial: Any) -> str:
        """Return the folder of a trial in `output_dir`; `output_dir` itself outside of a search."""
        trainer = self.trainer
        if trainer.hp_search_backend is None or trial is None:
            return folder
        if self.current is not None:
            return str(self.current.run_dir(trial))

        # `train(trial=...)` of a script with its own loop over trials.
        return os.path.join(
            folder, folder_name(trainer.hp_name, trial, getattr(trial, "number", 0))
        )

    def count_training(self) -> None:
        """Number this call of `train` in a script that is a trial of a sweep."""
        sweep_reports.count_training()

    def begin_training(self, state: TrainerState, trial: Any) -> None:
        """Record the folder of the trial, in its state and in the study, before anything is
        written into it.
        """
        sweep_reports.begin_training(self.trainer)
        if self.current is not None and trial is not None:
            state.trial_name = os.path.basename(
                self.output_dir(str(self.trainer.args.output_dir), trial)
            )
            state.is_hyper_param_search = True
            self.current.note_folder(trial)

    def note(self, metrics: dict[str, float], prefix: str) -> None:
        """Write down the metrics of an evaluation in a script that is a trial of a sweep."""
        if prefix == "eval":
            sweep_reports.note(self.trainer, metrics)

    def report(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Report an evaluation in the middle of a trial to the study, and end the trial if it is to
        be pruned.

        With several objectives nothing is pruned: optuna compares single numbers only.

        Args:
            trial: the trial.
            step: optimizer steps done.
            metrics: of the evaluation.

        Raises:
            optuna.TrialPruned: it is to be pruned; `on_train_end` was called, so that trackers
                close their runs.
            SystemExit: it is to be pruned, and is a trial of a sweep.
        """
        trainer = self.trainer
        search = self.current
        sweep_reports.report(trainer, step, metrics)
        if trainer.hp_search_backend is None or trial is None:
            return
        if search is None:  # a script with its own loop over trials
            self._report_to_own_trial(trial, step, metrics)
            return
        value = search.judge(metrics)
        if search.is_over:
            return
        if trainer.hp_search_backend == HPSearchBackend.RAY:
            from .ray_backend import report as report_to_ray

            report_to_ray(trainer, metrics, value)
        elif not search.options.several and hasattr(trial, "should_prune"):
            self._report_to_optuna(search, trial, step, value)

    def _report_to_own_trial(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Report to a trial of optuna that a script hands to `train`, as the reference does."""
        import optuna

        trainer = self.trainer
        compute = trainer.compute_objective or default_compute_objective
        trainer.objective = compute(dict(metrics))
        if not hasattr(trial, "should_prune") or not isinstance(trainer.objective, (int, float)):
            return
        trial.report(trainer.objective, step)
        if trial.should_prune():
            trainer.control = trainer.callback_handler.on_train_end(
                trainer.args, trainer.state, trainer.control
            )
            raise optuna.TrialPruned

    def _report_to_optuna(self, search: SearchRun, trial: Any, step: int, value: Any) -> None:
        import optuna

        trainer = self.trainer
        unit = search.options.pruning_unit
        position = report_position(trainer.state, step, unit)
        if position is None:
            return
        if position not in search.reported:  # optuna keeps the first value, and would warn
            search.reported.add(position)
            trial.report(value, position)
        if trial.should_prune():
            trainer.control = trainer.callback_handler.on_train_end(
                trainer.args, trainer.state, trainer.control
            )
            raise optuna.TrialPruned(
                f"Pruned at {unit[:-1]} {position}, with an objective of {value:.6g}."
            )

    def _write_report(self, wanted: bool | str) -> None:
        trainer = self.trainer
        if wanted is False or trainer.study is None or not trainer.is_world_process_zero():
            return
        from .report import write_report

        folder = os.path.join(str(trainer.args.output_dir), "search") if wanted is True else wanted
        try:
            write_report(trainer.study, folder)
        except Exception as error:  # must not lose the result of the search
            logger.warning(
                "The report of the search is not in %s: %s: %s",
                folder,
                type(error).__name__,
                error,
            )


def make_backend(name: Any) -> Any:
    """Make the backend of a name; optuna without one.

    Raises:
        ValueError: the name is unknown.
        NotImplementedError: the backend is not supported; says why.
        MissingBackendError: its library is not installed.
    """
    from .optuna_backend import OptunaBackend
    from .ray_backend import RayBackend

    word = "optuna" if name is None else str(getattr(name, "value", name))
    if word in _REFUSED:
        raise NotImplementedError(f"backend={word!r} is not supported: {_REFUSED[word]}.")
    _require_choice("backend", word, list(_PACKAGES))
    if not is_installed(word):
        raise MissingBackendError(
            f"backend={word!r} is not installed: pip install {_PACKAGES[word]}"
        )
    return OptunaBackend() if word == "optuna" else RayBackend()


def read_options(
    n_trials: int | None, direction: Any, keywords: dict[str, Any], metrics: Sequence[str] = ()
) -> SearchOptions:
    """Sort the keywords of `hyperparameter_search`.

    Args:
        n_trials: see `hyperparameter_search`.
        direction: one word, or a list of them; None for that of the metrics, or else `minimize`.
        keywords: the other keywords.
        metrics: the names of the objectives, where they have any.

    Raises:
        ValueError: an option has a value that is not known, or the search would never end.
    """
    own = {name: keywords[name] for name in OPTIONS if name in keywords}
    rest = {name: value for name, value in keywords.items() if name not in own}
    if n_trials is None and rest.get("timeout") is None:
        raise ValueError(
            "n_trials is None and there is no timeout, so the search would never end. Pass one."
        )
    if n_trials is not None and n_trials < 1:
        raise ValueError(f"n_trials={n_trials!r} must be at least 1.")
    for name in own.keys() & _CHOICES.keys():
        _require_choice(name, own[name], _CHOICES[name])
    implied = direction is None
    if implied:
        direction = (
            directions_of(metrics, "direction", "compute_objective") if metrics else "minimize"
        )
    given = direction if isinstance(direction, (list, tuple)) else [direction]
    directions = [str(getattr(word, "name", word)).lower() for word in given]
    for word in directions:
        _require_choice("direction", word, _DIRECTIONS)
    if not directions or (metrics and len(metrics) != len(directions)):
        raise ValueError(
            f"direction={direction!r} must have one word for each objective: {', '.join(metrics)}."
        )
    own |= {"metrics": list(metrics), "backend": rest}
    return SearchOptions(n_trials=n_trials, directions=directions, implied=implied, **own)


def _require_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        near = did_you_mean(value, choices)
        raise ValueError(f"{name}={value!r} is not known.{near} Choose from: {', '.join(choices)}.")


def _require_evaluation(trainer: Trainer) -> None:
    package = __name__.partition(".search.")[0]
    steps = (trainer.evaluate, trainer.get_eval_dataloader)
    if trainer.eval_dataset is None and all(
        getattr(step, "__module__", "").startswith(package) for step in steps
    ):
        raise ValueError(
            "hyperparameter_search judges trials by an evaluation: pass eval_dataset=... to the "
            "Trainer."
        )
