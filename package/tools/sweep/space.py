"""The search space of a sweep, read from a file: the values of each parameter."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
import math
import os
import re
import typing
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
)
from optuna.trial import create_trial

from ...facade.arguments.trial_values import cast, declared_types
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
learning_rate: {low: 1e-5, high: 1e-2, log: true}     # a float, as is every range of a float argument
num_train_epochs: {type: int, low: 1, high: 4}        # whole numbers; also step: 2
weight_decay: {low: 0, high: 1}
lr_scheduler_type: [constant, linear, cosine]         # one of these
warmup_steps: {low: 0, high: 100, when: {lr_scheduler_type: [linear, cosine]}}    # beside these values only
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
    type: str | None = None
    """`float`, `int` or `flag` (an option without a value, given or left out), where the space says so."""
    is_constant: bool = False
    """It has the same value in every trial."""
    has_step: bool = False
    """The space gives a step; that of whole numbers is 1 where it does not."""
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """The values of other parameters with which it is used; of each, one of these."""

    def applies(self, values: Mapping[str, Value]) -> bool:
        """Return whether it is used beside these values."""
        return all(name in values and values[name] in allowed for name, allowed in self.when.items())

    def suggest(self, trial: Trial) -> Value:
        """Return a value for a trial."""
        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            if self.is_constant:
                return distribution.choices[0]
            return trial.suggest_categorical(self.name, distribution.choices)
        low = distribution.low
        high = distribution.high
        if isinstance(distribution, IntDistribution):
            return trial.suggest_int(self.name, int(low), int(high), log=distribution.log, step=distribution.step)
        return trial.suggest_float(self.name, low, high, log=distribution.log, step=distribution.step)

    def values(self) -> Sequence[Value]:
        """Return all of its values.

        Raises:
            ValueError: it is an interval of fractions without a step.
        """
        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            return distribution.choices
        low = distribution.low
        high = distribution.high
        step = distribution.step
        if distribution.log or step is None:
            raise ValueError(f"--sampler grid: {self.name} has no step. Give it one, or a list of choices.")
        return [low + step * index for index in range(round((high - low) / step) + 1)]

    def ends(self) -> Sequence[Value]:
        """Return its choices, or the ends of its interval."""
        if isinstance(self.distribution, CategoricalDistribution):
            return self.distribution.choices
        return [self.distribution.low, self.distribution.high]

    def fitted(self, declared: Any) -> Parameter:
        """Return it as the training argument of its name takes it: a range of a float argument has floats.

        Args:
            declared: the type of the argument.

        Raises:
            ValueError: the argument cannot have one of the values.
        """
        kinds = set(typing.get_args(declared)) or {declared}
        fitted = self
        if isinstance(self.distribution, IntDistribution) and float in kinds and int not in kinds:
            fitted = self._with_floats(self.distribution)
        if isinstance(self.distribution, FloatDistribution) and int in kinds and float not in kinds:
            raise ValueError(
                f"{self.name} is a whole number, and its range has floats: give a low and high without '.'."
            )
        takes_none = declared is Any or type(None) in kinds
        for value in fitted.ends():
            if cast(self.name, value, declared, None) is None and not takes_none:
                raise ValueError(f"{self.name}=null: the training argument takes no null.")
        return fitted

    def _with_floats(self, whole: IntDistribution) -> Parameter:
        if self.type == "int" or (self.name in _STEPS_OR_SHARES and whole.high > 1):
            return self
        step = float(whole.step) if self.has_step else None
        return replace(self, distribution=FloatDistribution(float(whole.low), float(whole.high), whole.log, step))


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

    def first(self) -> dict[str, Value]:
        """Return the first values of all parameters, without a trial."""
        values: dict[str, Value] = {}
        for parameter in self.parameters:
            if parameter.applies(values):
                values[parameter.name] = parameter.ends()[0]
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
        return {parameter.name for parameter in self.parameters if parameter.type == "flag"}

    def varied(self) -> list[str]:
        """Return the parameters that differ between trials."""
        return [parameter.name for parameter in self.parameters if not parameter.is_constant]

    def fitted(self, arguments: type) -> Space:
        """Return it as training arguments take it, see `Parameter.fitted`.

        Args:
            arguments: the class of the training arguments; other parameters stay as they are.

        Raises:
            ValueError: arguments cannot have the values; names all of them.
        """
        declared = declared_types(arguments)
        parameters = []
        problems = []
        for parameter in self.parameters:
            try:
                known = parameter.name in declared
                parameters.append(parameter.fitted(declared[parameter.name]) if known else parameter)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("\n".join(problems))
        return replace(self, parameters=parameters)

    def check_enqueued(self) -> None:
        """Refuse values to try first that the space does not have.

        Raises:
            ValueError: names the value.
        """
        known = {parameter.name: parameter.distribution for parameter in self.parameters}
        for point in self.enqueue:
            for name in point:
                _require_known("enqueue: ", name, known)
            create_trial(params=dict(point), distributions={name: known[name] for name in point}, value=0.0)

    def require_compatible(self, study: Study) -> None:
        """Refuse a study whose parameters had other choices, or another type.

        Raises:
            ValueError: names the parameter.
        """
        earlier: dict[str, Any] = {}
        for trial in study.get_trials(deepcopy=False):
            earlier.update(trial.distributions)
        for parameter in self.parameters:
            if parameter.name not in earlier or parameter.is_constant:
                continue
            try:
                check_distribution_compatibility(earlier[parameter.name], parameter.distribution)
            except ValueError:
                before = _described(earlier[parameter.name])
                raise ValueError(
                    f"{parameter.name} was {before} in the study {study.study_name!r}, and "
                    f"is {_described(parameter.distribution)} in --space. Within a study only the ends of a range may "
                    "change: pass another --study-name, and the old one with --begin-with."
                ) from None


def _described(distribution: Any) -> str:
    if isinstance(distribution, CategoricalDistribution):
        return f"one of {list(distribution.choices)}"
    kind = "whole numbers" if isinstance(distribution, IntDistribution) else "floats"
    return f"a range of {kind}{' on a log scale' if distribution.log else ''}"


def read_space(path: str) -> Space:
    """Read a space from a YAML or JSON file, with an entry for each parameter as in `EXAMPLE`.

    Args:
        path: the file, or JSON that begins with `{`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: entries are wrong; names all of them.
    """
    if not path.startswith("{") and not os.path.isfile(path):
        raise FileNotFoundError(f"--space {path}: there is no such file.")
    content = _parsed(path)
    if not isinstance(content, Mapping) or not content:
        example = "`learning_rate: {low: 1e-5, high: 1e-2, log: true}`"
        raise ValueError(f"--space {path}: it needs an entry for each parameter, such as {example}.")
    parameters: list[Parameter] = []
    problems: list[str] = []
    for name, entry in content.items():
        if name == "enqueue":
            continue
        try:
            if not isinstance(name, str) or not name:
                raise ValueError("names of parameters are text; YAML reads some words as something else, so quote it.")
            parameters.append(_parameter(name, entry, parameters))
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise ValueError(f"--space {path}:\n" + "\n".join(problems))
    points = content.get("enqueue", [])
    if not isinstance(points, list) or not all(isinstance(point, Mapping) for point in points):
        raise ValueError(f"enqueue must be a list of values by name, such as [{{seed: 1}}], not {points!r:.60}.")
    return Space(parameters=parameters, enqueue=points)


def _parsed(path: str) -> Any:
    """Return the content of a file, or of JSON that begins with `{`."""
    text = path if path.startswith("{") else Path(path).read_text(encoding="utf-8")
    import yaml  # a dependency of Lightning

    class Loader(yaml.SafeLoader):
        """Reads `1e-5` as a number, which is text in YAML 1.1 for want of a point; refuses keys that appear twice."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            _unique([(self.construct_object(key, deep=True), None) for key, _ in node.value])
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    try:
        if path.startswith("{") or path.endswith(".json"):
            return json.loads(text, object_pairs_hook=_unique)
        return yaml.load(text, Loader)
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"--space {path} cannot be read: {error}") from None


def _unique(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return pairs as a dict.

    Raises:
        ValueError: a key appears twice.
    """
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"the key {key!r} appears {keys.count(key)} times in one mapping. Keep one of them.")
    return dict(pairs)


def _parameter(name: str, entry: Any, before: Sequence[Parameter]) -> Parameter:
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
    return Parameter(
        name=name,
        distribution=_distribution(entry),
        type=kind,
        is_constant="value" in entry,
        has_step=entry.get("step") is not None,
        when=_condition(entry.get("when") or {}, {parameter.name: parameter for parameter in before}),
    )


def _distribution(entry: Mapping[str, Any]) -> Distribution:
    if "value" in entry:
        choices = [entry["value"]]
    elif entry.get("type") == "flag":
        choices = entry.get("choices", [False, True])
    elif "choices" in entry:
        choices = entry["choices"]
    else:
        return _interval(entry)
    if not isinstance(choices, list) or not choices:
        raise ValueError("choices must be a list with something in it.")
    return CategoricalDistribution([_plain(choice) for choice in choices])


def _interval(entry: Mapping[str, Any]) -> FloatDistribution | IntDistribution:
    low = _number("low", entry.get("low"))
    high = _number("high", entry.get("high"))
    step = None if entry.get("step") is None else _number("step", entry["step"])
    log = entry.get("log", False)
    is_whole = all(isinstance(number, int) for number in (low, high, step) if number is not None)
    if entry.get("type") == "int" and not is_whole:
        raise ValueError(f"an int goes from a whole number to a whole number, not from {low} to {high}.")
    if is_whole and entry.get("type") != "float":
        return IntDistribution(int(low), int(high), log, 1 if step is None else int(step))
    return FloatDistribution(low, high, log, step)


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{key} must be a number, and is {value!r}: give low and high, or choices.")
    _plain(value)
    return value


def _condition(when: Any, before: Mapping[str, Parameter]) -> dict[str, tuple[Value, ...]]:
    if not isinstance(when, Mapping):
        raise ValueError(f"when must be the values of other parameters, such as {{optim: sgd}}, not {when!r}.")
    conditions = {name: tuple(values) if isinstance(values, list) else (values,) for name, values in when.items()}
    for name, values in conditions.items():
        _require_known("when has ", name, before)
        distribution = before[name].distribution
        if isinstance(distribution, CategoricalDistribution):
            for value in values:
                _require_known(f"when has {name}: ", value, distribution.choices)
    return conditions


def _require_known(what: str, value: Any, known: Collection[Any]) -> None:
    if value not in known:
        listed = ", ".join(str(choice) for choice in known if choice is not None)
        raise ValueError(f"{what}{value!r} is not known.{did_you_mean(value, known)} Choose from: {listed}.")


def _plain(value: Any) -> Value:
    """Return a value that optuna can store and a script can be given."""
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError(f"values must be numbers, texts, true, false or null, not {value!r:.60}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"values must be finite, and {value} is not.")
    return value
