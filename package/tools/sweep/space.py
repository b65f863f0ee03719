"""The search space of a sweep, read from a file: the values of each parameter."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import math
import os
import re
import typing
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # a dependency of Lightning
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
)
from optuna.trial import create_trial

from ...facade.arguments.trial_values import cast
from ...lightning_modules.common.suggestions import did_you_mean

if TYPE_CHECKING:
    from optuna import Study, Trial

Value = bool | int | float | str | None
Distribution = CategoricalDistribution | FloatDistribution | IntDistribution

_EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
_TYPES = ("float", "int", "flag")
_KEYS = ("type", "low", "high", "log", "step", "choices", "value", "when")
_STEPS_OR_SHARES = ("logging_steps", "eval_steps", "save_steps", "warmup_steps")
"""Training arguments that are declared as floats, but take whole numbers from 1 on."""
EXAMPLE = """\
learning_rate: {low: 1e-5, high: 1e-2, log: true}     # a float, as the argument is
num_train_epochs: {type: int, low: 1, high: 4}        # whole numbers; also step: 2
weight_decay: {low: 0, high: 1}
lr_scheduler_type: [constant, linear, cosine]         # one of these
warmup_steps: {low: 0, high: 100, when: {lr_scheduler_type: [linear, cosine]}}  # for these only
freeze: {type: flag}                                  # --freeze, or nothing
fold: ["01", "02"]                                    # quoted values stay text
seed: 7                                               # the same in every trial
enqueue: [{learning_rate: 1e-4, num_train_epochs: 2}] # not a parameter: values that are tried first
"""
"""A space with every form, for `--help`."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of the space."""

    name: str
    distribution: Distribution
    is_flag: bool = False
    """It is an option without a value, given or left out."""
    is_constant: bool = False
    """It has the same value in every trial."""
    when: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    """The values of other parameters with which it is used; of each, one of these."""

    def applies(self, values: Mapping[str, Value]) -> bool:
        """Return whether it is used beside these values."""
        return all(
            name in values and values[name] in allowed for name, allowed in self.when.items()
        )

    def suggest(self, trial: Trial) -> Value:
        """Return a value for a trial."""
        options = self.distribution
        if isinstance(options, IntDistribution):
            return trial.suggest_int(
                self.name, options.low, options.high, step=options.step, log=options.log
            )
        if isinstance(options, FloatDistribution):
            return trial.suggest_float(
                self.name, options.low, options.high, step=options.step, log=options.log
            )
        if self.is_constant:
            return options.choices[0]
        return trial.suggest_categorical(self.name, options.choices)

    def values(self) -> Sequence[Value]:
        """Return all of its values.

        Raises:
            ValueError: it is an interval of fractions without a step.
        """
        options = self.distribution
        if isinstance(options, CategoricalDistribution):
            return options.choices
        if options.log or options.step is None:
            raise ValueError(
                f"--sampler grid: {self.name} has no step. Give it one, or a list of choices."
            )
        steps = round((options.high - options.low) / options.step)
        return [options.low + options.step * index for index in range(steps + 1)]


@dataclass(frozen=True, kw_only=True)
class Space:
    """The parameters of a sweep."""

    parameters: Sequence[Parameter]
    enqueue: Sequence[Mapping[str, Value]] = ()
    """Values that are tried first."""

    def suggest(self, trial: Trial) -> dict[str, Value]:
        """Return the values of a trial, without parameters that do not apply."""
        values: dict[str, Value] = {}
        for parameter in self.parameters:
            if parameter.applies(values):
                values[parameter.name] = parameter.suggest(trial)
        return values

    def grid(self) -> list[dict[str, Value]]:
        """Return every combination of values.

        Raises:
            ValueError: an interval of fractions has no step.
        """
        points: list[dict[str, Value]] = [{}]
        for parameter in self.parameters:
            extended = []
            for point in points:
                if parameter.applies(point):
                    extended += [{**point, parameter.name: value} for value in parameter.values()]
                else:
                    extended.append(point)
            points = extended
        return points

    def flags(self) -> set[str]:
        """Return the parameters that are options without a value."""
        return {parameter.name for parameter in self.parameters if parameter.is_flag}

    def require_compatible(self, study: Study) -> None:
        """Refuse a study whose parameters had other choices, or another type.

        Raises:
            ValueError: names the parameter.
        """
        earlier: dict[str, BaseDistribution] = {}
        for trial in study.get_trials(deepcopy=False):
            earlier.update(trial.distributions)
        for parameter in self.parameters:
            if parameter.name not in earlier or parameter.is_constant:
                continue
            before = earlier[parameter.name]
            try:
                check_distribution_compatibility(before, parameter.distribution)
            except ValueError:
                raise ValueError(
                    f"{parameter.name} is {parameter.distribution} in --space, and was {before} in "
                    f"the study {study.study_name!r}, in which only the ends of a range may "
                    "change. Pass another --study-name, and the old one with --begin-with."
                ) from None


def read_space(path: str, arguments: Mapping[str, Any] | None = None) -> Space:
    """Read a space from a YAML or JSON file, with an entry for each parameter as in `EXAMPLE`.

    Args:
        path: the file, or JSON that begins with `{`.
        arguments: the types of training arguments by name, which have to be able to hold the
            values.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: entries are wrong; names all of them.
    """
    arguments = arguments or {}
    content = _parsed(path)
    if not isinstance(content, Mapping) or not content:
        example = "`learning_rate: {low: 1e-5, high: 1e-2, log: true}`"
        raise ValueError(
            f"--space {path}: it needs an entry for each parameter, such as {example}."
        )
    points = content.get("enqueue", [])
    if not isinstance(points, list) or not all(isinstance(point, Mapping) for point in points):
        raise ValueError(
            f"enqueue must be a list of values by name, such as [{{seed: 1}}], not {points!r:.60}."
        )

    parameters: dict[str, Parameter] = {}
    problems: list[str] = []
    for name, entry in content.items():
        if name == "enqueue":
            continue
        try:
            if not isinstance(name, str):
                raise ValueError(
                    "names of parameters are text; YAML reads some words as something else, so "
                    "quote it."
                )
            parameters[name] = _parameter(name, entry, parameters, arguments)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise ValueError(f"--space {path}:\n" + "\n".join(problems))

    # Values to try first have to be in the space, too.
    distributions = {name: parameter.distribution for name, parameter in parameters.items()}
    for point in points:
        for name in point:
            _require_known("enqueue: ", name, distributions)
        create_trial(
            params=dict(point),
            distributions={name: distributions[name] for name in point},
            value=0.0,
        )
    return Space(parameters=list(parameters.values()), enqueue=points)


class _Loader(yaml.SafeLoader):
    """Reads `1e-5` as a number, which is text in YAML 1.1 for want of a point; refuses keys that
    appear twice.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(
                    f"the key {key!r} appears {keys.count(key)} times in one mapping. Keep one of "
                    "them."
                )
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def _parsed(path: str) -> Any:
    """Return the content of a file, or of JSON that begins with `{`; JSON is YAML, too."""
    if not path.startswith("{") and not os.path.isfile(path):
        raise FileNotFoundError(f"--space {path}: there is no such file.")
    text = path if path.startswith("{") else Path(path).read_text(encoding="utf-8")
    try:
        return yaml.load(text, _Loader)
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"--space {path} cannot be read: {error}") from None


def _parameter(
    name: str, entry: Any, before: Mapping[str, Parameter], arguments: Mapping[str, Any]
) -> Parameter:
    if entry is None or entry == {}:
        raise ValueError("there are no values: give a list of them, low and high, or a single one.")
    if isinstance(entry, list):
        entry = {"choices": entry}
    if not isinstance(entry, Mapping):
        entry = {"value": entry}
    for key in entry:
        _require_known("", key, _KEYS)
    _require_known("type ", entry.get("type"), (None, *_TYPES))

    is_range = "low" in entry or "high" in entry
    distribution = _interval(name, entry, arguments.get(name)) if is_range else _choices(entry)
    if name in arguments:
        _require_argument(name, distribution, arguments[name])
    return Parameter(
        name=name,
        distribution=distribution,
        is_flag=entry.get("type") == "flag",
        is_constant="value" in entry,
        when=_condition(entry.get("when") or {}, before),
    )


def _choices(entry: Mapping[str, Any]) -> CategoricalDistribution:
    choices = [False, True] if entry.get("type") == "flag" else None
    choices = entry.get("choices", choices)
    if "value" in entry:
        choices = [entry["value"]]
    if not isinstance(choices, list) or not choices:
        raise ValueError("choices must be a list with something in it.")
    for choice in choices:
        if choice is not None and not isinstance(choice, (bool, int, float, str)):
            raise ValueError(
                f"values must be numbers, texts, true, false or null, not {choice!r:.60}."
            )
    return CategoricalDistribution(choices)


def _interval(
    name: str, entry: Mapping[str, Any], declared: Any
) -> FloatDistribution | IntDistribution:
    numbers: dict[str, Any] = {
        "low": entry.get("low"),
        "high": entry.get("high"),
        "step": entry.get("step"),
    }
    for key, number in numbers.items():
        is_number = (
            isinstance(number, (int, float))
            and not isinstance(number, bool)
            and math.isfinite(number)
        )
        if not is_number and not (key == "step" and number is None):
            raise ValueError(
                f"{key} must be a finite number, and is {number!r}: give low and high, or choices."
            )
    is_whole = all(isinstance(number, int) for number in numbers.values() if number is not None)
    if entry.get("type") == "int" and not is_whole:
        raise ValueError(
            f"an int goes from a whole number to a whole number, not from {entry['low']} to "
            f"{entry['high']}."
        )

    # A range of an argument that is a float has floats, also where its ends are whole.
    counts_steps = name in _STEPS_OR_SHARES and numbers["high"] > 1
    if entry.get("type") is None and _kinds(declared) == {float} and not counts_steps:
        is_whole = False
    log = entry.get("log", False)
    if is_whole and entry.get("type") != "float":
        return IntDistribution(numbers["low"], numbers["high"], log, numbers["step"] or 1)
    return FloatDistribution(numbers["low"], numbers["high"], log, numbers["step"])


def _kinds(declared: Any) -> set[Any]:
    """Return which kinds of numbers a training argument may hold."""
    return (set(typing.get_args(declared)) or {declared}) & {int, float}


def _require_argument(name: str, distribution: Distribution, declared: Any) -> None:
    """Refuse values that a training argument cannot hold.

    Raises:
        ValueError: names the value.
    """
    if isinstance(distribution, CategoricalDistribution):
        values = distribution.choices
    else:
        values = (distribution.low, distribution.high)
        if isinstance(distribution, FloatDistribution) and _kinds(declared) == {int}:
            raise ValueError(
                "the argument is a whole number, and its range has floats: give low and high "
                "without '.'."
            )
    takes_none = declared is Any or type(None) in typing.get_args(declared)
    for value in values:
        if cast(name, value, declared, None) is None and not takes_none:
            raise ValueError("the training argument takes no null.")


def _condition(when: Any, before: Mapping[str, Parameter]) -> dict[str, list[Value]]:
    if not isinstance(when, Mapping):
        raise ValueError(
            f"when must be the values of other parameters, such as {{optim: sgd}}, not {when!r}."
        )
    conditions = {}
    for name, values in when.items():
        _require_known("when has ", name, before)
        conditions[name] = values if isinstance(values, list) else [values]
        distribution = before[name].distribution
        if isinstance(distribution, CategoricalDistribution):
            for value in conditions[name]:
                _require_known(f"when has {name}: ", value, distribution.choices)
    return conditions


def _require_known(what: str, value: Any, known: Collection[Any]) -> None:
    if value not in known:
        listed = ", ".join(str(choice) for choice in known if choice is not None)
        raise ValueError(
            f"{what}{value!r} is not known.{did_you_mean(value, known)} Choose from: {listed}."
        )
