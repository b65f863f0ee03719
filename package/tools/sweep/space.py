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

from ...facade.arguments.trial_values import cast_to_field
from ...lightning_modules.common.suggestions import did_you_mean

if TYPE_CHECKING:
    from optuna import Study, Trial

Value = bool | int | float | str | None
Distribution = CategoricalDistribution | FloatDistribution | IntDistribution

_EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
"""A number with an exponent, such as `1e-5`."""
_TYPES = ("float", "int", "flag")
_KEYS = ("type", "low", "high", "log", "step", "choices", "value", "when")
_STEPS_OR_RATIOS = ("logging_steps", "eval_steps", "save_steps", "warmup_steps")
"""Training arguments that are declared as floats: ratios below 1, whole numbers of steps above."""
EXAMPLE = """\
learning_rate: {low: 1e-5, high: 1e-2, log: true}  # a float, as the argument is
num_train_epochs: {type: int, low: 1, high: 4}     # whole numbers; also step: 2
weight_decay: {low: 0, high: 1}
lr_scheduler_type: [constant, linear, cosine]      # one of these
warmup_steps:                                      # for these schedules only
  {low: 0, high: 100, when: {lr_scheduler_type: [linear, cosine]}}
freeze: {type: flag}                               # --freeze, or nothing
fold: ["01", "02"]                                 # quoted values stay text
seed: 7                                            # the same in every trial
"""
"""A space with every form, for `--help`."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of the space."""

    name: str
    distribution: Distribution
    is_flag: bool = False
    """True for an option without a value, which is passed or left out."""
    is_constant: bool = False
    """True if it has the same value in every trial."""
    when: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    """The parameter is used if each of these other parameters has one of its listed values."""

    def applies(self, values: Mapping[str, Value]) -> bool:
        """Return whether the parameter is used together with these values of others."""
        for name, allowed_values in self.when.items():
            if name not in values or values[name] not in allowed_values:
                return False
        return True

    def suggest(self, trial: Trial) -> Value:
        """Return a value for a trial."""
        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            if self.is_constant:
                return distribution.choices[0]
            return trial.suggest_categorical(self.name, distribution.choices)

        low = distribution.low
        high = distribution.high
        step = distribution.step
        if isinstance(distribution, IntDistribution):
            return trial.suggest_int(
                self.name, int(low), int(high), step=distribution.step, log=distribution.log
            )
        return trial.suggest_float(self.name, low, high, step=step, log=distribution.log)

    def values(self) -> Sequence[Value]:
        """Return all values of the parameter.

        Raises:
            ValueError: it is a range without a step.
        """
        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            return distribution.choices
        if distribution.log or distribution.step is None:
            raise ValueError(
                f"--sampler grid: {self.name} has no step. Add a step, or write a list of choices."
            )
        steps = round((distribution.high - distribution.low) / distribution.step)
        return [distribution.low + distribution.step * index for index in range(steps + 1)]


@dataclass(frozen=True, kw_only=True)
class Space:
    """The parameters of a sweep."""

    parameters: Sequence[Parameter]

    def suggest(self, trial: Trial) -> dict[str, Value]:
        """Return the values of a trial by name, without parameters that do not apply."""
        values: dict[str, Value] = {}
        for parameter in self.parameters:
            if parameter.applies(values):
                values[parameter.name] = parameter.suggest(trial)
        return values

    def grid(self) -> list[dict[str, Value]]:
        """Return every combination of values.

        Raises:
            ValueError: a range has no step.
        """
        points: list[dict[str, Value]] = [{}]
        for parameter in self.parameters:
            extended = []
            for point in points:
                if not parameter.applies(point):
                    extended.append(point)
                    continue
                for value in parameter.values():
                    extended.append({**point, parameter.name: value})
            points = extended
        return points

    def flags(self) -> set[str]:
        """Return the names of the parameters that are options without a value."""
        return {parameter.name for parameter in self.parameters if parameter.is_flag}

    def require_compatible(self, study: Study) -> None:
        """Refuse a study whose parameters had other choices, or another type.

        Raises:
            ValueError: the message names the parameter.
        """
        # The trials have the distributions of their time; the last ones count.
        study_distributions: dict[str, BaseDistribution] = {}
        for trial in study.get_trials(deepcopy=False):
            study_distributions.update(trial.distributions)
        for parameter in self.parameters:
            if parameter.name not in study_distributions or parameter.is_constant:
                continue
            study_distribution = study_distributions[parameter.name]
            try:
                check_distribution_compatibility(study_distribution, parameter.distribution)
            except ValueError:
                raise ValueError(
                    f"{parameter.name} is {parameter.distribution} in --space, but was "
                    f"{study_distribution} in the study {study.study_name!r}. Only the ends of a "
                    "range may change within a study. Pass another --study-name."
                ) from None


def read_space(path: str, arguments: Mapping[str, object] | None = None) -> Space:
    """Read a space from a YAML or JSON file, with an entry for each parameter as in `EXAMPLE`.

    Args:
        path: the file, or JSON that starts with `{`.
        arguments: the types of training arguments by name; values of these have to fit.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: entries are invalid; the message lists all of them.
    """
    arguments = arguments or {}
    content = _load(path)
    if not isinstance(content, Mapping) or not content:
        example = "`learning_rate: {low: 1e-5, high: 1e-2, log: true}`"
        raise ValueError(f"--space {path}: write an entry for each parameter, such as {example}.")

    # All faults of the file are reported at once.
    parameters: dict[str, Parameter] = {}
    problems: list[str] = []
    for name, entry in content.items():
        try:
            if not isinstance(name, str):
                raise ValueError(
                    "the name of a parameter must be text. YAML reads some words as other types: "
                    "put it in quotes."
                )
            parameters[name] = _read_parameter(name, entry, parameters, arguments)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise ValueError(f"--space {path}:\n" + "\n".join(problems))

    return Space(parameters=list(parameters.values()))


class _SpaceLoader(yaml.SafeLoader):
    """Reads `1e-5` as a number, and refuses keys that appear twice.

    In YAML 1.1 `1e-5` is text, because it has no decimal point.
    """

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(
                    f"the key {key!r} appears {keys.count(key)} times in one mapping. Keep one of "
                    "them."
                )
        return super().construct_mapping(node, deep)


_SpaceLoader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def _load(path: str) -> Any:
    """Return the content of a file, or of JSON that starts with `{`; JSON is also YAML."""
    if path.startswith("{"):
        text = path
    elif os.path.isfile(path):
        text = Path(path).read_text(encoding="utf-8")
    else:
        raise FileNotFoundError(f"--space {path}: the file does not exist.")
    try:
        return yaml.load(text, _SpaceLoader)
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"--space {path} cannot be read: {error}") from None


def _read_parameter(
    name: str, entry: object, earlier: Mapping[str, Parameter], arguments: Mapping[str, object]
) -> Parameter:
    """Return the parameter for an entry of the file.

    Args:
        name: the name of the parameter.
        entry: its content: a mapping, a list of choices, or a single value.
        earlier: the parameters before it, which `when` may refer to.
        arguments: the types of training arguments, by name.

    Raises:
        ValueError: the entry is invalid.
    """
    # The short forms.
    if entry is None or entry == {}:
        raise ValueError("it has no values. Write a list of values, low and high, or one value.")
    if isinstance(entry, list):
        entry = {"choices": entry}
    if not isinstance(entry, Mapping):
        entry = {"value": entry}
    for key in entry:
        _require_one_of("", key, _KEYS)
    _require_one_of("type ", entry.get("type"), (None, *_TYPES))

    if "low" in entry or "high" in entry:
        distribution = _read_range(name, entry, arguments.get(name))
    else:
        distribution = _read_choices(entry)
    if name in arguments:
        _require_fitting_values(name, distribution, arguments[name])
    return Parameter(
        name=name,
        distribution=distribution,
        is_flag=entry.get("type") == "flag",
        is_constant="value" in entry,
        when=_read_condition(entry.get("when") or {}, earlier),
    )


def _read_choices(entry: Mapping[str, Any]) -> CategoricalDistribution:
    """Return the distribution for choices, a flag or a single value."""
    if "value" in entry:
        choices = [entry["value"]]
    elif "choices" in entry:
        choices = entry["choices"]
    elif entry.get("type") == "flag":
        choices = [False, True]
    else:
        choices = None
    if not isinstance(choices, list) or not choices:
        raise ValueError(f"choices must be a list with at least one value, not {choices!r:.60}.")
    for choice in choices:
        if choice is not None and not isinstance(choice, (bool, int, float, str)):
            raise ValueError(
                f"values must be numbers, texts, true, false or null, not {choice!r:.60}."
            )
    return CategoricalDistribution(choices)


def _read_range(
    name: str, entry: Mapping[str, Any], argument_type: object
) -> FloatDistribution | IntDistribution:
    """Return the distribution for a range.

    Args:
        name: the name of the parameter.
        entry: has low and high, and may have step, log and type.
        argument_type: the type of the training argument of this name; None without one.
    """
    numbers: dict[str, Any] = {
        "low": _read_number("low", entry.get("low")),
        "high": _read_number("high", entry.get("high")),
    }
    if entry.get("step") is not None:
        numbers["step"] = _read_number("step", entry["step"])
    is_whole = all(isinstance(number, int) for number in numbers.values())
    range_type = entry.get("type")
    if range_type == "int" and not is_whole:
        raise ValueError(f"the range of an int needs whole numbers, but it has {numbers}.")

    # A range of a float argument has floats, even if low and high are whole.
    if range_type is None and _number_types(argument_type) == {float}:
        is_number_of_steps = name in _STEPS_OR_RATIOS and numbers["high"] > 1
        is_whole = is_whole and is_number_of_steps

    log = entry.get("log", False)
    if is_whole and range_type != "float":
        return IntDistribution(log=log, **numbers)
    return FloatDistribution(log=log, **numbers)


def _read_number(key: str, value: Any) -> int | float:
    """Return a number of a range, after checking that it is one."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise ValueError(
            f"{key} must be a finite number, not {value!r}. Write low and high, or choices."
        )
    return value


def _number_types(argument_type: object) -> set[type]:
    """Return which of int and float a training argument accepts."""
    types = typing.get_args(argument_type) or (argument_type,)
    return {number_type for number_type in (int, float) if number_type in types}


def _require_fitting_values(name: str, distribution: Distribution, argument_type: object) -> None:
    """Refuse values that a training argument cannot hold.

    Raises:
        ValueError: the message names the value.
    """
    if isinstance(distribution, CategoricalDistribution):
        values = distribution.choices
    else:
        values = (distribution.low, distribution.high)
        has_floats = isinstance(distribution, FloatDistribution)
        if has_floats and _number_types(argument_type) == {int}:
            raise ValueError(
                "the training argument is a whole number, but its range has floats: write low and "
                "high without '.'."
            )
    accepts_none = argument_type is Any or type(None) in typing.get_args(argument_type)
    for value in values:
        if cast_to_field(name, value, argument_type, None) is None and not accepts_none:
            raise ValueError("the training argument does not accept null. Remove it.")


def _read_condition(when: object, earlier: Mapping[str, Parameter]) -> dict[str, list[Value]]:
    """Return the condition of a parameter, see `Parameter.when`."""
    if not isinstance(when, Mapping):
        raise ValueError(
            f"when must be the values of other parameters, such as {{optim: sgd}}, not {when!r}."
        )
    conditions = {}
    for name, values in when.items():
        _require_one_of("when has ", name, earlier)
        conditions[name] = values if isinstance(values, list) else [values]
        distribution = earlier[name].distribution
        if isinstance(distribution, CategoricalDistribution):
            for value in conditions[name]:
                _require_one_of(f"when has {name}: ", value, distribution.choices)
    return conditions


def _require_one_of(prefix: str, value: object, choices: Collection[object]) -> None:
    """Check a value; the prefix says in the message where it is."""
    if value in choices:
        return
    choice_list = ", ".join(str(choice) for choice in choices if choice is not None)
    raise ValueError(
        f"{prefix}{value!r} is not known.{did_you_mean(value, choices)} Choose from: {choice_list}."
    )
