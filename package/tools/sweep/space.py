"""The search space of a sweep, read from a file: the values of each parameter."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
import math
import os
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import create_trial

from ...facade.arguments.trial_values import cast, declared_types
from ...lightning_modules.common.suggestions import did_you_mean

_EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
_TYPES = ("float", "int", "flag")
_KEYS = ("type", "low", "high", "log", "step", "choices", "value", "when")
EXAMPLE = """\
learning_rate: {low: 1e-5, high: 1e-2, log: true}     # float, as one end is
num_train_epochs: {low: 1, high: 4}                   # int; also step: 2
weight_decay: {type: float, low: 0, high: 1}
lr_scheduler_type: [constant, linear, cosine]         # one of these
warmup_steps: {low: 0, high: 100, when: {lr_scheduler_type: [linear, cosine]}}    # beside these values only
freeze: {type: flag}                                  # --freeze, or nothing
fold: ["01", "02"]                                    # what is quoted stays text
seed: 7                                               # the same in every trial
enqueue: [{learning_rate: 1e-4, num_train_epochs: 2}] # no parameter: values that are tried first
"""
"""A space with every form, for `--help`."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of the space."""

    name: str
    choices: tuple[Any, ...] = ()
    """Its values, if they are listed."""
    interval: FloatDistribution | IntDistribution | None = None
    """Its values otherwise."""
    is_constant: bool = False
    """It has the same value in every trial."""
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values of other parameters with which it is used; of each, one of these."""
    is_flag: bool = False
    """It is an option without a value, given or left out."""

    def applies(self, values: Mapping[str, Any]) -> bool:
        """Return whether it is used beside these values."""
        return all(name in values and values[name] in wanted for name, wanted in self.when.items())

    def suggest(self, trial: Any) -> Any:
        """Return a value for a trial."""
        if self.is_constant:
            return self.choices[0]
        if self.interval is None:
            return trial.suggest_categorical(self.name, self.choices)
        low, high, options = self.interval.low, self.interval.high, {"step": self.interval.step}
        ask = trial.suggest_int if isinstance(self.interval, IntDistribution) else trial.suggest_float
        return ask(self.name, low, high, log=self.interval.log, **options)

    def values(self) -> Sequence[Any]:
        """Return all of its values.

        Raises:
            ValueError: it is an interval of fractions without a step.
        """
        if self.interval is None:
            return self.choices
        low, high, step = self.interval.low, self.interval.high, self.interval.step
        if self.interval.log or step is None:
            raise ValueError(f"--sampler grid: {self.name} has no step. Give it one, or a list of choices.")
        return [low + step * index for index in range(round((high - low) / step) + 1)]

    def ends(self) -> Sequence[Any]:
        """Return its choices, or the ends of its interval."""
        return self.choices if self.interval is None else [self.interval.low, self.interval.high]


def read_space(path: str | os.PathLike[str], enqueued: list[dict[str, Any]] | None = None) -> list[Parameter]:
    """Read a space from a YAML or JSON file, with an entry for each parameter as in `EXAMPLE`.

    Args:
        path: the file, or JSON that begins with `{`.
        enqueued: gets the values that are tried first.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: entries are wrong; names all of them.
    """
    is_text = os.fspath(path).startswith("{")
    if not is_text and not os.path.isfile(path):
        raise FileNotFoundError(f"--space {os.fspath(path)}: there is no such file.")
    content = json.loads(os.fspath(path)) if is_text else _parsed(Path(path))
    if not isinstance(content, Mapping) or not content:
        example = "`learning_rate: {low: 1e-5, high: 1e-2, log: true}`"
        raise ValueError(f"--space {os.fspath(path)}: it needs an entry for each parameter, such as {example}.")
    found: list[Parameter] = []
    said: list[str] = []
    points = content.get("enqueue", [])
    for name, entry in content.items():
        if name == "enqueue":
            continue
        try:
            if not isinstance(name, str) or not name:
                raise ValueError("names of parameters are text; YAML reads some words as something else, so quote it.")
            found.append(_parameter(name, entry, found))
        except ValueError as error:
            said.append(f"{name}: {error}")
    if said:
        raise ValueError(f"--space {os.fspath(path)}:\n" + "\n".join(said))
    _check_enqueued(points, found)
    if enqueued is not None:
        enqueued += points
    return found


def _check_enqueued(points: Any, space: list[Parameter]) -> None:
    if not isinstance(points, list) or not all(isinstance(point, Mapping) for point in points):
        raise ValueError(f"enqueue must be a list of values by name, such as [{{seed: 1}}], not {points!r:.60}.")
    known = {one.name: one.interval or CategoricalDistribution(one.choices) for one in space}
    for point in points:
        for name in point:
            _require_known("enqueue: ", name, known)
        create_trial(params=point, distributions={name: known[name] for name in point}, value=0.0)  # or ValueError


def suggest(space: list[Parameter], trial: Any = None) -> dict[str, Any]:
    """Return the values of a trial, without parameters that do not apply; the first values without a trial."""
    values: dict[str, Any] = {}
    for one in space:
        if one.applies(values):
            values[one.name] = one.ends()[0] if trial is None else one.suggest(trial)
    return values


def grid(space: list[Parameter]) -> list[dict[str, Any]]:
    """Return every combination of values.

    Raises:
        ValueError: an interval of fractions has no step.
    """
    points: list[dict[str, Any]] = [{}]
    for one in space:
        points = [
            {**point, **chosen}
            for point in points
            for chosen in ([{one.name: value} for value in one.values()] if one.applies(point) else [{}])
        ]
    return points


def check_values(space: list[Parameter], arguments: type) -> None:
    """Refuse values that the training argument of that name cannot hold.

    Args:
        space: the parameters; those that are not training arguments are skipped.
        arguments: the class of the training arguments.

    Raises:
        ValueError: names all wrong values.
    """
    declared, said = declared_types(arguments), []
    for one in space:
        kind = declared.get(one.name, Any)
        takes_none = kind is Any or type(None) in typing.get_args(kind)
        for value in one.ends() if one.name in declared else ():
            try:
                if cast(one.name, value, kind, None) is None and not takes_none:
                    raise ValueError(f"{one.name}=null: the training argument takes no null.")
            except ValueError as error:
                said.append(str(error))
                break
    if said:
        raise ValueError("\n".join(said))


def _parsed(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    import yaml  # a dependency of Lightning

    class Loader(yaml.SafeLoader):
        """Reads `1e-5` as a number; YAML 1.1 takes it for text, as it has no point."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"--space {path} cannot be read: {error}") from None


def _parameter(name: str, entry: Any, before: list[Parameter]) -> Parameter:
    if entry is None or entry == {}:
        raise ValueError("there are no values: give a list of them, low and high, or a single one.")
    if isinstance(entry, list):
        entry = {"choices": entry}
    if not isinstance(entry, Mapping):
        entry = {"value": entry}
    for key in entry:
        _require_known("", key, _KEYS)
    kind = entry.get("type")
    _require_known("type ", kind, (None, *_TYPES))
    is_constant, is_flag = "value" in entry, kind == "flag"
    found = Parameter(name=name, is_constant=is_constant, is_flag=is_flag)
    if is_constant or is_flag or "choices" in entry:
        choices = [entry["value"]] if is_constant else entry.get("choices", [False, True])
        if not isinstance(choices, list) or not choices:
            raise ValueError("choices must be a list with something in it.")
        found = replace(found, choices=tuple(map(_plain, choices)))
    else:
        found = replace(found, interval=_interval(entry))
    return replace(found, when=_condition(entry.get("when") or {}, {one.name: one for one in before}))


def _interval(entry: Mapping[str, Any]) -> FloatDistribution | IntDistribution:
    low, high, step, log = entry.get("low"), entry.get("high"), entry.get("step"), entry.get("log", False)
    for key, value in (("low", low), ("high", high), ("step", step)):
        if isinstance(value, bool) or not isinstance(value, (int, float, *([type(None)] if key == "step" else []))):
            raise ValueError(f"{key} must be a number, and is {value!r}: give low and high, or choices.")
        _plain(value)
    whole = all(isinstance(one, int) for one in (low, high, step) if one is not None)
    if entry.get("type") == "int" and not whole:
        raise ValueError(f"an int goes from a whole number to a whole number, not from {low} to {high}.")
    if whole and entry.get("type") != "float":
        return IntDistribution(low, high, log, 1 if step is None else step)  # type: ignore[arg-type]
    return FloatDistribution(low, high, log, step)  # type: ignore[arg-type]


def _condition(when: Any, before: Mapping[str, Parameter]) -> dict[str, tuple[Any, ...]]:
    if not isinstance(when, Mapping):
        raise ValueError(f"when must be the values of other parameters, such as {{optim: sgd}}, not {when!r}.")
    found = {name: tuple(values) if isinstance(values, list) else (values,) for name, values in when.items()}
    for name, values in found.items():
        _require_known("when has ", name, before)
        for value in values if before[name].choices else ():
            _require_known(f"when has {name}: ", value, before[name].choices)
    return found


def _require_known(what: str, value: Any, known: Any) -> None:
    if value not in known:
        listed = ", ".join(str(one) for one in known if one is not None)
        raise ValueError(f"{what}{value!r} is not known.{did_you_mean(value, known)} Choose from: {listed}.")


def _plain(value: Any) -> Any:
    """Return a value that optuna can store and a script can be given."""
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError(f"values must be numbers, texts, true, false or null, not {value!r:.60}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"values must be finite, and {value} is not.")
    return value
