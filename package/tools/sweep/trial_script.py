"""The objective of a sweep: each trial runs the script once."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from optuna import TrialPruned

from ...facade.arguments.sweep_trial import ChildTrial, TrialEvaluation, TrialResult
from ...facade.search import retries
from ...facade.search.metric_objective import why_unusable
from ...facade.search.storages import absolute_address
from ...lightning_modules.common.redaction import redact_argument
from ...lightning_modules.common.suggestions import did_you_mean
from .plan import SweepError, SweepPlan
from .script_process import ScriptProcess, crash, was_killed

if TYPE_CHECKING:
    from optuna import Study, Trial

    from .space import Value


class ScriptFailed(Exception):  # noqa: N818 - caught here, not shown
    """A trial whose script did not report a value."""


class InvalidTrialValue(ScriptFailed):
    """A trial whose value is NaN or infinite, perhaps because of its parameters."""


class ScriptKilled(ScriptFailed):
    """A trial whose script was killed or was stopped with the sweep, and which is queued again."""


class ScriptRun:
    """Runs the script for one trial.

    Args:
        plan: the plan of the sweep.
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
        self.log_start = 0
        """Offset in the log at which the output of this run starts."""
        self.origin = retries.origin_of(study, trial)
        self.name = f"run-{self.origin}"
        self.log = self._create_log()
        self.result = self.log.with_suffix(".json")

    def run(self, values: dict[str, Value], gpus: str | None) -> list[float]:
        """Run the script, and return the values of the trial, one for each objective.

        Args:
            values: the values of the trial, by name.
            gpus: CUDA_VISIBLE_DEVICES for the script; None leaves it unchanged.

        Raises:
            TrialPruned: the trial was pruned.
            ScriptKilled: the script was killed, or was stopped.
            ScriptFailed: the script failed, or was killed too often.
            SweepError: the script cannot run as a trial with any values.
        """
        self.trial.set_user_attr(retries.LOG, str(self.log))
        self.trial.set_user_attr(retries.COMMAND, self._command(values))
        return self._values_or_raise(self._run_script(values, gpus))

    def stop(self) -> None:
        """Ask the script to write a checkpoint and exit."""
        if self.process is not None:
            self.process.terminate()

    def _create_log(self) -> Path:
        """Create the log file of the script; a retry appends to the log of its original trial."""
        if self.origin != self.trial.number and retries.LOG in self.trial.user_attrs:
            return Path(self.trial.user_attrs[retries.LOG])

        # Another study with the same folder may have taken the name.
        number = 1
        log = self.plan.folder / f"{self.name}.log"
        while True:
            with contextlib.suppress(FileExistsError):
                log.touch(exist_ok=False)
                return log
            number += 1
            log = self.plan.folder / f"{self.name}-{number}.log"

    def _run_script(self, values: dict[str, Value], gpus: str | None) -> int:
        """Run the script, and return its exit status."""
        with self.log.open("ab") as stream:
            self.log_start = stream.tell()
            self.process = ScriptProcess(self.plan, values, self._child_trial(), stream, gpus)
            try:
                # The sweep may have been stopped while the process started.
                if self.stopping.is_set():
                    self.stop()
                return self.process.wait()
            finally:
                self.process.end()

    def _command(self, values: dict[str, Value]) -> str:
        """Return the command of a sweep that runs the script once, with these values."""
        # A space cannot fix a flag to one value, so a flag that is on is passed to the script as
        # `--flag`, and one that is off is left out.
        flags = self.plan.space.flags()
        script_words = list(self.plan.script_arguments)
        entries: dict[str, list[Value]] = {}
        for name, value in values.items():
            if name not in flags:
                entries[name] = [value]
            elif value:
                script_words.append(f"--{name}")

        folder = os.path.relpath(self.plan.folder / f"{self.name}-again")
        options = ["--space", json.dumps(entries), "--folder", folder]
        sweep = ["lightrainer", "sweep", *self.plan.options_of_rerun]
        words = [*sweep, *options, "--", *script_words]
        shown_words = [redact_argument(word) for word in words]
        return shlex.join(shown_words)

    def _child_trial(self) -> ChildTrial:
        """Return the trial in the form in which the script reads it from its environment."""
        return ChildTrial(
            # Absolute, because the script may change its working directory.
            storage=absolute_address(self.plan.storage),
            study=self.plan.study_name,
            number=self.trial.number,
            metrics=self.plan.metric,
            result=str(self.result),
            run_name=self.name,
            owner=retries.owner_of(self.trial),
            script=os.path.abspath(self.plan.script),
            pruner=self.plan.pruner,
            is_metric_implied=self.plan.is_metric_implied,
        )

    def _values_or_raise(self, status: int) -> list[float]:
        """Return the values of a trial, and raise if it did not succeed.

        Args:
            status: the exit status of the script.

        Raises:
            TrialPruned, ScriptKilled, ScriptFailed, SweepError: see `run`.
        """
        result = TrialResult.read(self.result)
        if result.folder is not None:
            self.trial.set_user_attr(retries.FOLDER, result.folder)
        evaluations = self._evaluations_of_training(result.values)
        self._report(evaluations)

        # A script that was killed has no result; its retry resumes where it stopped.
        self._require_not_killed(status)

        # With other values the script could not run as a trial either.
        if result.refused is not None:
            raise SweepError(result.refused)

        if result.pruned_at is not None:
            raise TrialPruned(f"Pruned at step {result.pruned_at}.")
        if status != 0:
            ending = crash(status) or f"exit code {status}"
            raise ScriptFailed(f"{ending}: {self._last_error()}")
        if not evaluations:
            raise ScriptFailed(self._why_no_value(result.seen))
        values = evaluations[-1].values
        problem = why_unusable(values, self.plan.direction, self.plan.metric)
        if problem is not None:
            raise InvalidTrialValue(problem)
        return values

    def _require_not_killed(self, status: int) -> None:
        """If the script was killed, raise `ScriptKilled`, or `ScriptFailed` after all retries."""
        was_stopped = self.stopping.is_set() and status != 0
        if not was_stopped and not was_killed(status):
            return
        if not retries.may_retry(self.study, self.trial.number, self.plan.max_retry):
            raise ScriptFailed(f"its process was killed {self.plan.max_retry + 1} times")
        if was_stopped:
            raise ScriptKilled(f"{self.name} was stopped.")
        raise ScriptKilled(f"{self.name} was killed; retrying it.")

    def _last_error(self) -> str:
        """Return the exception that ended the script, or else its last line of output."""
        with self.log.open("rb") as stream:
            stream.seek(self.log_start)
            output = stream.read().decode(errors="replace")

        # torchrun prefixes the lines of a traceback with the rank.
        output = re.sub(r"(?m)^\[rank\d+\]: ?", "", output)
        # Drop lines without a word: they are empty, or part of the frame around a message.
        lines = [line for line in output.splitlines() if re.search(r"\w", line)]

        # "Traceback (most recent call last):", indented lines, and then "ValueError: text". Empty
        # lines, which source lines in a traceback may contain, are removed above.
        errors = re.findall(r"(?m)^Traceback \(most.*\n(?:[ \t].*\n)+(\S.*)", "\n".join(lines))

        # torchrun itself raises a ChildFailedError when a script fails.
        script_errors = [error for error in errors if "ChildFailedError" not in error]
        if script_errors:
            return script_errors[-1]
        if not lines:
            return "it printed nothing"
        return lines[-1]

    def _evaluations_of_training(self, evaluations: list[TrialEvaluation]) -> list[TrialEvaluation]:
        """Return the evaluations of the last training that evaluated, which decide the trial."""
        numbers = [evaluation.training for evaluation in evaluations]
        last_training = max(numbers, default=0)
        return [evaluation for evaluation in evaluations if evaluation.training == last_training]

    def _report(self, evaluations: list[TrialEvaluation]) -> None:
        """Report the evaluations to the study, unless the script reported them for the pruner."""
        if self.plan.pruner != "none" or len(self.plan.metric) > 1:
            return
        stored_trial = self.study.get_trials(deepcopy=False)[self.trial.number]
        reported = set(stored_trial.intermediate_values)
        for evaluation in evaluations:
            if evaluation.step not in reported:
                reported.add(evaluation.step)
                self.trial.report(evaluation.values[0], evaluation.step)

    def _why_no_value(self, seen: list[str]) -> str:
        """Return the reason why the script reported no value.

        Args:
            seen: the names of the metrics that its evaluations reported.
        """
        metrics = self.plan.metric
        if not seen:
            return "it exited without an evaluation: set eval_strategy, or call trainer.evaluate()"
        problem = "have no values of all these metrics in the same evaluation."
        for name in metrics:
            if name not in seen and f"eval_{name}" not in seen:
                problem = f"have no {name!r}.{did_you_mean(name, seen)}"
                break
        return f"its evaluations {problem} They have: {', '.join(seen)}. Choose with --metric"
