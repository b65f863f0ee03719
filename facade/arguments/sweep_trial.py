"""Apply a trial of `lightrainer sweep` to the script that runs it; the trial is passed in the
environment.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ...callbacks._files import write_whole
from ...lightning_modules.common.claimed_folder import claim_folder, is_claimed
from ...lightning_modules.common.local_paths import is_address
from ...lightning_modules.common.metric_directions import known_direction
from .trial_values import cast, declared_types

VARIABLE = "LIGHTRAINER_TRIAL"
"""Holds a `ChildTrial` as JSON."""


@dataclass(kw_only=True)
class TrialResult:
    """What the script of a trial tells the sweep, in a file."""

    values: list[tuple[int | None, list[float], int]] = field(default_factory=list)
    """For each evaluation the step or epoch, the objectives, and the number of the training."""
    seen: list[str] = field(default_factory=list)
    """The metrics of all evaluations."""
    folder: str | None = None
    """The folder of the training that was evaluated last."""
    claimed: list[str] = field(default_factory=list)
    """Folders that belong to the trial."""
    pruned: str | None = None
    """The step or epoch at which the trial was pruned."""
    refused: str | None = None
    """Why the script cannot be a trial."""
    rates: dict[str, list[float]] = field(default_factory=dict)
    """Values of the groups of the optimizer, by the training argument that sets them."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> TrialResult:
        """Read the file; a missing one has no results yet."""
        if not os.path.exists(path):
            return cls()
        return cls(**json.loads(Path(path).read_text()))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, so that a reader finds the old content or the new one."""
        write_whole(path, json.dumps(asdict(self)).encode())


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
    """The file for its `TrialResult`."""
    run_name: str
    """The folder in `output_dir`, where that is free."""
    owner: str = ""
    """Unique name of the trial and its retries, which share their folders."""
    script: str = ""
    """The path of the script."""
    values: dict[str, Any] = field(default_factory=dict)
    """Values of training arguments, by name."""
    options: dict[str, Any] = field(default_factory=dict)
    """Other values, by name."""
    sets_fields: bool = True
    """Fields of a subclass of the training arguments take options of their names."""
    words: dict[str, str] = field(default_factory=dict)
    """The word of a command line for each value that can be written as one, by name."""
    pruner: str = "none"
    """The pruner, as the command line has it."""
    unit: str = "steps"
    """Unit in which evaluations are reported to the pruner, `steps` or `epochs`."""
    training: int | None = None
    """The call of `train` that is reported to the pruner, from 1; None for the only one that
    evaluates.
    """
    asks: bool = False
    """Not a trial yet: the script writes its metric and direction into `result`, and ends."""

    def __post_init__(self) -> None:
        self.applied: dict[str, Any] = {}
        """The values as training arguments of this process hold them."""
        self.is_parsed = False
        """A parser of this process has read the command line."""
        self.read: set[str] = set()
        """Values that it has given to its options."""

    def answer(self, metric: str, greater_is_better: bool, why: str) -> NoReturn:
        """Write the script's metric and direction, and end it."""
        if os.environ.get("RANK", "0") == "0":
            answer = {"metric": metric, "greater_is_better": greater_is_better, "why": why}
            Path(self.result).write_text(json.dumps(answer))
        raise SystemExit(0)

    def as_json(self) -> str:
        """Serialize the trial for the environment."""
        return json.dumps(asdict(self))

    def problem(self, args: Any) -> str | None:
        """Return why a training does not have the values of the trial; None if it has them.

        Args:
            args: the training arguments.
        """
        return self._overwritten(args) or self._unread()

    def _overwritten(self, args: Any) -> str | None:
        """Describe an argument that does not have the value of the trial; None if all have."""
        for name, value in self.applied.items():
            found = getattr(args, name, None)
            if found != value:
                proposed = getattr(value, "value", value)
                return (
                    f"{name} of the trial is {proposed}, and the training has {found}: the script "
                    "sets it after it has made its TrainingArguments. Leave that out, or take "
                    f"{name} out of the space."
                )
        return None

    def _unread(self) -> str | None:
        """Describe options that neither a parser nor training arguments have read; None if there
        are none.
        """
        unread = sorted(self.options.keys() - self.applied.keys() - self.read)
        if not unread or not self.is_parsed:
            return None
        return (
            f"Nothing in the script has read {', '.join(unread)}: it is not an option of its "
            "parser, and not a training argument. Add it there, or take it out of the space."
        )


def this_trial() -> ChildTrial | None:
    """Return the trial of this process; None outside a sweep."""
    text = os.environ.get(VARIABLE)
    return _read(text) if text else None


@functools.lru_cache(maxsize=1)
def _read(text: str) -> ChildTrial:
    return ChildTrial(**json.loads(text))


def apply_trial(args: Any) -> None:
    """Set the values of the trial on training arguments under construction, and their output
    folder.

    Outside of a sweep they stay as they are.
    """
    trial = this_trial()
    if trial is None:
        return
    _set_values(args, trial)
    if trial.asks:
        _answer_by(trial, args.metric_for_best_model, args.greater_is_better)
    args.output_dir = _folder_for(trial, os.path.expanduser(args.output_dir or "trainer_output"))


def _set_values(args: Any, trial: ChildTrial) -> None:
    """Set the values of the trial on training arguments."""
    values = dict(trial.values)
    if trial.sets_fields:
        own_fields = {item.name for item in dataclasses.fields(args)}
        values.update((name, value) for name, value in trial.options.items() if name in own_fields)

    declared = declared_types(args)
    for name, value in values.items():
        held = cast(name, value, declared.get(name), getattr(args, name))
        if isinstance(value, float) and isinstance(held, int) and held != value:
            raise ValueError(
                f"{name} is a whole number, and the space has {value}: give a low and high without "
                "'.'."
            )
        setattr(args, name, held)
        trial.applied[name] = None


def _folder_for(trial: ChildTrial, output_dir: str) -> str:
    """Return the folder of the trial in `output_dir`, claimed if need be, or `output_dir` if it
    is that already.
    """
    if is_address(output_dir):
        own = f"{trial.run_name}-{trial.owner[:8]}"
        return output_dir if os.path.basename(output_dir) == own else f"{output_dir}/{own}"
    if is_claimed(output_dir, trial.owner):
        return output_dir
    return str(claim_folder(output_dir, trial.run_name, trial.owner))


def note_applied(args: Any) -> None:
    """Note the values of the trial as training arguments hold them after their construction."""
    trial = this_trial()
    if trial is not None:
        trial.applied = {name: copy.deepcopy(getattr(args, name)) for name in trial.applied}


def _answer_by(trial: ChildTrial, metric: str | None, greater_is_better: bool | None) -> NoReturn:
    """Answer with the metric of the arguments, and their direction, or else the usual one, or
    else `maximize`.
    """
    if metric is None:
        trial.answer("eval_loss", False, "The script has no metric_for_best_model.")
    why = f"The script has metric_for_best_model={metric!r}, greater_is_better={greater_is_better}."
    if greater_is_better is None:
        why = f"The script has metric_for_best_model={metric!r}, and no greater_is_better."
        greater_is_better = known_direction(metric) != "minimize"
    trial.answer(metric, greater_is_better, why)
