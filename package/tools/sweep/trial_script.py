"""The script of a sweep: the plan it is run by, its objective, and one process for each trial."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ...lightning_modules.common.redaction import shown_word

if TYPE_CHECKING:
    from ...facade.arguments.sweep_trial import ChildTrial

_SECONDS_TO_SAVE = 60.0
"""Time for a process to write its checkpoint when the sweep is stopped."""


class SweepPlan(Namespace):
    """The options of the command line, checked, and values that follow from them."""

    script: str
    passed_on: list[str]
    """The words for the script."""
    command: list[str]
    """The words that start the script; `{run}` in them is the name of the trial."""
    space: list[Any]
    """The parameters."""
    values_as: str
    """Form in which the script gets values: `arguments`, `options`, `overrides` or `environment`."""
    flags: set[str]
    """Parameters that are options without a value."""
    points: list[dict[str, Any]]
    """The points of a grid."""
    begin_with: Any
    """A study whose trials are taken into this one; None without."""
    enqueue: list[dict[str, Any]]
    """Values of the trials that come first."""
    again: list[str]
    """The options of a sweep that runs one trial of this one once more, without its values."""
    n_trials: int
    """Trials of the study in the end, those of earlier starts included unless they failed."""
    workers: int
    storage: str
    study_name: str
    folder: Path
    metric: list[str]
    direction: list[str]
    """`minimize` or `maximize`, one for each metric."""
    value: str
    """`last` or `best`, the evaluation of a training that counts."""
    training: int | None
    """The call of `train` that counts in a script with several, from 1; None for the last that evaluates."""
    pruner: str
    pruning_unit: str
    """`steps` or `epochs`, the unit of reports to the pruner."""
    sampler: str
    seed: int | None
    timeout: float | None
    max_retry: int
    max_failures: int
    """The sweep ends after so many failures before the first completed trial."""
    retry_failed: bool
    """Run trials that failed in an earlier start once more."""
    heartbeat: float
    remove_pruned: bool
    launcher: str
    gpus_per_trial: int | None
    gpus: list[str | None]
    """CUDA_VISIBLE_DEVICES for the scripts of each worker; None leaves it as it is."""

    @property
    def goal(self) -> str:
        """Describe the objectives, such as `maximize eval_accuracy`."""
        return ", ".join(f"{word} {name}" for word, name in zip(self.direction, self.metric, strict=True))


class ScriptFailed(Exception):  # noqa: N818 - caught here, not shown
    """A trial whose script did not give a value."""


class NotANumber(ScriptFailed):
    """A trial whose value is NaN, perhaps because of its parameters."""


class Killed(ScriptFailed):
    """A trial whose process was killed; it is queued again."""


class SweepError(RuntimeError):
    """The sweep cannot continue."""


class Stopped(BaseException):
    """Ends a trial with the sweep."""


def set_objective(plan: SweepPlan) -> None:
    """Ask the script for its metric and direction, if the command line names none; print them with the reason."""
    if plan.metric:
        return
    from ...facade.arguments.sweep_trial import ChildTrial
    from .space import suggest

    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "wb") as nowhere:
        result = Path(folder) / "objective.json"
        own = {"result": str(result), "run_name": "run", "parent": os.getpid(), "asks": True}
        about = ChildTrial(storage="", study="", number=0, metrics=[], **own)
        process = start(plan, suggest(plan.space), about, nowhere, plan.gpus[0])
        try:
            process.wait()
        finally:
            process.terminate()
        why = f"The script made no TrainingArguments, and ended with exit code {process.returncode}."
        said = {"metric": "eval_loss", "greater_is_better": False, "why": why}
        if result.exists():
            said = json.loads(result.read_text())
    plan.metric = [said["metric"]]
    plan.direction = plan.direction or ["maximize" if said["greater_is_better"] else "minimize"]
    print(f"Objective: {plan.goal}. {said['why']}", file=sys.stderr)


class ScriptRun:
    """Runs the script for one trial.

    Args:
        plan: of the sweep.
        study: its study.
        trial: the trial.
        stopping: set when the sweep ends.
        gpus: CUDA_VISIBLE_DEVICES for the script; None leaves it as it is.
    """

    def __init__(self, plan: SweepPlan, study: Any, trial: Any, stopping: threading.Event, gpus: str | None) -> None:
        from ...facade.search import retries

        self.plan, self.study, self.trial, self.stopping, self.gpus = plan, study, trial, stopping, gpus
        self.process: subprocess.Popen[bytes] | None = None
        self.reported: set[int] = set()
        self.origin = retries.origin_of(study, trial)
        self.name = f"run-{self.origin}"
        self.log, self.result = plan.folder / f"{self.name}.log", plan.folder / f"{self.name}.json"
        retries.note_worker(study, trial)
        trial.set_user_attr(retries.LOG, str(self.log))
        self.is_retry = self.origin != trial.number
        if not self.is_retry:
            self.result.unlink(missing_ok=True)

    def run(self) -> Any:
        """Return the value of the trial.

        Raises:
            TrialPruned: it was pruned.
            ScriptFailed: the script failed, or its process was killed.
            Stopped: the sweep ends; the trial is queued again.
        """
        from ...facade.search import retries
        from .space import suggest

        values = suggest(self.plan.space, self.trial)
        self.trial.set_user_attr(retries.COMMAND, self._command(values))
        with self.log.open("ab") as stream:
            self.begins = stream.tell()  # a retry appends to the log of the interrupted process
            self.process = start(self.plan, values, self._about(), stream, self.gpus)
            if self.stopping.is_set():
                self.end()
            code = self.process.wait()
        return self._judge(code)

    def end(self) -> None:
        """End the process, after it has written its checkpoint."""
        process = self.process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            last_resort = threading.Timer(_SECONDS_TO_SAVE, process.kill)
            last_resort.daemon = True
            last_resort.start()

    def _command(self, values: dict[str, Any]) -> str:
        """Return the command of a sweep that has these values only."""
        folder = os.path.relpath(self.plan.folder / f"{self.name}-again")
        flags = self.plan.flags
        plain = {name: value for name, value in values.items() if name not in flags and value is not None}
        entries = {name: {"value": value, "type": "flag" if name in flags else None} for name, value in values.items()}
        space = ["--space", json.dumps({**entries, **plain}), "--folder", folder]
        words = ["lightrainer", "sweep", *self.plan.again, *space, "--", *self.plan.passed_on]
        return shlex.join(map(shown_word, words))

    def _about(self) -> ChildTrial:
        from ...facade.arguments.sweep_trial import ChildTrial

        return ChildTrial(
            storage=self.plan.storage,
            study=self.plan.study_name,
            number=self.trial.number,
            metrics=self.plan.metric,
            result=str(self.result),
            run_name=self.name,
            pruner=self.plan.pruner,
            unit=self.plan.pruning_unit,
            resume=self.is_retry,
            parent=os.getpid(),
            reported=self._earlier_reports(),
            remove_pruned=self.plan.remove_pruned,
            training=self.plan.training,
        )

    def _earlier_reports(self) -> list[int]:
        """Repeat the reports up to the checkpoint that a retry resumes from; return their steps."""
        from ...facade.search.retries import continuation

        folder = self._found().get("folder")
        if not self.is_retry or folder is None or len(self.plan.metric) > 1:
            return []
        reports = continuation(self.study, self.trial, Path(folder), self.origin, self.plan.pruning_unit).reports
        for step, value in reports.items():
            self.trial.report(value, step)
        self.reported |= set(reports)
        return list(reports)

    def _judge(self, code: int) -> Any:
        """Return the value of the script, which has ended with this code, or raise as `run`."""
        import optuna

        from ...facade.search import retries
        from ...facade.search.sweep_reports import remove_written_files

        found = self._found()
        if found.get("folder"):
            self.trial.set_user_attr(retries.FOLDER, found["folder"])
        counted = self._counted(found["values"])
        self._report(counted)
        if self.stopping.is_set() and code != 0:
            retries.give_up(self.study, self.trial.number, self.plan.max_retry)
            raise Stopped
        if code < 0 or code in (128 + signal.SIGKILL, 128 + signal.SIGTERM):
            retries.queue_again(self.study, self.trial.number, self.plan.max_retry)
            raise Killed(f"its process was killed (exit code {code})")
        if found["pruned"] is not None:
            if self.plan.remove_pruned:
                remove_written_files(found)
            raise optuna.TrialPruned(f"Pruned at {found['pruned']}.")
        if "refused" in found:
            raise SweepError(found["refused"])
        if code != 0:
            raise ScriptFailed(f"exit code {code}: {self._last_words()}")
        if not counted:
            raise ScriptFailed(self._why_no_value(found["seen"]))
        return self._value([values for _, values in counted])

    def _last_words(self) -> str:
        """Return the exception that ended the script, or its last line where there is none."""
        with self.log.open("rb") as stream:
            stream.seek(self.begins)
            text = stream.read().decode(errors="replace")
        lines = [line for line in re.sub(r"(?m)^\[rank\d+\]: ?", "", text).splitlines() if line.strip()]
        raised = re.findall(r"(?m)^Traceback \(most.*\n(?:[ \t].*\n)+(\S.*)", "\n".join(lines))
        own = [line for line in raised if "ChildFailedError" not in line]  # raised by torchrun for the script's own
        return (own or lines or ["it printed nothing"])[-1]

    def _counted(self, values: list[Any]) -> list[Any]:
        """Return step and values of each evaluation of the training that counts."""
        training = self.plan.training or max((number for *_, number in values), default=0)
        return [(step, value) for step, value, number in values if number == training]

    def _report(self, values: list[Any]) -> None:
        """Report the evaluations to the study, unless the script did so for its pruner."""
        if self.plan.pruner != "none" or len(self.plan.metric) > 1:
            return
        for step, value in values:
            if step is not None and step not in self.reported:
                self.reported.add(step)
                self.trial.report(value[0], step)

    def _why_no_value(self, seen: list[str]) -> str:
        from ...lightning_modules.common.suggestions import did_you_mean

        if not seen:
            return "it ended without an evaluation: set eval_strategy, or call trainer.evaluate()"
        if self.plan.training:
            return f"training {self.plan.training} has no evaluation with {', '.join(self.plan.metric)}: see --training"
        missing = [name for name in self.plan.metric if name not in seen and f"eval_{name}" not in seen]
        what = f"no {missing[0]!r}.{did_you_mean(missing[0], seen)}" if missing else "never all of the metrics at once."
        return f"its evaluations have {what} They have: {', '.join(seen)}. Choose with --metric"

    def _value(self, values: list[list[float]]) -> Any:
        finite = [one for one in values if not any(map(math.isnan, one))]
        if self.plan.value == "last" or len(self.plan.metric) > 1 or not finite:
            chosen = values[-1]
        else:
            chosen = (max if self.plan.direction[0] == "maximize" else min)(finite)
        if any(map(math.isnan, chosen)):
            named = zip(self.plan.metric, chosen, strict=True)
            raise NotANumber(", ".join(f"{name} is {value:.5g}" for name, value in named))
        return chosen if len(chosen) > 1 else chosen[0]

    def _found(self) -> dict[str, Any]:
        """Return the content of the result file that the script writes."""
        empty: dict[str, Any] = {"values": [], "seen": [], "pruned": None}
        return json.loads(self.result.read_text()) if self.result.exists() else empty


def start(
    plan: SweepPlan, values: dict[str, Any], about: ChildTrial, stream: IO[bytes], gpus: str | None
) -> subprocess.Popen[bytes]:
    """Start the script.

    Args:
        plan: of the sweep.
        values: of the trial.
        about: the trial, for the script; the values of training arguments are added.
        stream: gets its output.
        gpus: its CUDA_VISIBLE_DEVICES; None leaves it as it is.
    """
    from ...facade import Seq2SeqTrainingArguments
    from ...facade.arguments.sweep_trial import VARIABLE
    from ...interception import environment

    known = {one.name for one in fields(Seq2SeqTrainingArguments)} if plan.values_as == "arguments" else set()
    about.values = {name: value for name, value in values.items() if name in known}
    others = {name: value for name, value in values.items() if name not in known}
    variables = {**os.environ, VARIABLE: about.as_json()}
    environment.switch_on(variables)
    environment.choose_keras_backend(variables)
    if gpus is not None:
        variables["CUDA_VISIBLE_DEVICES"] = gpus
    if plan.values_as == "environment":
        variables |= {name: str(value) for name, value in others.items()}
    words = [word for name, value in others.items() for word in _words(plan, name, value)]
    return subprocess.Popen(
        [word.replace("{run}", about.run_name) for word in [*plan.command, *words]],
        env=variables,
        stdout=stream,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches the sweep only, which ends its processes in order
    )


def _words(plan: SweepPlan, name: str, value: Any) -> list[str]:
    """Return the words of the command line for a value."""
    if plan.values_as == "environment":
        return []
    if plan.values_as == "overrides":
        return [f"{name}={value}"]
    if name in plan.flags:
        return [f"--{name}"] if value else []
    return [f"--{name}", str(value)]
