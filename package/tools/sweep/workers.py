"""Run the trials of a sweep: Optuna's loop samples them, and each runs the script."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import fcntl
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
from optuna.trial import FrozenTrial, TrialState

from ...facade.search import retries
from ...facade.search.optuna_backend import best_trials, make_study
from ...facade.search.report import locations_of, write_report
from ...facade.search.samplers import make_pruner, make_sampler
from ...facade.search.storages import database_address, open_storage
from ...lightning_modules.search.channel import FAILURE
from .plan import SweepError, SweepPlan
from .trial_script import InvalidTrialValue, ScriptFailed, ScriptKilled, ScriptRun

if TYPE_CHECKING:
    from optuna import Study, Trial

_MAX_LOG_CHARACTERS = 2000
"""Number of characters from the end of a log that an error message shows."""
_POLL_SECONDS = 2.0
"""Seconds between two checks of the trials of other processes, when there is nothing to run."""


class Sweep:
    """Runs the plan of a sweep.

    Args:
        plan: the plan, checked and completed by `command.py`.
    """

    study: Study

    def __init__(self, plan: SweepPlan) -> None:
        self.plan = plan
        self.running: list[ScriptRun] = []
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        """Held by a worker while it samples values or counts failures."""
        self.failures = 0
        """Number of trials of this process that failed."""
        self.error: BaseException | None = None
        """The error that ends the sweep."""
        self.failed_before: set[int] = set()
        """Numbers of the trials that failed before this process started."""
        self.free_gpus: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """The GPUs that no trial uses, one entry for each worker."""
        for worker_gpus in plan.gpus:
            self.free_gpus.put(worker_gpus)

    def run(self) -> int:
        """Run until there are enough trials, and write the report.

        Returns:
            0 if a trial completed, else 1.

        Raises:
            SweepError: every trial failed, or the script cannot run as a trial.
            StorageError: the storage cannot be reached.
            ValueError: the study has trials of another search.
            KeyboardInterrupt: the sweep was interrupted; running trials are queued again.
        """
        plan = self.plan
        # Open the study. The sweep prints failures itself, more briefly than Optuna.
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        if not plan.storage:
            plan.folder.mkdir(parents=True, exist_ok=True)
            plan.storage = database_address(plan.folder / "study.db")
        self.study = self._open_study()
        plan.space.require_compatible(self.study)
        plan.folder.mkdir(parents=True, exist_ok=True)
        # Sweeps that start at the same time would each queue the same points.
        with _one_process_at_a_time(plan.folder / "queue.lock"):
            self._fill_study()

        # Run the trials. An error of a worker is raised after all scripts have stopped.
        with self._stopped_by_signals():
            self._run_trials()
        if self.error is not None:
            raise self.error
        if self.stopping.is_set():
            raise KeyboardInterrupt
        return self._conclude()

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        """Stop the sweep in order when a termination signal arrives in the block.

        A signal that is ignored, such as SIGHUP under `nohup`, stays ignored.
        """
        original_handlers = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            original_handlers[number] = signal.getsignal(number)
            if original_handlers[number] != signal.SIG_IGN:
                signal.signal(number, lambda number, frame: self.stop())
        try:
            yield
        finally:
            for number, original in original_handlers.items():
                signal.signal(number, original)

    def stop(self) -> None:
        """Stop all scripts, which save a last checkpoint; their trials are queued again."""
        self.stopping.set()
        for script in list(self.running):
            script.stop()

    def _open_study(self) -> Study:
        """Open the study of the plan, or create it."""
        plan = self.plan
        storage = open_storage(plan.storage, heartbeat=plan.heartbeat, max_retry=plan.max_retry)
        options = {
            "storage": storage,
            "study_name": plan.study_name,
            "pruner": make_pruner(plan.pruner),
            "load_if_exists": True,
        }
        study = make_study(plan.direction, options, plan.metric)

        seed = plan.seed
        if seed is not None:
            # A sweep that continues a study must not sample the same values again.
            seed += len(study.get_trials(deepcopy=False))
        study.sampler = make_sampler(plan.sampler, seed)
        if seed is not None:
            # With several workers Optuna would reseed the sampler before each trial.
            study.sampler.reseed_rng = lambda: None
        return study

    def _fill_study(self) -> None:
        """Queue the points of a grid, and retries of interrupted trials."""
        plan = self.plan
        for point in plan.points:
            self.study.enqueue_trial(point, skip_if_exists=True)
        self._retry_killed_trials()
        trials = self.study.get_trials(deepcopy=False)
        self.failed_before = set(retries.failure_reasons(trials))

    # --- the loop

    def _run_trials(self) -> None:
        """Run trials until there are enough, and wait for those of other processes."""
        plan = self.plan
        start = time.monotonic()
        idle_since: float | None = None
        while not self.stopping.is_set():
            seconds_left: float | None = None
            if plan.timeout is not None:
                seconds_left = plan.timeout - (time.monotonic() - start)
                if seconds_left <= 0:
                    return
            self._retry_killed_trials()
            trials_left = self._trials_left()
            if trials_left > 0:
                idle_since = None
                self._optimize(trials_left, seconds_left)
                continue

            # Trials of other processes may still have to be retried here. A process counts as
            # killed when its heartbeat stops, or when it does not claim its trial in time.
            if idle_since is None:
                idle_since = time.monotonic()
            seconds_to_wait = max(2 * plan.heartbeat, retries.SECONDS_TO_CLAIM) + 2 * _POLL_SECONDS
            has_waited = time.monotonic() - idle_since > seconds_to_wait
            running_elsewhere = retries.possibly_killed_trials(self.study)
            if has_waited and running_elsewhere:
                print(
                    f"\nTrials {running_elsewhere} are still running elsewhere. Whether their "
                    "machine is lost can only be told if --storage is a database.",
                    file=sys.stderr,
                )
            if has_waited or not running_elsewhere:
                return
            time.sleep(_POLL_SECONDS)

    def _optimize(self, n_trials: int, timeout: float | None) -> None:
        """Run trials in Optuna's loop, until there are enough."""
        try:
            self.study.optimize(
                self._objective,
                n_trials=n_trials,
                timeout=timeout,
                n_jobs=self.plan.workers,
                catch=(ScriptFailed,),
                callbacks=[self._after_trial],
                show_progress_bar=True,
            )
        except BaseException as error:
            self._stop_with(error)

    def _objective(self, trial: Trial) -> list[float]:
        """Run the script for a trial, and return its values."""
        gpus = self.free_gpus.get()
        try:
            return self._run_script(trial, gpus)
        except (ScriptFailed, optuna.TrialPruned):
            raise
        except BaseException as error:
            # Stop the other trials before raising, because Optuna waits for them.
            self._stop_with(error)
            raise
        finally:
            self.free_gpus.put(gpus)

    def _run_script(self, trial: Trial, gpus: str | None) -> list[float]:
        """Run the script for a trial, and print and record its failure."""
        retries.record_worker(self.study, trial)
        # Under the lock, all parameters of one trial are sampled before those of the next, so that
        # a seed gives the same values with several workers as with one.
        with self.lock:
            values = self.plan.space.suggest(trial)

        script = ScriptRun(self.plan, self.study, trial, self.stopping)
        self.running.append(script)
        try:
            return script.run(values, gpus)
        except ScriptKilled as error:
            print(f"\n{error}", file=sys.stderr)
            raise
        except (ScriptFailed, SweepError) as error:
            trial.set_user_attr(FAILURE, str(error))
            if isinstance(error, ScriptFailed):
                print(f"\n{script.name} failed: {error}. Its log: {script.log}", file=sys.stderr)
                self._stop_if_all_fail(script, error)
            raise
        finally:
            self.running.remove(script)

    def _stop_with(self, error: BaseException) -> None:
        """Stop all scripts because of an error, which `run` raises later."""
        if self.error is None:
            self.error = error
        self.stop()

    def _stop_if_all_fail(self, script: ScriptRun, error: ScriptFailed) -> None:
        """Raise after several failures without a success, which ends the sweep.

        Args:
            script: the run that failed last.
            error: its error.

        Raises:
            SweepError: there were too many failures.
        """
        # The script ran, and only its metric is NaN or infinite: bad values may be the cause.
        if isinstance(error, InvalidTrialValue):
            return
        # Under the lock, because several workers may fail at the same time.
        with self.lock:
            self.failures += 1
            if self.failures < min(self.plan.max_failures, self.plan.n_trials):
                return
            successes = (TrialState.COMPLETE, TrialState.PRUNED)
            if self.study.get_trials(deepcopy=False, states=successes):
                return
            raise SweepError(
                f"{self.failures} trials failed and none completed, so the script itself probably "
                f"fails. The last error: {error}. --max-failures allows more failures. The end of "
                f"{script.log}:\n{_tail(script.log)}"
            )

    def _after_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Queue a trial again if its script was killed; stop the loop after enough trials."""
        if trial.state == TrialState.FAIL and FAILURE not in trial.user_attrs:
            retries.queue_retry(study, trial.number, self.plan.max_retry)
        if self.stopping.is_set() or self._trials_left() <= 0:
            study.stop()

    # --- counting and retrying trials

    def _trials_left(self) -> int:
        """Return the number of trials still to start.

        Trials that were interrupted, or failed before this process started, do not count as done.
        """
        trials = self.study.get_trials(deepcopy=False)
        not_counted = self.failed_before | retries.interrupted(trials)
        waiting = 0
        trials_left = self.plan.n_trials
        for trial in trials:
            if trial.state == TrialState.WAITING:
                waiting += 1
            elif trial.number not in not_counted:
                trials_left -= 1
        if not self.plan.points:
            return trials_left

        # For a whole grid, run every queued trial, even if there are more of them than points: on a
        # file system without locks, two sweeps may queue a point twice.
        is_full_grid = self.plan.n_trials == len(self.plan.points)
        return waiting if is_full_grid else min(trials_left, waiting)

    def _retry_killed_trials(self) -> None:
        """Queue trials whose process was killed, or that no process claimed in time, again."""
        max_retry = self.plan.max_retry
        for number in retries.retry_killed_trials(self.study, max_retry, retries.SECONDS_TO_CLAIM):
            print(f"\nTrial {number} did not finish; retrying it.", file=sys.stderr)

    # --- the end

    def _conclude(self) -> int:
        """Write the report, print the best trials, and return the exit status."""
        # A failure to write the report must not hide the result.
        try:
            report = str(write_report(self.study, self.plan.folder))
        except Exception as error:
            report = f"not written: {type(error).__name__}: {error}"

        trials = self.study.get_trials(deepcopy=False)
        waiting = sum(trial.state == TrialState.WAITING for trial in trials)
        if waiting:
            print(
                f"{waiting} queued trials were not run. Raise --n-trials or --timeout to run them.",
                file=sys.stderr,
            )

        # `best_trials` raises if no trial completed.
        try:
            best = best_trials(self.study)
        except ValueError as error:
            print(f"{error}\nLogs: {self.plan.folder}", file=sys.stderr)
            return 1

        reasons = retries.failure_reasons(trials)
        if reasons:
            print(f"failed trials ({len(reasons)}):{retries.format_failures(reasons)}")
        _warn_of_equal_values(trials)
        for trial in best:
            self._print_best(trial)
        print(f"report: {report}")
        return 0

    def _print_best(self, trial: FrozenTrial) -> None:
        """Print one of the best trials, with its files and the command that trains it again."""
        metrics = ", ".join(self.plan.metric)
        value = trial.values if len(trial.values) > 1 else trial.value
        print(f"best: {_name_of(trial)}, {metrics} = {value} ({self.plan.goal})")

        locations = locations_of(trial)
        command = locations.pop("command", "unknown")
        for kind, path in locations.items():
            print(f"  {kind}: {path}")
        for name, parameter in trial.params.items():
            print(f"  {name} = {parameter}")
        print(f"  once more: {command}")


@contextmanager
def _one_process_at_a_time(path: Path) -> Iterator[None]:
    """Let one process at a time run the block, if the file system supports locks.

    Args:
        path: the file to lock. The lock is released when its process exits or is killed.
    """
    with path.open("a", encoding="utf-8") as file:
        # Some network file systems have no locks.
        with suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def _warn_of_equal_values(trials: list[FrozenTrial]) -> None:
    """Warn if all trials have the same value although their parameters differ."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    distinct_values = {str(trial.values) for trial in complete}
    distinct_parameters = {str(trial.params) for trial in complete}
    if len(distinct_values) == 1 and len(distinct_parameters) > 1:
        names = ", ".join(complete[0].params)
        print(f"All trials have the same value. Does the script read {names}?", file=sys.stderr)


def _name_of(trial: FrozenTrial) -> str:
    """Return the name of a trial, which is also the name of its log."""
    number = trial.system_attrs.get("failed_trial", trial.number)
    return f"run-{number}"


def _tail(log: Path) -> str:
    """Return the end of a log."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return text[-_MAX_LOG_CHARACTERS:].strip()
