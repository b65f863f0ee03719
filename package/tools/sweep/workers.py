"""Workers of a sweep: take trials from one study, and run the script for each in a process of its own."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import math
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from ...facade.search.earlier_trials import ORIGIN, begin_with, require_comparable
from .space import suggest
from .trial_script import Killed, NotANumber, ScriptFailed, ScriptRun, Stopped, SweepError, SweepPlan

_TAIL = 2000
"""Characters of a log that are shown."""


class Progress:
    """A progress bar on stderr: completed trials, and the best value.

    Args:
        study: of optuna.
        name: of the sweep, with its objective.
        total: number of trials in the end.
    """

    def __init__(self, study: Any, name: str, total: int) -> None:
        self.study, self.name, self.total = study, name, total

    def __enter__(self) -> Progress:
        from tqdm import tqdm

        done, form = self._done(self._states()), {"unit": "trial", "file": sys.stderr, "dynamic_ncols": True}
        self._bar = tqdm(total=self.total, desc=self.name, initial=done, **form)  # the time left is that of new ones
        self._updated, self._shown = 0.0, None
        self.show(now=True)
        return self

    def __exit__(self, *error: Any) -> None:
        self.show(now=True)
        self._bar.close()

    def show(self, now: bool = False) -> None:
        """Read the study, once a second, and update the bar."""
        if not now and time.monotonic() - self._updated < 1:
            return
        states = self._states()
        self._bar.n = self._done(states)
        texts = {}
        if len(self.study.directions) == 1 and self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            best = self.study.best_trial
            texts = {"best": f"{best.value:.5g}", "by": _name_of(best)}
        shown = {"running": "RUNNING", "failed": "FAIL", "pruned": "PRUNED", "interrupted": "INTERRUPTED"}
        texts |= {word: states.count(name) for word, name in shown.items() if name in states}
        self._bar.set_postfix(texts, refresh=False)
        self._updated = time.monotonic()
        if now or sys.stderr.isatty() or (self._bar.n, texts) != self._shown:  # no line a second in a file
            self._shown = (self._bar.n, texts)
            self._bar.refresh()

    def _states(self) -> list[str]:
        """Return the states of the trials that were run in this study."""
        from ...facade.search.retries import interrupted, state_of

        trials = self.study.get_trials(deepcopy=False)
        retried = interrupted(trials)
        return [state_of(trial, retried) for trial in trials if ORIGIN not in trial.user_attrs]

    def _done(self, states: list[str]) -> int:
        return min(states.count("COMPLETE") + states.count("PRUNED"), self.total)


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

    def run(self) -> int:
        """Run until there are enough trials, and write the report.

        Returns:
            0 if a trial was completed, else 1.

        Raises:
            SweepError: the script fails whatever the values.
            StorageError: the storage cannot be reached.
            KeyboardInterrupt: the sweep was interrupted; running trials are queued again.
        """
        import optuna

        from ...facade.search import retries
        from ...facade.search.search_run import enqueue

        plan = self.plan
        if plan.begin_with:
            require_comparable(plan.begin_with, plan.direction, plan.metric)
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # failures are printed here, in fewer words
        if not plan.storage:
            plan.folder.mkdir(parents=True, exist_ok=True)
            plan.storage = f"sqlite:///{plan.folder / 'study.db'}"
        self.study = self._open(0)
        if plan.begin_with:
            added, left_out = begin_with(self.study, plan.begin_with, partial(suggest, plan.space))
            print(f"--begin-with: {added} trials are known, {left_out} are not in --space.", file=sys.stderr)
        enqueue(self.study, [*plan.points, *plan.enqueue])
        plan.folder.mkdir(parents=True, exist_ok=True)
        for number in retries.give_up_dead(self.study, plan.max_retry):
            print(f"Trial {number} was not finished, and is begun again.", file=sys.stderr)
        self.failed_before = set(retries.failures(self.study.get_trials(deepcopy=False)))
        for number in retries.repeat_failed(self.study) if plan.retry_failed else ():
            print(f"Trial {number} failed, and its values are tried again.", file=sys.stderr)
        self.deadline = math.inf if plan.timeout is None else time.monotonic() + plan.timeout
        with Progress(self.study, f"{plan.study_name}: {plan.goal}", plan.n_trials) as self.progress:
            self._work_in_threads()
        if self.error is not None:
            raise self.error
        return self._conclude()

    def _open(self, index: int) -> Any:
        """Open the study, with a connection and a sampler of its own for each worker."""
        from ...facade.search.optuna_backend import make_study
        from ...facade.search.samplers import make_pruner, make_sampler
        from ...facade.search.storages import open_storage

        plan = self.plan
        storage = open_storage(plan.storage, heartbeat=plan.heartbeat, max_retry=plan.max_retry)
        given = {"storage": storage, "study_name": plan.study_name, "load_if_exists": True}
        study = make_study(plan.direction, {**given, "pruner": make_pruner(plan.pruner)}, plan.metric)
        # A sweep that continues a study must not draw the same values again.
        drawn = 1000 * index + len(study.get_trials(deepcopy=False))
        study.sampler = make_sampler(plan.sampler, None if plan.seed is None else plan.seed + drawn)
        return study

    def _work_in_threads(self) -> None:
        threads = [threading.Thread(target=self._work, args=(index,)) for index in range(self.plan.workers)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                threads[0].join(0.1) if threads[0].is_alive() else time.sleep(0.1)
                self.progress.show()
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            for thread in threads:
                thread.join()

    def stop(self) -> None:
        """End all processes: they write a checkpoint, if they write any, and their trials are queued again."""
        self.stopping.set()
        for script in list(self.running):
            script.end()

    def _work(self, index: int) -> None:
        try:
            study = self._open(index) if index else self.study  # threads cannot share sampler and connection
            while not self.stopping.is_set() and time.monotonic() < self.deadline and self._claim(study):
                study.optimize(lambda trial: self._trial(study, trial, index), n_trials=1, catch=(ScriptFailed,))
        except BaseException as error:
            if not isinstance(error, Stopped):
                self.error = self.error or error
            self.stop()

    def _claim(self, study: Any) -> bool:
        """Return whether one more trial is wanted. Workers on two machines may both claim the last one."""
        with self.lock:
            if self._count(study) + self.claimed >= self.plan.n_trials:
                return False
            waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,)) if self.plan.points else ()
            if self.plan.points and len(waiting) <= self.claimed:
                return False
            self.claimed += 1
            return True

    def _count(self, study: Any) -> int:
        """Return the trials that count: all but those that wait, are retried, or failed before this start."""
        from ...facade.search.retries import interrupted

        trials = study.get_trials(deepcopy=False)
        out = interrupted(trials) | self.failed_before
        ran = [trial for trial in trials if trial.number not in out and ORIGIN not in trial.user_attrs]
        return sum(trial.state.name != "WAITING" for trial in ran)

    def _trial(self, study: Any, trial: Any, worker: int) -> Any:
        from ...lightning_modules.search.channel import FAILURE

        with self.lock:
            self.claimed -= 1
        script = ScriptRun(self.plan, study, trial, self.stopping, self.plan.gpus[worker])
        self.running.append(script)
        try:
            return script.run()
        except ScriptFailed as error:
            trial.set_user_attr(FAILURE, str(error))
            print(f"\n{script.name} failed: {error}. Its log: {script.log}", file=sys.stderr)
            if not isinstance(error, (Killed, NotANumber)):
                self._give_up_if_all_fail(study, script, error)
            raise
        finally:
            self.running.remove(script)

    def _give_up_if_all_fail(self, study: Any, script: ScriptRun, error: ScriptFailed) -> None:
        with self.lock:
            self.failures += 1
            done = any(one.state.name in ("COMPLETE", "PRUNED") for one in study.get_trials(deepcopy=False))
            if not done and self.failures >= min(self.plan.max_failures, self.plan.n_trials):
                said = f"{self.failures} trials failed, and none was completed: is it the script? See --max-failures"
                raise SweepError(f"{said}. The last: {error}. The end of {script.log}:\n{_tail(script.log)}")

    def _conclude(self) -> int:
        """Write the report, and print the best runs; return the exit code."""
        from ...facade.search import retries
        from ...facade.search.optuna_backend import best_runs
        from ...facade.search.report import commands_of, places_of, write_report

        try:
            page = write_report(self.study, self.plan.folder)
        except Exception as error:  # must not hide the result
            page = f"none, for it cannot be written: {type(error).__name__}: {error}"
        try:
            best = best_runs(self.study)
        except ValueError as error:
            print(f"{error}\nLogs: {self.plan.folder}. --retry-failed runs failed trials again.", file=sys.stderr)
            return 1
        failed = retries.failures(self.study.get_trials(deepcopy=False))
        if failed:
            print(f"failed trials ({len(failed)}; --retry-failed runs them again):{retries.listed(failed)}")
        places, commands = places_of(self.study), commands_of(self.study)
        for run in best if isinstance(best, list) else [best]:
            number = int(run.run_id)
            trial = self.study.get_trials(deepcopy=False)[number]
            print(f"best: {_name_of(trial)}, {', '.join(self.plan.metric)} = {run.objective} ({self.plan.goal})")
            for what, path in places.get(number, {}).items():
                print(f"  {what}: {path}")
            for name, value in run.hyperparameters.items():
                print(f"  {name} = {value}")
            print(f"  once more: {commands.get(number, 'unknown')}")
        print(f"report: {page}")
        return 0


def _name_of(trial: Any) -> str:
    """Return the name of a trial: that of its folder, or of the study where it was run."""
    return trial.user_attrs.get(ORIGIN) or f"run-{trial.system_attrs.get('failed_trial', trial.number)}"


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-_TAIL:].strip()
