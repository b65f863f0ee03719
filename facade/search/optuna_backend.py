"""A search with optuna: its study, the objective that trains a trial, and its result."""

from __future__ import annotations

import inspect
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...lightning_modules.checkpoints import last_intact_checkpoint
from ...lightning_modules.common.suggestions import did_you_mean
from ...lightning_modules.search.channel import Channel
from ..arguments.enums import HPSearchBackend
from . import retries
from .earlier_trials import begin_with, require_comparable, short_name, suggested
from .forked_workers import check_jobs, optimize_in_workers
from .hyperparameters import BestRun, default_hp_space_optuna
from .metric_objective import listed_metrics, why_unusable
from .report import require_plotly
from .search_run import OPTIONS, SearchOptions, SearchRun, enqueue
from .storages import (
    StorageError,
    open_storage,
    shown,
    until_unlocked,
    without_experimental_warnings,
)

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

logger = logging.getLogger(__name__)


class OptunaBackend:
    """Runs a study of optuna. With several processes the first one has it, and all train each
    trial together.
    """

    name = HPSearchBackend.OPTUNA
    default_hp_space = staticmethod(default_hp_space_optuna)

    def check(self, trainer: Any, options: SearchOptions) -> None:
        """Sort the keywords between the study and its optimization.

        Raises:
            TypeError: a keyword that neither takes.
            ValueError: an impossible `n_jobs`.
            ImportError: a report needs a library that is not installed.
        """
        import optuna

        of_study = set(inspect.signature(optuna.study.create_study).parameters) - {
            "direction",
            "directions",
        }
        of_optimization = set(inspect.signature(optuna.study.Study.optimize).parameters) - {
            "self",
            "func",
            "n_trials",
        }
        for name, value in options.backend.items():
            if name not in of_study | of_optimization:
                known = sorted({*of_study, *of_optimization, *OPTIONS})
                raise TypeError(
                    "hyperparameter_search does not know "
                    f"{name}={value!r:.60}.{did_you_mean(name, known)} Further keywords are: "
                    f"{', '.join(known)}."
                )
        self._of_study = {
            name: value for name, value in options.backend.items() if name in of_study
        }
        self._of_optimization = {
            name: value for name, value in options.backend.items() if name in of_optimization
        }
        self._jobs = self._of_optimization.pop("n_jobs", 1)
        check_jobs(self._jobs, trainer)
        if options.report:
            require_plotly()

    def run(self, trainer: Any, search: SearchRun) -> BestRun | list[BestRun]:
        """Run all trials; every process gets the result."""
        from optuna.pruners import NopPruner

        from ...lightning_modules.search.shared_study import optimize_together  # imports Lightning

        options = {"n_trials": search.options.n_trials, **self._of_optimization}
        channel = Channel(seconds=float(trainer.args.ddp_timeout))
        try:
            channel.run_on_first(lambda: self._open_study(trainer, search.options))
            study = trainer.study
            if study is not None and not isinstance(study.pruner, NopPruner):
                search.pruner = study.pruner
                if search.options.several and self._of_study.get("pruner") is not None:
                    logger.warning(
                        "pruner=%s prunes nothing: there are several objectives, and optuna "
                        "compares single numbers.",
                        type(study.pruner).__name__,
                    )
            if self._jobs != 1:
                optimize_in_workers(search, study, self._jobs, OptunaObjective, options)
                found, folders = _best_and_folders(study)
            else:
                objective = OptunaObjective(search, study, channel)
                options |= {
                    "channel": channel,
                    "result": _best_and_folders,
                    "completed": search.completed,
                }
                found, folders = optimize_together(study, objective, **options)
            search.places.update(folders)
            return found
        finally:
            channel.close()

    def _open_study(self, trainer: Any, options: SearchOptions) -> None:
        check_enqueued(trainer.hp_space, options.enqueue)
        if options.begin_with is not None:
            require_comparable(options.begin_with, options.directions, options.metrics)
        trainer.study = make_study(options.directions, self._of_study, options.metrics)
        retries.give_up_dead(trainer.study)
        if options.begin_with is not None:
            added, left_out = begin_with(trainer.study, options.begin_with, trainer.hp_space)
            logger.info(
                "Trials of %s: %s added, %s not in hp_space.",
                options.begin_with.study_name,
                added,
                left_out,
            )
        if self._jobs == 1:  # workers queue in the study that they share
            enqueue(trainer.study, options.enqueue)


def check_enqueued(hp_space: Callable[[Any], Any], points: list[dict[str, Any]]) -> None:
    """Refuse values that the space does not have, which optuna would skip, or train with.

    Raises:
        ValueError: names the value.
    """
    for point in points:
        known = suggested(hp_space, point).params
        for name in point.keys() - known.keys():
            near = did_you_mean(name, known)
            raise ValueError(
                f"enqueue has {name}={point[name]!r}, and hp_space suggests no {name!r}.{near}"
            )


def make_study(directions: list[str], given: dict[str, Any], metrics: Sequence[str] = ()) -> Any:
    """As `optuna.create_study`, with the storage opened by `open_storage`.

    Args:
        directions: one for each objective.
        given: its other keywords.
        metrics: the names of the objectives, for optuna's plots and dashboard.

    Raises:
        StorageError: the storage cannot be reached.
        TypeError: the sampler or the pruner is not one of optuna.
        ValueError: the study in the storage has other metrics or directions.
        optuna.exceptions.DuplicatedStudyError: it is there already.
    """
    import optuna

    keywords = {**given, "directions": directions}
    for name, kind in (
        ("sampler", optuna.samplers.BaseSampler),
        ("pruner", optuna.pruners.BasePruner),
    ):
        if not isinstance(keywords.get(name), (kind, type(None))):
            raise TypeError(
                f"{name}={keywords[name]!r:.60} must be an object of a class in optuna.{name}s."
            )
    address = keywords.get("storage")
    keywords["storage"] = open_storage(address)
    where = shown(str(address)) if isinstance(address, str) else "the storage"
    try:
        study = until_unlocked(lambda: optuna.create_study(**keywords))
    except optuna.exceptions.StorageInternalError as error:
        raise StorageError(f"storage={where}: {error.__cause__ or error}") from error
    named = study.metric_names
    if (
        metrics
        and named
        and [short_name(name) for name in named] != [short_name(name) for name in metrics]
    ):
        has = f"The study {study.study_name!r} in {where} has values of {', '.join(named)}"
        raise ValueError(
            f"{has}, not of {', '.join(metrics)}. Search for those, or pass another study_name."
        )
    present = [one.name.lower() for one in study.directions]
    if present != directions:
        has = f"The study {study.study_name!r} in {where} has direction={present}, not {directions}"
        raise ValueError(f"{has}. Pass the same, or another study_name.")
    if metrics and named is None:
        with without_experimental_warnings():
            study.set_metric_names(list(metrics))
    return study


class OptunaObjective:
    """The function that optuna calls for each trial, in every process.

    Args:
        search: the search.
        study: None in all processes but the first.
        channel: connects the processes.
    """

    def __init__(self, search: SearchRun, study: Any, channel: Channel) -> None:
        self.search = search
        self.study = study
        self.channel = channel

    def __call__(self, trial: Any) -> float | list[float]:
        """Train once."""
        start = self.channel.run_on_first(lambda: self._start(trial))
        try:
            value = self.search.run(trial, start)
            problem = why_unusable(value, self.search.options.directions)
            if problem is not None:
                metrics = listed_metrics(self.search.metrics)
                logger.warning(
                    "Trial %s fails: %s. The metrics are: %s.", trial.number, problem, metrics
                )
                self._note_failure(trial, problem)
                return math.nan  # which optuna fails
            return value
        except Exception as error:
            if type(error).__name__ != "TrialPruned":
                self._note_failure(
                    trial, f"{type(error).__name__}: {error}".strip().splitlines()[0]
                )
            raise
        except (KeyboardInterrupt, SystemExit) as interruption:
            if self.study is not None and retries.is_persistent(self.study):
                # The next search on this study retries the trial. After a KeyboardInterrupt optuna
                # itself fails it.
                by_optuna = isinstance(interruption, KeyboardInterrupt) and self.channel.alone
                (retries.queue_again if by_optuna else retries.give_up)(self.study, trial.number)
            raise

    def _note_failure(self, trial: Any, why: str) -> None:
        if self.study is not None:
            getattr(trial, "in_study", trial).set_user_attr(retries.FAILURE, why)

    def _start(self, trial: Any) -> retries.Start:
        """Claim the trial for this process, which is the first one, and find what it begins
        with.
        """
        search = self.search
        in_study = getattr(trial, "in_study", trial)
        retries.note_worker(self.study, in_study)
        origin = retries.origin_of(self.study, trial)
        reported = retries.reported_steps(self.study, trial.number)
        if origin == trial.number or not search.options.resume_trials:
            return retries.Start(trial.number, retries.owner_of(in_study, renew=True), reported)

        # The retry continues in the folder of the trial that was interrupted.
        start = retries.Start(origin, retries.owner_of(in_study), reported)
        search.starts[trial.number] = start
        folder = search.run_dir(trial)
        checkpoint = last_intact_checkpoint(folder) if folder.is_dir() else None
        if checkpoint is not None:
            logger.info("Trial %s resumes from %s.", trial.number, checkpoint)
        return start._replace(checkpoint=checkpoint)


def best_trials(study: Study) -> list[FrozenTrial]:
    """Return the best trial, or for several objectives all that no other one beats.

    Raises:
        ValueError: no trial was completed; says why.
    """
    trials = study.get_trials(deepcopy=False)
    if not any(trial.state.name == "COMPLETE" for trial in trials):
        raise ValueError(_none_completed(trials))
    return study.best_trials if len(study.directions) > 1 else [study.best_trial]


def best_runs(study: Study) -> BestRun | list[BestRun]:
    """Return the best run, or for several objectives all runs that no other one beats; raises as
    `best_trials`.
    """
    best = best_trials(study)
    if len(study.directions) > 1:
        return [
            BestRun(str(trial.number), list(trial.values), dict(trial.params)) for trial in best
        ]
    return BestRun(str(best[0].number), best[0].values[0], dict(best[0].params))


def _best_and_folders(study: Any) -> tuple[BestRun | list[BestRun], dict[int, Path]]:
    """Return the best runs, and the folders of all trials by their numbers."""
    attributes = {trial.number: trial.user_attrs for trial in study.get_trials(deepcopy=False)}
    folders = {
        number: Path(known[retries.FOLDER])
        for number, known in attributes.items()
        if retries.FOLDER in known
    }
    return best_runs(study), folders


def _none_completed(trials: list[Any]) -> str:
    if not trials:
        return "No trial was completed, as the timeout was up before one began."
    retried = retries.interrupted(trials)
    states = Counter(retries.state_of(trial, retried).lower() for trial in trials)
    counts = ", ".join(f"{number} {state}" for state, number in states.items())
    why = (
        retries.listed(retries.failures(trials))
        or " Let the pruner prune less, e.g. with n_warmup_steps."
    )
    return f"No trial was completed, so there is no best one: {counts}.{why}"
