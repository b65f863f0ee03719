"""Read the search space of a sweep from a file."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import itertools
import math
import os
import re
import typing
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # a dependency of Lightning
from optuna.distributions import (
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
_RANGE_KEYS = ("low", "high", "log", "step", "type")
EXAMPLE = """\
learning_rate: {low: 1e-5, high: 1e-2, log: true}  # a float, as the argument is
num_train_epochs: {type: int, low: 1, high: 4}     # whole numbers; also step: 2
weight_decay: {low: 0, high: 1}
lr_scheduler_type: [constant, linear, cosine]      # one of these
freeze: {type: flag}                               # --freeze, or nothing
fold: ["01", "02"]                                 # quoted values stay text
seed: 7                                            # the same in every trial
"""
"""A space with an example of every kind of entry, for `--help`."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of the space."""

    name: str
    distribution: Distribution
    is_flag: bool = False
    """True for an option without a value, which is either passed or left out."""

    def suggest(self, trial: Trial) -> Value:
        """Return a value for a trial."""
        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            return trial.suggest_categorical(self.name, distribution.choices)

        low = distribution.low
        high = distribution.high
        step = distribution.step
        if isinstance(distribution, IntDistribution):
            return trial.suggest_int(
                self.name, int(low), int(high), step=distribution.step, log=distribution.log
            )
        return trial.suggest_float(self.name, low, high, step=step, log=distribution.log)


@dataclass(frozen=True, kw_only=True)
class Space:
    """The parameters of a sweep."""

    parameters: Sequence[Parameter]

    def suggest(self, trial: Trial) -> dict[str, Value]:
        """Return the values of a trial by name."""
        return {parameter.name: parameter.suggest(trial) for parameter in self.parameters}

    def grid(self) -> list[dict[str, Value]]:
        """Return every combination of values.

        Raises:
            ValueError: a parameter is a range.
        """
        names: list[str] = []
        choices: list[Sequence[Value]] = []
        for parameter in self.parameters:
            if not isinstance(parameter.distribution, CategoricalDistribution):
                raise ValueError(
                    f"--sampler grid: {parameter.name} is a range. Write a list of its values."
                )
            names.append(parameter.name)
            choices.append(parameter.distribution.choices)
        return [dict(zip(names, point, strict=True)) for point in itertools.product(*choices)]

    def flags(self) -> set[str]:
        """Return the names of the parameters that are options without a value."""
        return {parameter.name for parameter in self.parameters if parameter.is_flag}

    def require_compatible(self, study: Study) -> None:
        """Raise if trials of the study had other choices, or another type, for a parameter.

        Raises:
            ValueError: the message names the parameter.
        """
        for trial in study.get_trials(deepcopy=False):
            for parameter in self.parameters:
                distribution = trial.distributions.get(parameter.name, parameter.distribution)
                try:
                    check_distribution_compatibility(distribution, parameter.distribution)
                except ValueError:
                    raise ValueError(
                        f"{parameter.name} is {parameter.distribution} in --space, but was "
                        f"{distribution} in the study {study.study_name!r}. Only the ends of a "
                        "range may change within a study. Pass another --study-name."
                    ) from None


def read_space(path: str, arguments: Mapping[str, object] | None = None) -> Space:
    """Read a space from a YAML or JSON file, with an entry for each parameter as in `EXAMPLE`.

    Args:
        path: the file, or JSON that starts with `{`.
        arguments: the types of training arguments by name. The values for an argument must fit its
            type.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: entries are invalid; the message lists all of them.
    """
    arguments = arguments or {}
    content = _load(path)
    if not isinstance(content, Mapping):
        example = "`learning_rate: {low: 1e-5, high: 1e-2, log: true}`"
        raise ValueError(f"--space {path}: write an entry for each parameter, such as {example}.")

    # Report the problems of all entries at once.
    parameters: list[Parameter] = []
    problems: list[str] = []
    for name, entry in content.items():
        try:
            if not isinstance(name, str):
                raise ValueError(
                    "the name of a parameter must be text. YAML reads some words as other types: "
                    "put it in quotes."
                )
            argument = name.partition(".")[0]
            if argument != name and "dict" in str(arguments.get(argument)):
                raise ValueError(
                    f"{argument} is a training argument without nested names. Write its dicts as "
                    """JSON in quotes: ['{"key": 1}', '{"key": 2}']."""
                )
            parameter = _read_parameter(name, entry, arguments)
            parameters.append(parameter)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise ValueError(f"--space {path}:\n" + "\n".join(problems))
    return Space(parameters=parameters)


class _SpaceLoader(yaml.SafeLoader):
    """Reads `1e-5` as a number, and rejects duplicate keys.

    In YAML 1.1 `1e-5` is text, because it has no decimal point.
    """

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        # PyYAML silently keeps the last of several equal keys.
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


def _read_parameter(name: str, entry: object, arguments: Mapping[str, object]) -> Parameter:
    """Return the parameter for an entry of the file.

    Args:
        name: the name of the parameter.
        entry: its content: a range, a flag, a list of choices, or a single value.
        arguments: the types of training arguments, by name.

    Raises:
        ValueError: the entry is invalid.
    """
    is_flag = entry == {"type": "flag"}
    if entry is None:
        # The line has no value: raise the same error as for an empty list.
        distribution = _read_choices([])
    elif is_flag:
        distribution = CategoricalDistribution([False, True])
    elif isinstance(entry, Mapping):
        distribution = _read_range(name, entry, arguments.get(name))
    elif isinstance(entry, list):
        distribution = _read_choices(entry)
    else:
        distribution = _read_choices([entry])
    if name in arguments:
        _require_fitting_values(name, distribution, arguments[name])
    return Parameter(name=name, distribution=distribution, is_flag=is_flag)


def _read_choices(choices: Sequence[object]) -> CategoricalDistribution:
    """Return the distribution for a list of values."""
    if not choices:
        raise ValueError("it has no values. Write a list of values, low and high, or one value.")
    values: list[Value] = []
    for choice in choices:
        if choice is not None and not isinstance(choice, (bool, int, float, str)):
            raise ValueError(
                f"values must be numbers, texts, true, false or null, not {choice!r:.60}."
            )
        values.append(choice)
    return CategoricalDistribution(values)


def _read_range(
    name: str, entry: Mapping[str, Any], argument_type: object
) -> FloatDistribution | IntDistribution:
    """Return the distribution for a range.

    Args:
        name: the name of the parameter.
        entry: has low and high, and may have step, log and `type: int`.
        argument_type: the type of the training argument with this name; None if there is none.
    """
    for key in entry:
        _require_one_of("", key, _RANGE_KEYS)
    _require_one_of("type ", entry.get("type"), (None, "int", "flag"))
    numbers: dict[str, Any] = {
        "low": _read_number("low", entry.get("low")),
        "high": _read_number("high", entry.get("high")),
    }
    if entry.get("step") is not None:
        numbers["step"] = _read_number("step", entry["step"])
    log = entry.get("log", False)

    is_whole = all(isinstance(number, int) for number in numbers.values())
    if entry.get("type") == "int" and not is_whole:
        raise ValueError(f"the range of an int needs whole numbers, but it has {numbers}.")
    # The range of a float argument has floats, even if low and high are whole. Arguments such as
    # eval_steps are an exception: above 1 they are a whole number of steps, below it a fraction of
    # the training.
    is_steps = name.endswith("_steps") and numbers["high"] > 1
    has_floats = not is_whole or (_number_types(argument_type) == {float} and not is_steps)
    if has_floats and entry.get("type") != "int":
        return FloatDistribution(log=log, **numbers)
    return IntDistribution(log=log, **numbers)


def _read_number(key: str, value: Any) -> int | float:
    """Return a number of a range, and raise unless it is finite."""
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
    """Raise if a training argument does not accept one of the values.

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
    # `cast_to_field` raises for a value of another type, and returns None only for null.
    accepts_none = argument_type is Any or type(None) in typing.get_args(argument_type)
    for value in values:
        if cast_to_field(name, value, argument_type, None) is None and not accepts_none:
            raise ValueError("the training argument does not accept null. Remove it.")


def _require_one_of(prefix: str, value: object, choices: Collection[object]) -> None:
    """Raise if a value is not one of the choices; the prefix precedes it in the message."""
    if value in choices:
        return
    choice_list = ", ".join(str(choice) for choice in choices if choice is not None)
    raise ValueError(
        f"{prefix}{value!r} is not known.{did_you_mean(value, choices)} Choose from: {choice_list}."
    )
