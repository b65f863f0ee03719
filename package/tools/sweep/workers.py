"""Workers of a sweep: take trials from one study, and run the script for each in a separate process."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from tqdm import tqdm

from ...facade.search import retries
from ...facade.search.earlier_trials import ORIGIN, begin_with, require_comparable
from ...facade.search.optuna_backend import best_runs, make_study
from ...facade.search.report import places_of, write_report
from ...facade.search.samplers import make_pruner, make_sampler
from ...facade.search.search_run import enqueue
from ...facade.search.storages import database_address, open_storage
from ...lightning_modules.search.channel import FAILURE
from ...lightning_modules.search.taken_trials import TrialTakenError
from .plan import SweepError, SweepPlan
from .trial_script import Ended, ScriptFailed, ScriptRun, Unusable

if TYPE_CHECKING:
    from optuna import Study, Trial

    from ...facade.search.hyperparameters import BestRun

_TAIL = 2000
"""Characters of a log that are shown."""
_SECONDS_TO_CLAIM = 10.0
"""Time in which a process claims a trial that it has added to the study; usually it takes milliseconds."""
_SECONDS_BETWEEN_LOOKS = 2.0
"""Interval in which other processes' trials are looked at."""
_STATES = {"running": "RUNNING", "failed": "FAIL", "pruned": "PRUNED", "interrupted": "INTERRUPTED"}
"""States that a progress bar shows, by their words."""


class Progress:
    """A progress bar on stderr: completed trials, and the best value.

    Args:
        study: of optuna.
        name: of the sweep, with its objective.
        total: number of trials in the end.
    """

    def __init__(self, study: Study, name: str, total: int) -> None:
        self.study = study
        self.name = name
        self.total = total

    def __enter__(self) -> Progress:
        self._bar = tqdm(
            total=self.total,
            desc=self.name,
            initial=self._done(self._states()),  # the time left is that of new ones
            unit="trial",
            file=sys.stderr,
            dynamic_ncols=True,
        )
        self._updated = 0.0
        self._shown: Any = None
        self.show(now=True)
        return self

    def __exit__(self, *error: object) -> None:
        self.show(now=True)
        self._bar.close()

    def show(self, now: bool = False) -> None:
        """Read the study, once a second, and update the bar."""
        if not now and time.monotonic() - self._updated < 1:
            return
        self._updated = time.monotonic()
        states = self._states()
        texts = self._texts(states)
        self._bar.n = self._done(states)
        self._bar.set_postfix(texts, refresh=False)

        # A file gets no line a second.
        if now or sys.stderr.isatty() or self._shown != (self._bar.n, texts):
            self._shown = (self._bar.n, texts)
            self._bar.refresh()

    def _texts(self, states: Counter[str]) -> dict[str, Any]:
        """Return what is shown beside the number of trials: the best one, and the numbers of those in other states."""
        texts: dict[str, Any] = {}
        if len(self.study.directions) == 1 and states["COMPLETE"]:
            best = self.study.best_trial
            texts = {"best": f"{best.value:.5g}", "by": _name_of(best)}
        for word, state in _STATES.items():
            if states[state]:
                texts[word] = states[state]
        return texts

    def _states(self) -> Counter[str]:
        """Count the states of the trials that were run in this study."""
        trials = self.study.get_trials(deepcopy=False)
        retried = retries.interrupted(trials)
        return Counter(retries.state_of(trial, retried) for trial in trials if ORIGIN not in trial.user_attrs)

    def _done(self, states: Counter[str]) -> int:
        return min(states["COMPLETE"] + states["PRUNED"], self.total)


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
        self.claimed = 0  # trials that a worker is about to begin, and that the study does not have yet
        self.error: BaseException | None = None
        self.watched: dict[int, float] = {}
        """The running trials of processes that are not seen to run, and since when they have been watched."""

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
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # failures are printed here, in fewer words
        if not plan.storage:
            plan.folder.mkdir(parents=True, exist_ok=True)
            plan.storage = database_address(plan.folder / "study.db")
        self.study = self._open(0)
        plan.space.require_compatible(self.study)
        plan.folder.mkdir(parents=True, exist_ok=True)
        self._fill_study()
        self.deadline = math.inf if plan.timeout is None else time.monotonic() + plan.timeout
        with Progress(self.study, f"{plan.study_name}: {plan.goal}", plan.n_trials) as self.progress:
            self._work_in_threads()
        if self.error is not None:
            raise self.error
        return self._conclude()

    def _open(self, index: int) -> Study:
        """Open the study, with a separate connection and sampler for each worker."""
        plan = self.plan
        options: dict[str, Any] = {
            "storage": open_storage(plan.storage, heartbeat=plan.heartbeat, max_retry=plan.max_retry),
            "study_name": plan.study_name,
            "pruner": make_pruner(plan.pruner),
        }
        if index == 0:
            study = make_study(plan.direction, {**options, "load_if_exists": True}, plan.metric)
        else:
            study = optuna.load_study(**options)
        seed = plan.seed
        if seed is not None:
            # A sweep that continues a study must not draw the same values again.
            seed += 1000 * index + len(study.get_trials(deepcopy=False))
        study.sampler = make_sampler(plan.sampler, seed)
        return study

    def _fill_study(self) -> None:
        """Add trials of an earlier study, values to try first, and trials that were killed or failed before."""
        plan = self.plan
        if plan.begin_with:
            added, left_out = begin_with(self.study, plan.begin_with, plan.space.suggest)
            print(f"--begin-with: {added} trials are known, {left_out} are not in --space.", file=sys.stderr)
        enqueue(self.study, [*plan.points, *plan.space.enqueue])
        self._give_up_dead()
        self.failed_before = set(retries.failures(self.study.get_trials(deepcopy=False)))
        for number in retries.repeat_failed(self.study) if plan.retry_failed else ():
            print(f"Trial {number} failed, and its values are tried again.", file=sys.stderr)

    # --- workers

    def _work_in_threads(self) -> None:
        threads = [threading.Thread(target=self._work, args=(index,)) for index in range(self.plan.workers)]
        for thread in threads:
            thread.start()
        looked = time.monotonic()
        try:
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.1)
                self.progress.show()
                if time.monotonic() - looked > _SECONDS_BETWEEN_LOOKS:
                    looked = time.monotonic()
                    self._give_up_dead()
        except BaseException:
            self.stop()
            raise
        finally:
            for thread in threads:
                thread.join()

    def stop(self) -> None:
        """End all processes: they write a checkpoint, if they write any, and their trials are queued again."""
        self.stopping.set()
        for script in list(self.running):
            script.stop()

    def _work(self, index: int) -> None:
        try:
            study = self._open(index) if index else self.study  # threads cannot share sampler and connection
            while not self.stopping.is_set() and time.monotonic() < self.deadline:
                if self._claim(study):
                    self._run_one(study, index)
                elif self._awaits_others():
                    self.stopping.wait(_SECONDS_BETWEEN_LOOKS)
                else:
                    break
        except BaseException as error:
            self.error = self.error or error
            self.stop()

    def _run_one(self, study: Study, worker: int) -> None:
        try:
            study.optimize(lambda trial: self._objective(study, trial, worker), n_trials=1, catch=(ScriptFailed,))
        except (Ended, TrialTakenError) as end:
            if not self.stopping.is_set():
                print(f"\n{end}", file=sys.stderr)

    def _objective(self, study: Study, trial: Trial, worker: int) -> float | list[float]:
        """Run the script for a trial; return its value."""
        with self.lock:
            self.claimed -= 1
        script = ScriptRun(self.plan, study, trial, self.stopping, self.plan.gpus[worker])
        self.running.append(script)
        try:
            return script.run()
        except ScriptFailed as error:
            trial.set_user_attr(FAILURE, str(error))
            print(f"\n{script.name} failed: {error}. Its log: {script.log}", file=sys.stderr)
            if not isinstance(error, Unusable):
                self._give_up_if_all_fail(study, script, error)
            raise
        except SweepError as error:
            trial.set_user_attr(FAILURE, str(error))
            raise
        finally:
            self.running.remove(script)

    def _give_up_if_all_fail(self, study: Study, script: ScriptRun, error: ScriptFailed) -> None:
        with self.lock:
            self.failures += 1
            done = any(one.state.name in ("COMPLETE", "PRUNED") for one in study.get_trials(deepcopy=False))
            if not done and self.failures >= min(self.plan.max_failures, self.plan.n_trials):
                raise SweepError(
                    f"{self.failures} trials failed, and none was completed: is it the script? See --max-failures. "
                    f"The last: {error}. The end of {script.log}:\n{_tail(script.log)}"
                )

    # --- which trials there are to run

    def _claim(self, study: Study) -> bool:
        """Return whether one more trial is to be run. Workers on two machines may both claim the last one."""
        with self.lock:
            if self._count(study) + self.claimed >= self.plan.n_trials:
                return False
            waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            if self.plan.points and len(waiting) <= self.claimed:
                return False
            self.claimed += 1
            return True

    def _count(self, study: Study) -> int:
        """Return the trials that count: all but those that wait, are retried, or failed before this start."""
        trials = study.get_trials(deepcopy=False)
        left_out = retries.interrupted(trials) | self.failed_before
        return sum(
            trial.state.name != "WAITING" and trial.number not in left_out and ORIGIN not in trial.user_attrs
            for trial in trials
        )

    def _give_up_dead(self) -> None:
        """Queue trials whose process was killed, and those that no process has claimed in time."""
        for number in retries.give_up_dead(self.study, self.plan.max_retry):
            print(f"\nTrial {number} was not finished, and is retried.", file=sys.stderr)
        unseen = retries.unseen(self.study)
        with self.lock:
            if self.claimed:  # by this process, which is about to claim it in the study
                return
        self.watched = {number: self.watched.get(number, time.monotonic()) for number in unseen}
        for number, is_claimed in unseen.items():
            if not is_claimed and time.monotonic() - self.watched[number] > _SECONDS_TO_CLAIM:
                retries.give_up(self.study, number, self.plan.max_retry)

    def _awaits_others(self) -> bool:
        """Return whether a trial may be left for this worker, after the others have begun or lost theirs.

        A trial that another worker is about to begin is counted twice for a moment, as claimed and as begun. A running
        trial elsewhere may be that of a killed process, and have to be retried: it is watched until its heartbeat would
        have stopped for long enough.
        """
        with self.lock:
            if self.claimed:
                return True
        since = [self.watched.get(number, time.monotonic()) for number in retries.unseen(self.study)]
        longest = max(2 * self.plan.heartbeat, _SECONDS_TO_CLAIM) + 2 * _SECONDS_BETWEEN_LOOKS
        return any(time.monotonic() - start < longest for start in since)

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
                f"{waiting} queued trials were not run: raise --n-trials, or --timeout, to run them.", file=sys.stderr
            )
        try:
            best = best_runs(self.study)
        except ValueError as error:
            print(f"{error}\nLogs: {self.plan.folder}. --retry-failed runs failed trials again.", file=sys.stderr)
            return 1

        failed = retries.failures(trials)
        if failed:
            print(f"failed trials ({len(failed)}; --retry-failed runs them again):{retries.listed(failed)}")
        self._warn_of_equal_values(trials)
        places = places_of(self.study)
        runs = best if isinstance(best, list) else [best]
        for run in runs:
            trial = trials[int(run.run_id)]
            self._print_best(run, trial, places.get(trial.number, {}))
        print(f"report: {page}")
        return 0

    def _print_best(self, run: BestRun, trial: FrozenTrial, places: Mapping[str, str]) -> None:
        """Print one of the best runs: its value, its files, its parameters, and the command that trains it again."""
        print(f"best: {_name_of(trial)}, {', '.join(self.plan.metric)} = {run.objective} ({self.plan.goal})")
        for what, path in places.items():
            print(f"  {what}: {path}")
        for name, value in run.hyperparameters.items():
            print(f"  {name} = {value}")
        print(f"  once more: {trial.user_attrs.get(retries.COMMAND, 'unknown')}")

    def _warn_of_equal_values(self, trials: Sequence[FrozenTrial]) -> None:
        """Warn if trials with other parameters have the same value: a script that reads none of them does that."""
        complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        values = {tuple(trial.values) for trial in complete}
        parameters = {str(sorted(trial.params.items())) for trial in complete}
        if len(values) == 1 and len(parameters) > 1:
            names = ", ".join(complete[0].params)
            print(f"All trials have the same value. Does the script read {names}?", file=sys.stderr)


def _name_of(trial: FrozenTrial) -> str:
    """Return the name of a trial: that of its log, or of the study where it was run."""
    return trial.user_attrs.get(ORIGIN) or f"run-{trial.system_attrs.get('failed_trial', trial.number)}"


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-_TAIL:].strip()
