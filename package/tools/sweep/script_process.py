"""The process of a script: its command line and environment, its start, its end."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .plan import SweepPlan

if TYPE_CHECKING:
    from ...facade.arguments.sweep_trial import ChildTrial
    from .space import Value

_KEEPER = Path(__file__).with_name("keeper.py")
_KILLED = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals that come from outside; by others a process ends itself, when it crashes."""


class ScriptProcess:
    """Runs the script once, with all that it starts in the hands of a keeper (`keeper.py`).

    Args:
        plan: of the sweep.
        values: of the trial.
        trial: the trial, for the script; the values are added.
        output: gets what the script prints.
        gpus: its CUDA_VISIBLE_DEVICES; None leaves it as it is.
    """

    def __init__(
        self,
        plan: SweepPlan,
        values: dict[str, Value],
        trial: ChildTrial,
        output: IO[bytes],
        gpus: str | None,
    ) -> None:
        options = _hand_out(values, plan, trial)
        variables = values if plan.values_as == "environment" else {}
        words = [word.replace("{run}", trial.run_name) for word in plan.passed_on]

        # Python runs the keeper without site-packages, so that it starts in no time.
        keeper = [sys.executable, "-I", "-S", str(_KEEPER)]
        self._process = subprocess.Popen(
            [*keeper, *plan.command, *words, *options],
            env=_environment(trial, variables, gpus),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches the sweep only, which ends its processes in order
            start_new_session=True,
        )

    def wait(self, seconds: float | None = None) -> int | None:
        """Return the exit status, or 128 and the number of a signal; None if it still runs after
        `seconds`.
        """
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Let the script write its checkpoint, and end; after a minute it is killed."""
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the script, and all that it started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def was_killed(status: int) -> bool:
    """Return whether an exit status is that of a process that was killed from outside."""
    return status < 0 or status - 128 in _KILLED


def crash(status: int) -> str | None:
    """Return the name of the signal by which a process ended itself, such as `SIGSEGV`; None for
    another end.
    """
    try:
        return signal.Signals(status - 128).name
    except ValueError:
        return None


def set_objective(plan: SweepPlan) -> None:
    """Ask the script for its metric and direction, if the command line names none; print them
    with the reason.
    """
    if plan.metric:
        return
    import optuna

    from ...facade.arguments.sweep_trial import ChildTrial

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    values = plan.space.suggest(study.ask())
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "wb") as nowhere:
        result = Path(folder) / "objective.json"
        question = ChildTrial(
            storage="",
            study="",
            number=0,
            metrics=[],
            result=str(result),
            run_name="run",
            asks=True,
        )
        process = ScriptProcess(plan, values, question, nowhere, plan.gpus[0])
        try:
            status = process.wait()
        finally:
            process.kill()
        answer = {
            "metric": "eval_loss",
            "greater_is_better": False,
            "why": f"The script made no TrainingArguments, and ended with exit code {status}.",
        }
        if result.exists():
            answer = json.loads(result.read_text())
    plan.metric = [answer["metric"]]
    plan.direction = plan.direction or ["maximize" if answer["greater_is_better"] else "minimize"]
    print(f"Objective: {plan.goal}. {answer['why']}", file=sys.stderr)


def _hand_out(values: dict[str, Value], plan: SweepPlan, trial: ChildTrial) -> list[str]:
    """Add values to the trial in the form in which the script gets them; return the words of its
    command line.
    """
    from ...facade import Seq2SeqTrainingArguments

    if plan.values_as == "environment":
        return []

    # TrainingArguments take their own values by themselves; all others are options.
    trial.sets_fields = plan.values_as == "arguments"
    known: set[str] = set()
    if trial.sets_fields:
        known = {field.name for field in fields(Seq2SeqTrainingArguments)}
    for name, value in values.items():
        owner = trial.values if name in known else trial.options
        owner[name] = value

    # A flag that is off and null are left out.
    flags = plan.space.flags()
    for name, value in values.items():
        if name in flags and value:
            trial.words[name] = f"--{name}"
        elif name not in flags and value is not None:
            trial.words[name] = f"--{name}={value}"
    return [word for name, word in trial.words.items() if name in trial.options]


def _environment(
    trial: ChildTrial, variables: dict[str, Value], gpus: str | None
) -> dict[str, str]:
    """Return the environment of a script.

    Args:
        trial: its trial.
        variables: values that it gets as variables; null unsets one.
        gpus: CUDA_VISIBLE_DEVICES; None leaves it as it is.
    """
    from ...facade.arguments.sweep_trial import VARIABLE
    from ...interception import environment
    from ...lightning_modules.checkpoints.owners import JOB

    found: dict[str, Any] = {
        **os.environ,
        **variables,
        VARIABLE: trial.as_json(),
        JOB: trial.owner,
    }
    environment.switch_on(found)
    environment.choose_keras_backend(found)
    if gpus is not None:
        found["CUDA_VISIBLE_DEVICES"] = gpus
    return {name: str(value) for name, value in found.items() if value is not None}
