"""Search with Optuna: the study, the objective that trains a trial, and the result."""

from __future__ import annotations

import inspect
import logging
import math
import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ...lightning_modules.checkpoints import last_intact_checkpoint
from ...lightning_modules.common.suggestions import did_you_mean
from ...lightning_modules.search.channel import Channel
from ..arguments.enums import HPSearchBackend
from . import retries
from .forked_workers import check_jobs, optimize_in_workers
from .hyperparameters import BestRun, default_hp_space_optuna
from .metric_objective import format_metrics, require_same_objectives, why_unusable
from .search_run import OPTIONS, SearchOptions, SearchRun
from .storages import (
    StorageError,
    open_storage,
    retry_while_locked,
    without_experimental_warnings,
    without_password,
)

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

    from ...lightning_modules.search.shared_study import SharedTrial
    from .. import Trainer

logger = logging.getLogger(__name__)


class OptunaBackend:
    """Runs the trials of a search in an Optuna study.

    With several processes, process 0 holds the study, and all of them train each trial together.
    """

    name = HPSearchBackend.OPTUNA
    default_hp_space = staticmethod(default_hp_space_optuna)

    def check(self, trainer: Trainer, options: SearchOptions) -> None:
        """Check the keywords, and separate those of the study from those of its optimization.

        Raises:
            TypeError: a keyword belongs to neither.
            ValueError: `n_jobs` is not possible here.
        """
        import optuna

        # The directions and the number of trials are parameters of `hyperparameter_search` itself.
        study_keywords = {*inspect.signature(optuna.study.create_study).parameters}
        study_keywords -= {"direction", "directions"}
        optimize_keywords = {*inspect.signature(optuna.study.Study.optimize).parameters}
        optimize_keywords -= {"self", "func", "n_trials"}

        self._study_options: dict[str, Any] = {}
        self._optimize_options: dict[str, Any] = {}
        for name, value in options.backend.items():
            if name in study_keywords:
                self._study_options[name] = value
            elif name in optimize_keywords:
                self._optimize_options[name] = value
            else:
                keywords = sorted({*study_keywords, *optimize_keywords, *OPTIONS})
                raise TypeError(
                    "hyperparameter_search has no parameter "
                    f"{name}={value!r:.60}.{did_you_mean(name, keywords)} Its other keywords are: "
                    f"{', '.join(keywords)}."
                )

        self._jobs: int = self._optimize_options.pop("n_jobs", 1)
        check_jobs(self._jobs, trainer)
        if options.has_several_objectives and self._study_options.get("pruner") is not None:
            logger.warning(
                "pruner prunes nothing: optuna compares single numbers, and the search has several "
                "objectives."
            )

    def run(self, trainer: Trainer, search: SearchRun) -> BestRun | list[BestRun]:
        """Run all trials, and return the best run, or runs, in every process."""
        from ...lightning_modules.search.shared_study import optimize_together  # imports Lightning

        optimize_options = {"n_trials": search.options.n_trials, **self._optimize_options}
        channel = Channel(seconds=float(trainer.args.ddp_timeout))
        try:
            channel.run_on_first(lambda: self._open_study(trainer, search))
            study: Study | None = trainer.study

            # Workers are forked only from a single process, which therefore holds the study.
            if self._jobs != 1:
                assert study is not None
                optimize_in_workers(search, study, self._jobs, OptunaObjective, optimize_options)
                best, folders = _result_of(study)
            else:
                best, folders = optimize_together(
                    study,
                    OptunaObjective(search, study, channel),
                    channel=channel,
                    result=_result_of,
                    completed=search.completed,
                    **optimize_options,
                )
            search.folders.update(folders)
            return best
        finally:
            channel.close()

    def _open_study(self, trainer: Trainer, search: SearchRun) -> None:
        """Create the Trainer's study, and queue the trials of killed processes again."""
        study_options = dict(self._study_options)
        folder = None
        if self._jobs != 1 and study_options.get("storage") is None:
            # Workers cannot share an in-memory study, so use a temporary file.
            folder = tempfile.TemporaryDirectory()
            study_options["storage"] = os.path.join(folder.name, "study.log")
        study = make_study(search.options.directions, study_options)
        # Keep the file as long as the study, which the user may read after the search.
        if folder is not None:
            weakref.finalize(study, folder.cleanup)
        if self._jobs != 1 and not retries.is_persistent(study):
            raise ValueError(
                f"n_jobs={self._jobs}: workers cannot share a study in main memory. Leave storage "
                "out, or pass a file, such as storage='study.log'."
            )
        trainer.study = study

        retries.retry_killed_trials(study)
        retries.retry_unclaimed_trials(study)


def make_study(
    directions: list[str], options: dict[str, Any], metrics: Sequence[str] = ()
) -> Study:
    """Create a study as `optuna.create_study` does, with the storage opened by `open_storage`.

    Args:
        directions: one for each objective.
        options: the other parameters of `optuna.create_study`.
        metrics: the names of the objectives, for optuna's plots and dashboard.

    Raises:
        StorageError: the storage cannot be reached.
        ValueError: the study in the storage has other metrics or directions.
        optuna.exceptions.DuplicatedStudyError: the study exists already.
    """
    import optuna

    # Another process may create the same study at the same time.
    storage = options.get("storage")
    keywords = {**options, "directions": directions, "storage": open_storage(storage)}
    location = without_password(storage) if isinstance(storage, str) else "the storage"
    try:
        study = retry_while_locked(lambda: optuna.create_study(**keywords))
    except optuna.exceptions.StorageInternalError as error:
        raise StorageError(f"storage={location}: {error.__cause__ or error}") from error

    require_same_objectives(study, location, directions, metrics)
    if metrics and study.metric_names is None:
        with without_experimental_warnings():
            study.set_metric_names(list(metrics))
    return study


class OptunaObjective:
    """The function that Optuna calls for each trial, in every process.

    Args:
        search: the search.
        study: the study in process 0; None in other processes.
        channel: connects the processes.
    """

    def __init__(self, search: SearchRun, study: Study | None, channel: Channel) -> None:
        self.search = search
        self.study = study
        self.channel = channel

    def __call__(self, trial: Trial | SharedTrial) -> float | list[float]:
        """Train with the values of a trial, and return its objective.

        Return NaN if the objective is unusable; Optuna then marks the trial as failed.
        """
        try:
            return self._train(trial)
        except (KeyboardInterrupt, SystemExit) as interruption:
            self._queue_retry(trial, interruption)
            raise

    def _train(self, trial: Trial | SharedTrial) -> float | list[float]:
        """Train with the values of a trial, see `__call__`."""
        import optuna

        start = self.channel.run_on_first(lambda: self._start(trial))
        try:
            value = self.search.run(trial, start)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}".strip()
            self._record_failure(trial, message.splitlines()[0])
            raise

        # A diverging trial must not end the search.
        problem = why_unusable(value, self.search.options.directions)
        if problem is None:
            return value
        logger.warning(
            "Trial %s fails: %s. The metrics are: %s.",
            trial.number,
            problem,
            format_metrics(self.search.metrics),
        )
        self._record_failure(trial, problem)
        return math.nan

    def _record_failure(self, trial: Trial | SharedTrial, reason: str) -> None:
        """Record in the study why a trial failed, in process 0 only."""
        if self.study is not None:
            _trial_in_study(trial).set_user_attr(retries.FAILURE, reason)

    def _queue_retry(self, trial: Trial | SharedTrial, interruption: BaseException) -> None:
        """Queue an interrupted trial for the next search on this study."""
        if self.study is None or not retries.is_persistent(self.study):
            return
        # Optuna itself marks the trial as failed if the KeyboardInterrupt reaches it.
        reaches_optuna = self.channel.is_single_process
        if reaches_optuna and isinstance(interruption, KeyboardInterrupt):
            retries.queue_retry(self.study, trial.number)
        else:
            retries.fail_and_retry(self.study, trial.number)

    def _start(self, trial: Trial | SharedTrial) -> retries.Start:
        """Claim a trial for this process, and return its `Start`; called in process 0."""
        assert self.study is not None
        search = self.search
        in_study = _trial_in_study(trial)
        retries.record_worker(self.study, in_study)
        origin = retries.origin_of(self.study, trial)
        start = retries.Start(origin, retries.owner_of(in_study))
        if origin == trial.number:
            return start

        # A retry resumes in the folder of the trial that was interrupted.
        search.starts[trial.number] = start
        folder = search.run_dir(trial)
        checkpoint = last_intact_checkpoint(folder) if folder.is_dir() else None
        if checkpoint is not None:
            logger.info("Trial %s resumes from %s.", trial.number, checkpoint)
        return start._replace(checkpoint=checkpoint)


def _trial_in_study(trial: Trial | SharedTrial) -> Trial:
    """Return the Optuna trial behind a trial, which process 0 holds."""
    return cast("Trial", getattr(trial, "in_study", trial))


def best_trials(study: Study) -> list[FrozenTrial]:
    """Return the best trial; with several objectives, the trials of the Pareto front.

    Raises:
        ValueError: no trial completed; the message says why.
    """
    best = study.best_trials
    if not best:
        raise ValueError(_why_none_completed(study.get_trials(deepcopy=False)))
    if len(study.directions) == 1:
        return [study.best_trial]
    return best


class StudyResult(NamedTuple):
    """The results of a study that every process needs."""

    best: BestRun | list[BestRun]
    """The best run; a list for several objectives."""
    folders: dict[int, Path]
    """The folders of all trials, by their numbers."""


def _result_of(study: Study) -> StudyResult:
    """Return the best run, or runs, and the folders of all trials."""
    folders = {}
    for trial in study.get_trials(deepcopy=False):
        if retries.FOLDER in trial.user_attrs:
            folders[trial.number] = Path(trial.user_attrs[retries.FOLDER])

    runs = []
    for trial in best_trials(study):
        objective = trial.values if len(trial.values) > 1 else trial.values[0]
        runs.append(BestRun(str(trial.number), objective, trial.params))
    if len(study.directions) > 1:
        return StudyResult(runs, folders)
    return StudyResult(runs[0], folders)


def _why_none_completed(trials: list[FrozenTrial]) -> str:
    """Return the message for a study without a completed trial."""
    if not trials:
        return "No trial completed: the timeout was reached before one started. Raise timeout."
    reasons = retries.failure_reasons(trials)
    state_counts = Counter(retries.state_of(trial, reasons) for trial in trials)
    counts = ", ".join(f"{number} {state.lower()}" for state, number in state_counts.items())
    advice = retries.format_failures(reasons)
    if not advice:
        advice = " Let the pruner prune less, e.g. with n_warmup_steps."
    return f"No trial completed: {counts}.{advice}"
