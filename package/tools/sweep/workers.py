"""The trials of a sweep: optuna's loop takes them from one study, and runs the script for each
in its own process.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import optuna
from optuna.trial import FrozenTrial, TrialState

from ...facade.search import retries
from ...facade.search.earlier_trials import ORIGIN, add_earlier_trials, require_comparable
from ...facade.search.optuna_backend import best_trials, make_study
from ...facade.search.report import locations_of, write_report
from ...facade.search.samplers import make_pruner, make_sampler
from ...facade.search.search_run import enqueue
from ...facade.search.storages import database_address, open_storage
from ...lightning_modules.search.channel import FAILURE
from ...lightning_modules.search.taken_trials import TrialTakenError, discard_if_taken
from .plan import SweepError, SweepPlan
from .trial_script import ScriptFailed, ScriptKilled, ScriptRun, Unusable

if TYPE_CHECKING:
    from optuna import Study, Trial

_TAIL = 2000
"""Characters of a log that are shown."""
_SECONDS_TO_CLAIM = 10.0
"""Time in which a process claims a trial that it has added to the study; usually it takes
milliseconds.
"""
_SECONDS_BETWEEN_LOOKS = 2.0
"""Interval in which trials of other processes are looked at, once there is nothing else to do."""


@contextmanager
def signals_handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let the signals that end a process call a function; one that is ignored, as SIGHUP by
    `nohup`, stays ignored.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number, present in before.items():
        if present != signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, present in before.items():
            signal.signal(number, present)


class Sweep:
    """Runs a plan.

    Args:
        plan: checked, with its objective.
    """

    def __init__(self, plan: SweepPlan) -> None:
        self.plan = plan
        self.running: list[ScriptRun] = []
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.failures = 0
        self.error: BaseException | None = None
        self.gpus: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """The GPUs that no trial has, one entry for each worker."""
        for share in plan.gpus:
            self.gpus.put(share)

    def run(self) -> int:
        """Run until there are enough trials, and write the report.

        Returns:
            0 if a trial was completed, else 1.

        Raises:
            SweepError: the script fails, or cannot be a trial, whatever the values.
            StorageError: the storage cannot be reached.
            ValueError: the study has trials of another search.
            KeyboardInterrupt: the sweep was interrupted; running trials are queued again.
        """
        plan = self.plan
        if plan.begin_with:
            require_comparable(plan.begin_with, plan.direction, plan.metric)
        # failures are printed here, in fewer words
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        if not plan.storage:
            plan.folder.mkdir(parents=True, exist_ok=True)
            plan.storage = database_address(plan.folder / "study.db")
        self.study = self._open()
        plan.space.require_compatible(self.study)
        plan.folder.mkdir(parents=True, exist_ok=True)
        self._fill_study()

        with signals_handled_by(self.stop):
            self._run_trials()
        if self.error is not None:
            raise self.error
        if self.stopping.is_set():
            raise KeyboardInterrupt
        return self._conclude()

    def stop(self, number: int | None = None, frame: FrameType | None = None) -> None:
        """End all scripts: they write a checkpoint, if they write any, and their trials are queued
        again.

        Args:
            number: that of a signal, as this is the handler of those that end a sweep.
            frame: of the signal.
        """
        self.stopping.set()
        for script in list(self.running):
            script.stop()

    def _open(self) -> Study:
        plan = self.plan
        options = {
            "storage": open_storage(
                plan.storage, heartbeat=plan.heartbeat, max_retry=plan.max_retry
            ),
            "study_name": plan.study_name,
            "pruner": make_pruner(plan.pruner),
            "load_if_exists": True,
        }
        study = make_study(plan.direction, options, plan.metric)
        seed = plan.seed
        if seed is not None:
            # A sweep that continues a study must not draw the same values again.
            seed += len(study.get_trials(deepcopy=False))
        study.sampler = make_sampler(plan.sampler, seed)
        if seed is not None:
            # With several workers optuna would replace the seed before each trial.
            study.sampler.reseed_rng = lambda: None
        return study

    def _fill_study(self) -> None:
        """Add trials of an earlier study, values to try first, and trials that were killed or
        failed before.
        """
        plan = self.plan
        if plan.begin_with:
            added, left_out = add_earlier_trials(self.study, plan.begin_with, plan.space.suggest)
            print(
                f"--begin-with: {added} trials are known, {left_out} are not in --space.",
                file=sys.stderr,
            )
        enqueue(self.study, [*plan.points, *plan.space.enqueue])
        self._give_up_dead()
        self.failed_before = set(retries.failure_reasons(self.study.get_trials(deepcopy=False)))
        if plan.retry_failed:
            for number in retries.repeat_failed(self.study):
                print(f"Trial {number} failed, and its values are tried again.", file=sys.stderr)

    # --- the loop

    def _run_trials(self) -> None:
        plan = self.plan
        begin = time.monotonic()
        idle_since: float | None = None
        while not self.stopping.is_set():
            timeout = None if plan.timeout is None else plan.timeout - (time.monotonic() - begin)
            if timeout is not None and timeout <= 0:
                return
            self._give_up_dead()
            left = self._trials_left()
            if left > 0:
                idle_since = None
                self._optimize(left, timeout)
                continue

            # A trial that another process runs may have to be retried here.
            idle_since = idle_since or time.monotonic()
            longest = max(2 * plan.heartbeat, _SECONDS_TO_CLAIM) + 2 * _SECONDS_BETWEEN_LOOKS
            waited_long = time.monotonic() - idle_since > longest
            if waited_long or not retries.possibly_killed_trials(self.study):
                return
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _optimize(self, n_trials: int, timeout: float | None) -> None:
        """Run trials in optuna's loop, until there are enough, or one is taken over by another
        process.
        """
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
        except TrialTakenError as taken:
            print(f"\n{taken}", file=sys.stderr)
        except BaseException as error:
            self._stop_with(error)

    def _objective(self, trial: Trial) -> float | list[float]:
        """Run the script for a trial; return its value."""
        try:
            with discard_if_taken(trial):
                return self._run_script(trial)
        except (ScriptFailed, optuna.TrialPruned, TrialTakenError):
            raise
        except BaseException as error:
            self._stop_with(error)  # before optuna waits for the other trials
            raise

    def _run_script(self, trial: Trial) -> float | list[float]:
        retries.record_worker(self.study, trial)
        with self.lock:  # so that the values of a seed do not depend on the number of workers
            values = self.plan.space.suggest(trial)
        gpus = self.gpus.get()
        script = ScriptRun(self.plan, self.study, trial, self.stopping)
        self.running.append(script)
        try:
            return script.run(values, gpus)
        except ScriptKilled as error:
            print(f"\n{error}", file=sys.stderr)
            raise
        except ScriptFailed as error:
            trial.set_user_attr(FAILURE, str(error))
            print(f"\n{script.name} failed: {error}. Its log: {script.log}", file=sys.stderr)
            if not isinstance(error, Unusable):
                self._stop_if_all_fail(script, error)
            raise
        except SweepError as error:
            trial.set_user_attr(FAILURE, str(error))
            raise
        finally:
            self.running.remove(script)
            self.gpus.put(gpus)

    def _stop_with(self, error: BaseException) -> None:
        """End all scripts because of an error, which `run` raises."""
        self.error = self.error or error
        self.stop()

    def _stop_if_all_fail(self, script: ScriptRun, error: ScriptFailed) -> None:
        with self.lock:
            self.failures += 1
            done = any(
                one.state.name in ("COMPLETE", "PRUNED")
                for one in self.study.get_trials(deepcopy=False)
            )
            if not done and self.failures >= min(self.plan.max_failures, self.plan.n_trials):
                raise SweepError(
                    f"{self.failures} trials failed, and none was completed: is it the script? See "
                    f"--max-failures. The last: {error}. The end of "
                    f"{script.log}:\n{_tail(script.log)}"
                )

    def _after_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Queue a trial again whose script was killed, and end the loop when there are enough."""
        if trial.state == TrialState.FAIL and FAILURE not in trial.user_attrs:
            retries.queue_retry(study, trial.number, self.plan.max_retry)
        if self.stopping.is_set() or self._trials_left() <= 0:
            study.stop()

    # --- which trials there are

    def _trials_left(self) -> int:
        """Return how many trials are to be begun. Those of an earlier study, or that failed
        before, do not count.
        """
        trials = self.study.get_trials(deepcopy=False)
        waiting = sum(trial.state == TrialState.WAITING for trial in trials)
        left_out = self.failed_before | retries.interrupted(trials)
        counted = [
            trial
            for trial in trials
            if trial.number not in left_out and ORIGIN not in trial.user_attrs
        ]
        left = self.plan.n_trials - len(counted) + waiting
        if not self.plan.points:
            return left

        # Of a whole grid all that waits is run: two sweeps that begin at once may have queued a
        # point twice.
        return waiting if self.plan.n_trials == len(self.plan.points) else min(left, waiting)

    def _give_up_dead(self) -> None:
        """Queue trials whose process was killed, and those that no process has claimed in time."""
        max_retry = self.plan.max_retry
        for number in retries.retry_killed_trials(self.study, max_retry, _SECONDS_TO_CLAIM):
            print(f"\nTrial {number} was not finished, and is retried.", file=sys.stderr)

    # --- the end

    def _conclude(self) -> int:
        """Write the report, and print the best runs; return the exit code."""
        try:
            page = str(write_report(self.study, self.plan.folder))
        except Exception as error:  # must not hide the result
            page = f"none, as it cannot be written: {type(error).__name__}: {error}"

        trials = self.study.get_trials(deepcopy=False)
        waiting = sum(trial.state.name == "WAITING" for trial in trials)
        if waiting:
            print(
                f"{waiting} queued trials were not run: raise --n-trials, or --timeout, to run "
                "them.",
                file=sys.stderr,
            )
        try:
            best = best_trials(self.study)
        except ValueError as error:
            print(
                f"{error}\nLogs: {self.plan.folder}. --retry-failed runs failed trials again.",
                file=sys.stderr,
            )
            return 1

        failed = retries.failure_reasons(trials)
        if failed:
            print(
                f"failed trials ({len(failed)}; --retry-failed runs them "
                f"again):{retries.format_failures(failed)}"
            )
        complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        if (
            len({str(trial.values) for trial in complete}) == 1
            and len({str(trial.params) for trial in complete}) > 1
        ):
            names = ", ".join(complete[0].params)
            print(f"All trials have the same value. Does the script read {names}?", file=sys.stderr)
        for trial in best:
            self._print_best(trial)
        print(f"report: {page}")
        return 0

    def _print_best(self, trial: FrozenTrial) -> None:
        """Print one of the best trials: its values, its files, its parameters, the command that
        trains it again.
        """
        value = trial.values if len(trial.values) > 1 else trial.value
        print(
            f"best: {_name_of(trial)}, {', '.join(self.plan.metric)} = {value} ({self.plan.goal})"
        )
        places = locations_of(trial)
        command = places.pop("command", "unknown")
        for what, path in places.items():
            print(f"  {what}: {path}")
        for name, parameter in trial.params.items():
            print(f"  {name} = {parameter}")
        print(f"  once more: {command}")


def _name_of(trial: FrozenTrial) -> str:
    """Return the name of a trial: that of its log, or of the study where it was run."""
    return (
        trial.user_attrs.get(ORIGIN)
        or f"run-{trial.system_attrs.get('failed_trial', trial.number)}"
    )


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-_TAIL:].strip()
