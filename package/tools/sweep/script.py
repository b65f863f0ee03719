"""One trial of a sweep: the script in a process of its own, and what came of it."""

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
import threading
from dataclasses import fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ...lightning_modules.common.redaction import shown_word
from .plan import SweepPlan

if TYPE_CHECKING:
    from ...facade.arguments.sweep_trial import ChildTrial

_PATIENCE = 60.0
"""Seconds that a process has to write its checkpoint when the sweep is stopped."""


class ScriptFailed(Exception):  # noqa: N818 - caught here, not shown
    """A trial whose script did not give a value."""


class NotANumber(ScriptFailed):
    """A trial whose value is NaN, for which its parameters may be the reason."""


class Killed(ScriptFailed):
    """A trial whose process was killed; it is queued again."""


class SweepError(RuntimeError):
    """The sweep cannot go on."""


class Stopped(BaseException):
    """The sweep ends, and its trials with it."""


class ScriptRun:
    """Runs the script for one trial.

    Args:
        plan: of the sweep.
        storage: the address of the study's storage.
        study: its study.
        trial: the trial.
        stopping: set when the sweep ends.
    """

    def __init__(self, plan: SweepPlan, storage: str, study: Any, trial: Any, stopping: threading.Event) -> None:
        from ...facade.search import retries

        self.plan, self.storage, self.study, self.trial, self.stopping = plan, storage, study, trial, stopping
        self.process: subprocess.Popen[bytes] | None = None
        self.reported: set[int] = set()
        retries.note_worker(study, trial)
        trial.set_user_attr(retries.LOG, str(plan.folder / f"run-{retries.origin_of(study, trial)}.log"))
        self.origin = retries.origin_of(study, trial)
        self.name = f"run-{self.origin}"
        self.log, self.result = plan.folder / f"{self.name}.log", plan.folder / f"{self.name}.json"
        if not self._is_retry:
            self.result.unlink(missing_ok=True)

    @property
    def _is_retry(self) -> bool:
        return self.origin != self.trial.number

    def run(self) -> Any:
        """The value of the trial.

        Raises:
            TrialPruned: it was pruned.
            ScriptFailed: the script failed, or its process was killed.
            Stopped: the sweep ends; the trial is queued again.
        """
        from ...facade.search import retries
        from .space import suggest

        values = suggest(self.plan.space, self.trial)
        self.trial.set_user_attr(retries.COMMAND, self._command(values))
        return self._judged(self._start(values))

    def _command(self, values: dict[str, Any]) -> str:
        """Return the command of a sweep that has these values only."""
        folder = os.path.relpath(self.plan.folder / f"{self.name}-again")
        flags = self.plan.flags
        plain = {name: value for name, value in values.items() if name not in flags and value is not None}
        entries = {name: {"value": value, "type": "flag" if name in flags else None} for name, value in values.items()}
        space = ["--space", json.dumps({**entries, **plain}), "--folder", folder]
        words = ["lightrainer", "sweep", *self.plan.again, *space, "--", *self.plan.passed_on]
        return shlex.join(map(shown_word, words))

    def end(self) -> None:
        """Let the process write its checkpoint, if it writes any, and end."""
        process = self.process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            last_resort = threading.Timer(_PATIENCE, process.kill)
            last_resort.daemon = True
            last_resort.start()

    def _start(self, values: dict[str, Any]) -> int:
        """Run the script to its end; the exit code."""
        with self.log.open("ab") as stream:
            self.begins = stream.tell()  # a retry writes below what the first process wrote
            self.process = start(self.plan, values, self._about(), stream)
            if self.stopping.is_set():
                self.end()
            return self.process.wait()

    def _about(self) -> ChildTrial:
        from ...facade.arguments.sweep_trial import ChildTrial

        return ChildTrial(
            storage=self.storage,
            study=self.plan.name,
            number=self.trial.number,
            trial_id=self.trial._trial_id,
            metrics=self.plan.metrics,
            result=str(self.result),
            run_name=self.name,
            pruner=self.plan.pruner,
            unit=self.plan.pruning_unit,
            resume=self._is_retry,
            parent=os.getpid(),
            reported=self._what_was_reported(),
            remove_pruned=self.plan.remove_pruned,
            training=self.plan.training,
        )

    def _what_was_reported(self) -> list[int]:
        """Let a retry know what was reported before the checkpoint that it goes on from; the steps."""
        from ...facade.search import retries

        folder = self._found().get("folder")
        if not self._is_retry or folder is None or len(self.plan.metrics) > 1:
            return []
        reports = retries.continuation(
            self.study, self.trial, Path(folder), self.origin, self.plan.pruning_unit
        ).reports
        for step, value in reports.items():
            self.trial.report(value, step)
        self.reported |= set(reports)
        return list(reports)

    def _judged(self, code: int) -> Any:
        import optuna

        from ...facade.search import retries

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
                from ...facade.search.sweep_reports import remove_written_files

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
        own = [line for line in raised if "ChildFailedError" not in line]  # which torchrun raises for it
        return (own or lines or ["it printed nothing"])[-1]

    def _counted(self, values: list[Any]) -> list[Any]:
        """Return step and values of each evaluation of the training that counts."""
        training = self.plan.training or max((number for *_, number in values), default=0)
        return [(step, value) for step, value, number in values if number == training]

    def _report(self, values: list[Any]) -> None:
        """Tell the study about the evaluations, where the script has not done so to have its trial pruned."""
        if self.plan.pruner != "none" or len(self.plan.metrics) > 1:
            return
        for step, value in values:
            if step is not None and step not in self.reported:
                self.reported.add(step)
                self.trial.report(value[0], step)

    def _why_no_value(self, seen: list[str]) -> str:
        from ...lightning_modules.common.suggestions import did_you_mean

        if self.plan.training and seen:
            return (
                f"training {self.plan.training} has no evaluation with {', '.join(self.plan.metrics)}: see --training"
            )
        if not seen:
            return "it ended without an evaluation: set eval_strategy, or call trainer.evaluate()"
        missing = [name for name in self.plan.metrics if name not in seen and f"eval_{name}" not in seen]
        what = f"no {missing[0]!r}.{did_you_mean(missing[0], seen)}" if missing else "never all of the metrics at once."
        return f"its evaluations have {what} They have: {', '.join(seen)}. Choose with --metric"

    def _value(self, values: list[list[float]]) -> Any:
        finite = [one for one in values if not any(map(math.isnan, one))]
        if self.plan.value == "last" or len(self.plan.metrics) > 1 or not finite:
            chosen = values[-1]
        else:
            chosen = (max if self.plan.directions[0] == "maximize" else min)(finite)
        if not any(math.isnan(one) for one in chosen):
            return chosen if len(chosen) > 1 else chosen[0]
        named = zip(self.plan.metrics, chosen, strict=True)
        raise NotANumber(", ".join(f"{name} is {value:.5g}" for name, value in named))

    def _found(self) -> dict[str, Any]:
        """What the script's evaluations said."""
        empty: dict[str, Any] = {"values": [], "seen": [], "pruned": None}
        return json.loads(self.result.read_text()) if self.result.exists() else empty


def start(plan: SweepPlan, values: dict[str, Any], about: ChildTrial, stream: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the script.

    Args:
        plan: of the sweep.
        values: of the trial.
        about: what the script is told; the values of training arguments are added.
        stream: for what it says.
    """
    from ...facade.arguments.sweep_trial import VARIABLE
    from ...interception import environment

    known = _training_arguments() if plan.values_as == "arguments" else set()
    about.values = {name: value for name, value in values.items() if name in known}
    others = {name: value for name, value in values.items() if name not in known}
    variables = {**os.environ, VARIABLE: about.as_json()}
    environment.switch_on(variables)
    environment.choose_keras_backend(variables)
    if plan.values_as == "environment":
        variables |= {name: str(value) for name, value in others.items()}
    words = [word for name, value in others.items() for word in _words(plan, name, value)]
    return subprocess.Popen(
        [word.replace("{run}", about.run_name) for word in [*plan.command, *words]],
        env=variables,
        stdout=stream,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for the sweep, which ends its processes in order
    )


def _words(plan: SweepPlan, name: str, value: Any) -> list[str]:
    """Return the words of the command line that hand over a value."""
    if plan.values_as == "environment":
        return []
    if plan.values_as == "overrides":
        return [f"{name}={value}"]
    if name in plan.flags:
        return [f"--{name}"] if value else []
    return [f"--{name}", str(value)]


def _training_arguments() -> set[str]:
    from ...facade import Seq2SeqTrainingArguments

    return {item.name for item in fields(Seq2SeqTrainingArguments)}
