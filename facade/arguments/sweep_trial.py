"""Apply a trial of `lightrainer sweep` to the script that runs it; the trial is passed in the environment."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ...lightning_modules.common.metric_directions import known_direction
from .trial_values import cast, declared_types

VARIABLE = "LIGHTRAINER_TRIAL"
"""Holds a `ChildTrial` as JSON."""


@dataclass(kw_only=True)
class ChildTrial:
    """The trial that a script runs."""

    storage: str
    """The address of the study's storage."""
    study: str
    number: int
    metrics: list[str]
    """The objectives."""
    result: str
    """The file for the results of evaluations."""
    run_name: str
    """The folder in `output_dir`."""
    values: dict[str, Any] = field(default_factory=dict)
    """Values of training arguments, by name."""
    pruner: str = "none"
    """The pruner, as the command line has it."""
    unit: str = "steps"
    """Unit in which evaluations are reported to the pruner, `steps` or `epochs`."""
    resume: bool = False
    parent: int = 0
    """The process of the sweep."""
    reported: list[int] = field(default_factory=list)
    """Steps, or epochs, that the study has results of."""
    remove_pruned: bool = False
    """Remove the files of a pruned trial."""
    training: int | None = None
    """The call of `train` that is reported to the pruner, from 1; None for the only one that evaluates."""
    applied: bool = False
    """True once training arguments of this process have applied `values`."""
    asks: bool = False
    """No trial yet: the script writes its metric and direction into `result`, and ends."""

    def answer(self, metric: str, greater_is_better: bool, why: str) -> NoReturn:
        """Write the script's metric and direction, and end it."""
        if os.environ.get("RANK", "0") == "0":
            answer = {"metric": metric, "greater_is_better": greater_is_better, "why": why}
            Path(self.result).write_text(json.dumps(answer))
        raise SystemExit(0)

    def as_json(self) -> str:
        """Serialize the trial for the environment."""
        return json.dumps(asdict(self))


def this_trial() -> ChildTrial | None:
    """Return the trial of this process; None outside a sweep."""
    text = os.environ.get(VARIABLE)
    return _read(text) if text else None


@functools.lru_cache(maxsize=1)
def _read(text: str) -> ChildTrial:
    trial = ChildTrial(**json.loads(text))
    _end_with_parent(trial)
    return trial


def apply_trial(args: Any) -> None:
    """Set the values of the trial on training arguments under construction, and their output folder."""
    trial = this_trial()
    if trial is None:
        return
    trial.applied = True
    declared = declared_types(args)
    for name, value in trial.values.items():
        if hasattr(args, name):
            setattr(args, name, cast(name, value, declared.get(name), getattr(args, name)))
    if trial.asks:
        _answer_by(trial, args.metric_for_best_model, args.greater_is_better)
    folder = str(args.output_dir or "trainer_output")
    if os.path.basename(folder) != trial.run_name:
        args.output_dir = os.path.join(folder, trial.run_name)


def _answer_by(trial: ChildTrial, metric: str | None, greater_is_better: bool | None) -> NoReturn:
    """Answer with the metric of the arguments, and their direction, or else the usual one, or else `maximize`."""
    if metric is None:
        trial.answer("eval_loss", False, "The script has no metric_for_best_model.")
    why = f"The script has metric_for_best_model={metric!r}, greater_is_better={greater_is_better}."
    if greater_is_better is None:
        why = f"The script has metric_for_best_model={metric!r}, and no greater_is_better."
        greater_is_better = known_direction(metric) != "minimize"
    trial.answer(metric, greater_is_better, why)


def _end_with_parent(trial: ChildTrial) -> None:
    """Let the kernel end this process with the sweep's: a resumed sweep restarts the trial."""
    if sys.platform != "linux" or not trial.parent or os.getppid() != trial.parent:
        return
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)
