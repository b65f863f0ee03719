"""Start and stop the process of a script, with its command line and environment."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
import signal
import subprocess
from typing import IO, TYPE_CHECKING

from ..watched_script import watchdog_command
from .plan import SweepPlan

if TYPE_CHECKING:
    from ...facade.arguments.sweep_trial import ChildTrial
    from .space import Value

_KILL_SIGNALS = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals that other processes send. Any other signal comes from a crash."""


class ScriptProcess(subprocess.Popen[bytes]):
    """Runs the script once, under a watchdog that kills all its processes (`watchdog.py`).

    Its exit status is that of the script, or 128 plus the number of the signal that killed it.
    `terminate` asks the script to write a checkpoint and exit; after a minute it is killed.

    Args:
        plan: the plan of the sweep.
        values: the values of the trial, by name.
        trial: the trial that the script reads; the values are added to it.
        output: a file for the output of the script.
        gpus: the CUDA_VISIBLE_DEVICES of the script; None leaves the variable unchanged.
    """

    def __init__(
        self,
        plan: SweepPlan,
        values: dict[str, Value],
        trial: ChildTrial,
        output: IO[bytes],
        gpus: str | None,
    ) -> None:
        # The values follow the user's arguments, because argparse uses the last value of an option.
        words = [*plan.script_arguments, *_assign_values(values, plan, trial)]

        super().__init__(
            [*watchdog_command(pipe=0), *plan.command, *words],
            env=_environment(trial, gpus),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            # In its own session, the script gets no Ctrl-C: the sweep does, and stops its scripts.
            start_new_session=True,
        )

    def end(self) -> None:
        """Kill the script and all processes that it started."""
        assert self.stdin is not None
        self.stdin.close()
        self.wait()


def was_killed(status: int) -> bool:
    """Return whether an exit status means that another process killed the script."""
    return status < 0 or status - 128 in _KILL_SIGNALS


def crash(status: int) -> str | None:
    """Return the signal that crashed the script, such as `SIGSEGV`; None if none did."""
    try:
        return signal.Signals(status - 128).name
    except ValueError:
        return None


def _assign_values(values: dict[str, Value], plan: SweepPlan, trial: ChildTrial) -> list[str]:
    """Add the values to a trial, in the form that the script reads.

    Args:
        values: the values of the trial, by name.
        plan: the plan of the sweep.
        trial: the trial, changed in place.

    Returns:
        the options to add to the command line of the script.
    """
    # TrainingArguments reads the values of its fields from the trial; other values become options.
    flags = plan.space.flags()
    for name, value in values.items():
        if name in plan.argument_types:
            trial.values[name] = value
        else:
            trial.options[name] = value

        # A flag that is off and a null value cannot be written as options, so they are left out.
        if name not in flags and value is not None:
            trial.words[name] = f"--{name}={value}"
        elif value:
            trial.words[name] = f"--{name}"

    options: list[str] = []
    for name, word in trial.words.items():
        if name in trial.options:
            options.append(word)
    return options


def _environment(trial: ChildTrial, gpus: str | None) -> dict[str, str]:
    """Return the environment of a script.

    Args:
        trial: the trial that the script runs.
        gpus: its CUDA_VISIBLE_DEVICES; None leaves the variable unchanged.
    """
    from ...facade.arguments.sweep_trial import VARIABLE
    from ...interception import environment
    from ...lightning_modules.checkpoints.owners import JOB

    script_environment = dict(os.environ)
    # The script reads its trial, and the job that its checkpoints belong to.
    script_environment[VARIABLE] = trial.as_json()
    script_environment[JOB] = trial.owner
    environment.switch_on(script_environment)
    environment.choose_keras_backend(script_environment)
    if gpus is not None:
        script_environment["CUDA_VISIBLE_DEVICES"] = gpus
    return script_environment
