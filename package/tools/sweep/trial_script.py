"""The objective of a sweep: one trial is one run of the script."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna import TrialPruned

from ...facade.arguments.sweep_trial import ChildTrial, TrialResult
from ...facade.search import retries
from ...facade.search.metric_objective import why_unusable
from ...lightning_modules.common.redaction import shown_word
from ...lightning_modules.common.suggestions import did_you_mean
from ...lightning_modules.search.taken_trials import require_not_taken
from .plan import SweepError, SweepPlan
from .script_process import ScriptProcess, crash, was_killed

if TYPE_CHECKING:
    from optuna import Study, Trial

    from .space import Value

_SECONDS_BETWEEN_LOOKS = 5.0
"""Interval in which a running trial is looked up in the study."""

_RATES = "lightrainer:rates"
"""Attribute of a trial: see `TrialResult.rates`."""

Evaluation = tuple[int | None, list[float], int]
"""Step or epoch, values, and the number of the training."""


class ScriptFailed(Exception):  # noqa: N818 - caught here, not shown
    """A trial whose script did not give a value."""


class Unusable(ScriptFailed):
    """A trial whose value is NaN, or infinite, perhaps because of its parameters."""


class ScriptKilled(ScriptFailed):
    """A trial whose script was killed, or was stopped with the sweep: it is queued again."""


class ScriptRun:
    """Runs the script for one trial.

    Args:
        plan: of the sweep.
        study: its study.
        trial: the trial.
        stopping: set when the sweep ends.
    """

    def __init__(
        self, plan: SweepPlan, study: Study, trial: Trial, stopping: threading.Event
    ) -> None:
        self.plan = plan
        self.study = study
        self.trial = trial
        self.stopping = stopping
        self.process: ScriptProcess | None = None
        self.origin = retries.origin_of(study, trial)
        self.name = f"run-{self.origin}"
        self.log = self._log_file()
        self.result = self.log.with_suffix(".json")

    def run(self, values: dict[str, Value], gpus: str | None) -> float | list[float]:
        """Return the value of the trial.

        Args:
            values: of the trial.
            gpus: CUDA_VISIBLE_DEVICES for the script; None leaves it as it is.

        Raises:
            TrialPruned: it was pruned.
            ScriptKilled: the script was killed, or was stopped.
            ScriptFailed: the script failed, or was killed too often.
            SweepError: the script cannot be a trial, whatever the values.
            TrialTakenError: another process has it.
        """
        self.trial.set_user_attr(retries.LOG, str(self.log))
        self.trial.set_user_attr(retries.COMMAND, self._command(values))
        status = self._run_script(values, gpus)
        require_not_taken(self.trial)  # the end of its script is not that of the trial any more
        return self._judge(status)

    def stop(self) -> None:
        """Let the script write its checkpoint, and end."""
        if self.process is not None:
            self.process.stop()

    def _log_file(self) -> Path:
        """Return a new file for the output of the script, or that of the trial that this one
        retries.
        """
        if self.origin != self.trial.number and retries.LOG in self.trial.user_attrs:
            return Path(self.trial.user_attrs[retries.LOG])
        for number in itertools.count(1):
            log = self.plan.folder / (
                f"{self.name}.log" if number == 1 else f"{self.name}-{number}.log"
            )
            with contextlib.suppress(FileExistsError):  # another study has the same folder
                log.touch(exist_ok=False)
                return log
        raise AssertionError("there is a free name")

    def _run_script(self, values: dict[str, Value], gpus: str | None) -> int:
        with self.log.open("ab") as stream:
            self.log_begins = stream.tell()  # a retry appends to the log of the interrupted process
            self.process = ScriptProcess(self.plan, values, self._child(), stream, gpus)
            if self.stopping.is_set():
                self.process.stop()
            try:
                while (status := self.process.wait(_SECONDS_BETWEEN_LOOKS)) is None:
                    require_not_taken(self.trial)
            finally:
                self.process.kill()
        return status

    def _command(self, values: dict[str, Value]) -> str:
        """Return the command of a sweep that has these values only."""
        flags = self.plan.space.flags()
        entries: dict[str, Any] = {}
        for name, value in values.items():
            if name in flags:
                entries[name] = {"value": value, "type": "flag"}
            elif value is None:
                entries[name] = {"value": None}
            else:
                entries[name] = value
        folder = os.path.relpath(self.plan.folder / f"{self.name}-again")
        options = ["--space", json.dumps(entries), "--folder", folder]
        words = ["lightrainer", "sweep", *self.plan.again, *options, "--", *self.plan.passed_on]
        return shlex.join(map(shown_word, words))

    def _child(self) -> ChildTrial:
        return ChildTrial(
            storage=self.plan.storage,
            study=self.plan.study_name,
            number=self.trial.number,
            metrics=self.plan.metric,
            result=str(self.result),
            run_name=self.name,
            owner=retries.owner_of(self.trial),
            script=os.path.abspath(self.plan.script),
            pruner=self.plan.pruner,
            unit=self.plan.pruning_unit,
            training=self.plan.training,
        )

    def _judge(self, status: int) -> float | list[float]:
        """Return the value of the script, which ended with this status, or raise as `run`."""
        result = TrialResult.read(self.result)
        if result.folder is not None:
            self.trial.set_user_attr(retries.FOLDER, result.folder)
        evaluations = self._counted(result.values)
        self._report(evaluations)

        # A script that was ended from outside has no result: its retry resumes where it was.
        is_stopped = self.stopping.is_set() and status != 0
        if is_stopped or was_killed(status):
            if not retries.may_retry(self.study, self.trial.number, self.plan.max_retry):
                raise ScriptFailed(f"its process was killed {self.plan.max_retry + 1} times")
            raise ScriptKilled(
                f"{self.name} was {'stopped' if is_stopped else 'killed, and is retried'}."
            )

        # The script cannot be a trial, whatever the values.
        if result.refused is not None:
            raise SweepError(result.refused)
        self._require_effect(result.rates)

        if result.pruned is not None:
            if self.plan.remove_pruned:
                for folder in result.claimed:
                    shutil.rmtree(folder, ignore_errors=True)
            raise TrialPruned(f"Pruned at {result.pruned}.")
        if status != 0:
            raise ScriptFailed(f"{crash(status) or f'exit code {status}'}: {self._last_words()}")
        if not evaluations:
            raise ScriptFailed(self._why_no_value(result.seen))
        return self._value([values for _, values, _ in evaluations])

    def _require_effect(self, rates: dict[str, list[float]]) -> None:
        """Refuse a script whose optimizer does not read a training argument that the space has.

        Args:
            rates: values of the optimizer's groups, by argument.

        Raises:
            SweepError: another trial had another value, and its optimizer the same.
        """
        self.trial.set_user_attr(_RATES, rates)
        for other in self.study.get_trials(deepcopy=False):
            for name, values in other.user_attrs.get(_RATES, {}).items():
                differs = other.params.get(name) != self.trial.params.get(name)
                if differs and name in self.trial.params and rates.get(name) == values:
                    raise SweepError(
                        f"{name} is {self.trial.params[name]} in {self.name} and "
                        f"{other.params.get(name)} in trial {other.number}, and the optimizer had "
                        f"{values} in both: the script makes its own optimizer, and does not read "
                        f"{name} from its TrainingArguments. Let it do so, or take {name} out of "
                        "the space, and begin with another --study-name."
                    )

    def _last_words(self) -> str:
        """Return the exception that ended the script, or its last line where there is none."""
        with self.log.open("rb") as stream:
            stream.seek(self.log_begins)
            text = stream.read().decode(errors="replace")
        lines = [
            line for line in re.sub(r"(?m)^\[rank\d+\]: ?", "", text).splitlines() if line.strip()
        ]
        raised = re.findall(r"(?m)^Traceback \(most.*\n(?:[ \t].*\n)+(\S.*)", "\n".join(lines))
        # raised by torchrun for the script's own
        own = [line for line in raised if "ChildFailedError" not in line]
        return (own or lines or ["it printed nothing"])[-1]

    def _counted(self, evaluations: list[Evaluation]) -> list[Evaluation]:
        """Return the evaluations of the training that counts."""
        counted = self.plan.training or max((training for *_, training in evaluations), default=0)
        return [evaluation for evaluation in evaluations if evaluation[-1] == counted]

    def _report(self, evaluations: list[Evaluation]) -> None:
        """Report the evaluations to the study, unless the script did so for its pruner."""
        if self.plan.pruner != "none" or len(self.plan.metric) > 1:
            return
        reported = set(retries.reported_steps(self.study, self.trial.number))
        for step, values, _ in evaluations:
            if step is not None and step not in reported:
                reported.add(step)
                self.trial.report(values[0], step)

    def _why_no_value(self, seen: list[str]) -> str:
        metrics = self.plan.metric
        if not seen:
            return "it ended without an evaluation: set eval_strategy, or call trainer.evaluate()"
        if self.plan.training:
            return (
                f"training {self.plan.training} has no evaluation with {', '.join(metrics)}: see "
                "--training"
            )
        missing = [name for name in metrics if name not in seen and f"eval_{name}" not in seen]
        problem = "never all of the metrics at once."
        if missing:
            problem = f"no {missing[0]!r}.{did_you_mean(missing[0], seen)}"
        return f"its evaluations have {problem} They have: {', '.join(seen)}. Choose with --metric"

    def _value(self, evaluations: list[list[float]]) -> float | list[float]:
        """Return the values of the evaluation that counts.

        Raises:
            Unusable: they are not finite.
        """
        plan = self.plan
        chosen = evaluations[-1]
        if plan.value == "best":
            usable = [
                values for values in evaluations if why_unusable(values, plan.direction) is None
            ]
            choose = max if plan.direction[0] == "maximize" else min
            chosen = choose(usable, default=chosen)
        problem = why_unusable(chosen, plan.direction, plan.metric)
        if problem is not None:
            raise Unusable(problem)
        return chosen if len(chosen) > 1 else chosen[0]
