"""Apply a trial of `lightrainer sweep`, which the environment holds, to the script that runs it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...callbacks._files import write_atomically
from ...lightning_modules.common.claimed_folder import claim_folder, is_claimed
from ...lightning_modules.common.local_paths import is_url
from .trial_values import cast_to_field, declared_types

VARIABLE = "LIGHTRAINER_TRIAL"
"""Holds a `ChildTrial` as JSON."""


class TrialEvaluation(NamedTuple):
    """One evaluation of a trial."""

    step: int
    values: list[float]
    """One for each objective."""
    training: int
    """The number of the training in the script, which may have several."""


@dataclass(kw_only=True)
class TrialResult:
    """What the script of a trial reports to the sweep, in a file."""

    values: list[TrialEvaluation] = field(default_factory=list[TrialEvaluation])
    """The evaluations, in order."""
    seen: list[str] = field(default_factory=list[str])
    """The metrics of all evaluations."""
    folder: str | None = None
    """The folder of the training that was evaluated last."""
    pruned_at: int | None = None
    """The step at which the trial was pruned."""
    refused: str | None = None
    """Why the script cannot be a trial."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> TrialResult:
        """Read the file; without one there are no results yet."""
        if not os.path.exists(path):
            return cls()
        result = cls(**json.loads(Path(path).read_text()))
        # JSON has made lists of them.
        result.values = [TrialEvaluation(*evaluation) for evaluation in result.values]
        return result

    def write(self, path: str | os.PathLike[str]) -> None:
        """Replace the file at once, so that readers get either the old or the new content."""
        write_atomically(path, json.dumps(asdict(self)).encode())


@dataclass(kw_only=True)
class ChildTrial:
    """The trial that a script runs."""

    result: str
    """The file for its `TrialResult`."""
    storage: str = ""
    """The address of the study's storage."""
    study: str = ""
    number: int = 0
    metrics: list[str] = field(default_factory=list[str])
    """The objectives."""
    run_name: str = "run"
    """The folder in `output_dir`, if that name is free."""
    owner: str = ""
    """Unique name of the trial and its retries, which share their folders."""
    script: str = ""
    """The path of the script.

    By it `interception/children/sitecustomize.py` tells the script from other programs that it
    starts.
    """
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values of training arguments, by name."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values of the space that are not training arguments, by name; the script's parser reads them.
    """
    words: dict[str, str] = field(default_factory=dict[str, str])
    """The values as words of a command line, `--name=value` or `--flag`, by name.

    None and a flag that is off cannot be written as a word.
    """
    pruner: str = "none"
    """The pruner, as on the command line."""
    is_metric_implied: bool = False
    """The sweep was started without --metric."""

    def __post_init__(self) -> None:
        self.applied_names: set[str] = set()
        """Names of the values that training arguments of this process have taken."""
        self.applied: dict[str, Any] = {}
        """Those values, as the last training arguments hold them."""
        self.is_parsed = False
        """A parser of this process has read the command line."""
        self.read_names: set[str] = set()
        """Names of the values that the parser has given to its options."""

    def as_json(self) -> str:
        """Serialize the trial for the environment."""
        return json.dumps(asdict(self))

    def mismatch_with(self, args: object) -> str | None:
        """Return why a training cannot be that of the trial; None if it can.

        Args:
            args: The training arguments.
        """
        mismatch = self._overwritten_argument(args) or self._unread_options()
        return mismatch or self._other_metric(args)

    def _other_metric(self, args: object) -> str | None:
        """Describe a metric of the script that the sweep may have to optimize."""
        metric = getattr(args, "metric_for_best_model", None)
        if not self.is_metric_implied or metric in (None, "loss", "eval_loss"):
            return None
        return (
            f"The script has metric_for_best_model={metric!r}, but the sweep minimizes eval_loss. "
            f"Pass --metric {metric}, or --metric eval_loss."
        )

    def _overwritten_argument(self, args: object) -> str | None:
        """Describe an argument that does not have the value of the trial; None if all have."""
        for name, value in self.applied.items():
            value_in_training = getattr(args, name, None)
            if value_in_training != value:
                proposed_value = getattr(value, "value", value)
                return (
                    f"{name} of the trial is {proposed_value}, but the training has "
                    f"{value_in_training}: the script sets it after it has made its "
                    f"TrainingArguments. Do not set it there, or remove {name} from the space."
                )
        return None

    def _unread_options(self) -> str | None:
        """Describe options that neither a parser nor training arguments read; None without any."""
        unread = sorted(self.options.keys() - self.applied_names - self.read_names)
        if not unread or not self.is_parsed:
            return None
        return (
            f"The script does not read {', '.join(unread)}, which is neither an option of its "
            "parser nor a training argument. Add it there, or remove it from the space."
        )


def this_trial() -> ChildTrial | None:
    """Return the trial of this process; None outside a sweep."""
    text = os.environ.get(VARIABLE)
    return _read(text) if text else None


# The cache holds the one trial of this process, which parsers and training arguments change.
@functools.lru_cache(maxsize=1)
def _read(text: str) -> ChildTrial:
    return ChildTrial(**json.loads(text))


def apply_trial(args: Any, trial: ChildTrial) -> None:
    """Set the values of the trial on training arguments under construction, and `output_dir`."""
    _set_values(args, trial)
    output_dir = os.path.expanduser(args.output_dir or "trainer_output")
    args.output_dir = _folder_of_trial(trial, output_dir)


def _set_values(args: Any, trial: ChildTrial) -> None:
    """Set the values of the trial on training arguments."""
    values = dict(trial.values)

    # A subclass of the training arguments may have fields for values that the sweep knows as
    # options of the script.
    field_names = {item.name for item in dataclasses.fields(args)}
    for name, value in trial.options.items():
        if name in field_names:
            values[name] = value

    declared = declared_types(args)
    for name, value in values.items():
        cast_value = cast_to_field(name, value, declared.get(name), getattr(args, name))
        if isinstance(value, float) and isinstance(cast_value, int) and value != float(cast_value):
            raise ValueError(
                f"{name} is a whole number, but the space has {value}: write low and high without "
                "'.'."
            )
        setattr(args, name, cast_value)
    trial.applied_names.update(values)


def _folder_of_trial(trial: ChildTrial, output_dir: str) -> str:
    """Return the trial's folder in `output_dir`, or `output_dir` if that is the trial's folder."""
    if is_url(output_dir):
        name = f"{trial.run_name}-{trial.owner[:8]}"
        if os.path.basename(output_dir) == name:
            return output_dir
        return f"{output_dir}/{name}"
    if is_claimed(output_dir, trial.owner):
        return output_dir
    return str(claim_folder(output_dir, trial.run_name, trial.owner))


def note_applied(args: object, trial: ChildTrial) -> None:
    """Note the values of the trial as training arguments hold them after their construction."""
    trial.applied = {}
    for name in sorted(trial.applied_names):
        # Other arguments of the script may have further fields.
        if hasattr(args, name):
            trial.applied[name] = copy.deepcopy(getattr(args, name))
