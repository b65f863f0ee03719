"""What a script is told that is one trial of a sweep: `lightrainer sweep` writes it into the environment."""

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

from .trial_values import cast, declared_types

VARIABLE = "LIGHTRAINER_TRIAL"
"""Holds a `ChildTrial` as JSON."""


@dataclass(kw_only=True)
class ChildTrial:
    """What a script has to know of the trial that it is."""

    storage: str
    """The address of the study's storage."""
    study: str
    number: int
    metrics: list[str]
    """The objectives."""
    result: str
    """The file for what the evaluations said."""
    run_name: str
    """The folder in `output_dir`."""
    values: dict[str, Any] = field(default_factory=dict)
    """Those of training arguments, by name."""
    pruner: str = "none"
    """The pruner, as the command line has it."""
    unit: str = "steps"
    """What evaluations are reported under to the pruner, `steps` or `epochs`."""
    resume: bool = False
    parent: int = 0
    """The process of the sweep."""
    trial_id: int = 0
    reported: list[int] = field(default_factory=list)
    """Steps, or epochs, of which the study knows already."""
    remove_pruned: bool = False
    """Whether what the trial writes is removed if it is pruned."""
    training: int | None = None
    """The call of `train` that is reported to the pruner, from 1; None for the only one that evaluates."""
    applied: bool = False
    """Whether training arguments of this process have taken up `values`."""
    asks: bool = False
    """Whether this is no trial yet: the script says what it calls best, in `result`, and ends."""

    def answer(self, metric: str, greater_is_better: bool, why: str) -> NoReturn:
        """Say what the script calls best, and end it."""
        if os.environ.get("RANK", "0") == "0":
            answer = {"metric": metric, "greater_is_better": greater_is_better, "why": why}
            Path(self.result).write_text(json.dumps(answer))
        raise SystemExit(0)

    def as_json(self) -> str:
        """Write it down for the environment."""
        return json.dumps(asdict(self))


def this_trial() -> ChildTrial | None:
    """Return the trial that this process is; None where it is no part of a sweep."""
    text = os.environ.get(VARIABLE)
    return _read(text) if text else None


@functools.lru_cache(maxsize=1)
def _read(text: str) -> ChildTrial:
    trial = ChildTrial(**json.loads(text))
    _end_with_parent(trial)
    return trial


def apply_trial(args: Any) -> None:
    """Set the values of the trial on training arguments that are being made, and give them a folder of their own."""
    trial = this_trial()
    if trial is None:
        return
    trial.applied = True
    declared = declared_types(args)
    for name, value in trial.values.items():
        if hasattr(args, name):
            setattr(args, name, cast(name, value, declared.get(name), getattr(args, name)))
    if trial.asks:
        metric, greater = args.metric_for_best_model, args.greater_is_better
        if metric is None:
            trial.answer("eval_loss", False, "The script has no metric_for_best_model.")
        greater = not metric.endswith("loss") if greater is None else greater
        trial.answer(metric, greater, f"The script has metric_for_best_model={metric!r}, greater_is_better={greater}.")
    folder = str(args.output_dir or "trainer_output")
    if os.path.basename(folder) != trial.run_name:
        args.output_dir = os.path.join(folder, trial.run_name)


def _end_with_parent(trial: ChildTrial) -> None:
    """Let the kernel end this process when the sweep is killed: whoever goes on with it begins the trial again."""
    if sys.platform != "linux" or not trial.parent or os.getppid() != trial.parent:
        return
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)
