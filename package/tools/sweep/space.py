"""A search space in a file: which values a sweep tries."""

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

from ...facade.arguments.trial_values import cast, declared_types
from ...lightning_modules.common.suggestions import did_you_mean

_EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
_KINDS = ("float", "int", "flag")
_KEYS = ("type", "low", "high", "log", "step", "choices", "value", "when", "min", "max", "values")
EXAMPLE = """\
learning_rate: {low: 1e-5, high: 1e-2, log: true}     # float, as one end is
num_train_epochs: {low: 1, high: 4}                   # int; also step: 2
weight_decay: {type: float, low: 0, high: 1}
lr_scheduler_type: [constant, linear, cosine]         # one of these
warmup_steps: {low: 0, high: 100, when: {lr_scheduler_type: [linear, cosine]}}    # beside these values only
freeze: {type: flag}                                  # --freeze, or nothing
fold: ["01", "02"]                                    # what is quoted stays text
seed: 7                                               # the same in every trial
"""
"""A space that has everything, for `--help`."""


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """The values of one parameter."""

    name: str
    kind: str
    """`float`, `int`, `categorical`, or `constant`."""
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values of other parameters with which it is there; of each, one of these."""
    flag: bool = False
    """It is an option without a value, given or left out."""

    def applies(self, values: Mapping[str, Any]) -> bool:
        """Return whether it is there beside these values."""
        return all(name in values and values[name] in wanted for name, wanted in self.when.items())

    def suggest(self, trial: Any) -> Any:
        """Return a value for a trial."""
        if self.kind == "constant":
            return self.choices[0]
        return getattr(trial, f"suggest_{self.kind}")(self.name, **self.range)

    def values(self) -> Sequence[Any]:
        """Return all of its values.

        Raises:
            ValueError: it is an interval of fractions without a step.
        """
        if self.choices:
            return self.choices
        if self.log or (self.kind == "float" and not self.step):
            raise ValueError(f"--sampler grid: {self.name} has no step. Give it one, or a list of choices.")
        low, step = self.range["low"], self.step or 1
        return [low + step * index for index in range(math.floor((self.high - low) / step + 1e-9) + 1)]

    @property
    def distribution(self) -> Any:
        """The distribution of optuna."""
        from optuna import distributions

        return getattr(distributions, f"{self.kind.capitalize()}Distribution")(**self.range)

    @property
    def range(self) -> dict[str, Any]:
        """What optuna calls its settings."""
        if self.kind == "categorical":
            return {"choices": self.choices}
        if self.kind == "int":
            return {"low": int(self.low), "high": int(self.high), "step": int(self.step or 1), "log": self.log}
        return {"low": self.low, "high": self.high, "step": self.step, "log": self.log}


def read_space(path: str | os.PathLike[str]) -> list[Dimension]:
    """A space from a YAML or JSON file; there is no such thing in the reference.

    It has an entry for each parameter, as in `EXAMPLE`.

    Args:
        path: the file, or JSON that begins with `{`.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: what cannot be in it; all of it in one message.
    """
    is_text = os.fspath(path).startswith("{")
    if not is_text and not os.path.isfile(path):
        raise FileNotFoundError(f"--space {os.fspath(path)}: there is no such file.")
    content = json.loads(os.fspath(path)) if is_text else _parsed(Path(path))
    if not isinstance(content, Mapping) or not content:
        raise ValueError(
            f"--space {os.fspath(path)}: it has to have an entry for each parameter, such as "
            "`learning_rate: {low: 1e-5, high: 1e-2, log: true}`."
        )
    found: list[Dimension] = []
    said: list[str] = []
    for name, entry in content.items():
        try:
            if not isinstance(name, str) or not name:
                raise ValueError("names of parameters are text; YAML reads some words as something else, so quote it.")
            found.append(_dimension(name, entry, found))
        except ValueError as error:
            said.append(f"{name}: {error}")
    if said:
        raise ValueError(f"--space {os.fspath(path)}:\n" + "\n".join(said))
    return found


def suggest(space: list[Dimension], trial: Any = None) -> dict[str, Any]:
    """Return the values of a trial, without those that do not apply; the first ones where there is none."""
    values: dict[str, Any] = {}
    for one in space:
        if one.applies(values):
            values[one.name] = (one.choices or [one.range["low"]])[0] if trial is None else one.suggest(trial)
    return values


def grid(space: list[Dimension]) -> list[dict[str, Any]]:
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


def check_values(space: list[Dimension], arguments: type) -> None:
    """Refuse values that no training argument of that name can hold.

    Args:
        space: the dimensions; those that are no training arguments are passed over.
        arguments: the class of the training arguments.

    Raises:
        ValueError: names all that cannot be.
    """
    declared, said = declared_types(arguments), []
    for one in space:
        if one.name not in declared:
            continue
        ends = [int(one.low), int(one.high)] if one.kind == "int" else [one.low, one.high]
        for value in one.choices or ends:
            try:
                if cast(one.name, value, declared[one.name], None) is None and not _takes_none(declared[one.name]):
                    raise ValueError(f"{one.name}=null: the training argument takes no null.")
            except ValueError as error:
                said.append(str(error))
                break
    if said:
        raise ValueError("\n".join(said))


def check_study(space: list[Dimension], study: Any) -> None:
    """Refuse a space whose parameters a study has in another form, which optuna would say in the first trial.

    Args:
        space: the dimensions.
        study: of optuna.

    Raises:
        ValueError: names the first of them.
    """
    from optuna.distributions import check_distribution_compatibility

    wanted = {one.name: one.distribution for one in space if one.kind != "constant"}
    for trial in study.get_trials(deepcopy=False):
        for name in wanted.keys() & trial.distributions.keys():
            try:
                check_distribution_compatibility(trial.distributions[name], wanted[name])
            except ValueError:
                raise ValueError(
                    f"The study {study.study_name!r} has {name} as {trial.distributions[name]}, and the space as "
                    f"{wanted[name]}. Choices, log and type cannot change within a study: take the same, or another "
                    "--study-name."
                ) from None


def _takes_none(declared: Any) -> bool:
    return declared is Any or type(None) in typing.get_args(declared)


def _parsed(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"--space {path} is not JSON: {error}") from None
    import yaml  # Lightning brings it along

    class Loader(yaml.SafeLoader):
        """Reads `1e-5` as a number; YAML 1.1 takes it for text, as there is no point in it."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"--space {path} is not YAML: {error}") from None


def _dimension(name: str, entry: Any, before: list[Dimension]) -> Dimension:
    if entry is None or entry == {}:
        raise ValueError("there are no values: give a list of them, low and high, or a single one.")
    if isinstance(entry, list):
        entry = {"choices": entry}
    if not isinstance(entry, Mapping):
        entry = {"value": entry}
    unknown = [key for key in entry if key not in _KEYS]
    if unknown:
        near = did_you_mean(unknown[0], _KEYS)
        raise ValueError(f"{unknown[0]!r} is not known.{near} Choose from: {', '.join(_KEYS[:-3])}.")
    return replace(_values(name, entry), when=_condition(entry.get("when") or {}, {one.name: one for one in before}))


def _values(name: str, entry: Mapping[str, Any]) -> Dimension:
    if "value" in entry:
        value = _plain(entry["value"], "a value")
        return Dimension(name=name, kind="constant", choices=(value,), flag=entry.get("type") == "flag")
    if entry.get("type") == "flag":
        return Dimension(name=name, kind="categorical", choices=(False, True), flag=True)
    if "choices" in entry or "values" in entry:
        choices = entry.get("choices", entry.get("values"))
        if not isinstance(choices, list) or not choices:
            raise ValueError("choices must be a list with something in it.")
        return Dimension(name=name, kind="categorical", choices=tuple(_plain(one, "choices") for one in choices))
    return _interval(name, entry)


def _condition(when: Any, before: Mapping[str, Dimension]) -> dict[str, tuple[Any, ...]]:
    if not isinstance(when, Mapping):
        raise ValueError(f"when must be the values of other parameters, such as {{optim: sgd}}, not {when!r}.")
    found = {name: tuple(values) if isinstance(values, list) else (values,) for name, values in when.items()}
    for name, values in found.items():
        if name not in before:
            raise ValueError(f"when has {name!r}, which is no parameter above it.{did_you_mean(name, before)}")
        choices = before[name].choices
        for value in values:
            if choices and value not in choices:
                raise ValueError(f"when has {name}: {value!r}, and {name} never is.{did_you_mean(value, choices)}")
    return found


def _interval(name: str, entry: Mapping[str, Any]) -> Dimension:
    low, high = (_number(entry, *keys) for keys in (("low", "min"), ("high", "max")))
    step = _number(entry, "step") if entry.get("step") is not None else None
    whole = all(isinstance(one, int) for one in (low, high, 1 if step is None else step))
    kind = entry.get("type", "int" if whole else "float")
    log = entry.get("log", False)
    if kind not in _KINDS:
        raise ValueError(f"type {kind!r} is not known.{did_you_mean(kind, _KINDS)} Choose from: {', '.join(_KINDS)}.")
    if not isinstance(log, bool):
        raise ValueError(f"log must be true or false, not {log!r}.")
    if kind == "int" and not whole:
        raise ValueError(f"an int goes from a whole number to a whole number, not from {low} to {high}.")
    if low > high:
        raise ValueError(f"low ({low}) is above high ({high}).")
    if log and low <= 0:
        raise ValueError(f"with log, low must be above 0, and is {low}.")
    if step is not None and step <= 0:
        raise ValueError(f"step must be above 0, and is {step}.")
    if log and step is not None:
        raise ValueError("log and step do not go together.")
    return Dimension(name=name, kind=kind, low=low, high=high, log=log, step=step)


def _number(entry: Mapping[str, Any], *keys: str) -> float:
    given = next((entry[key] for key in keys if key in entry), None)
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        missing = f"{keys[0]} is missing: give low and high, or choices" if given is None else f"{keys[0]} is {given!r}"
        raise ValueError(f"{missing}. It must be a number.")
    return _plain(given, keys[0])


def _plain(value: Any, what: str) -> Any:
    """A value that optuna can keep and a script can be given."""
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError(f"{what} must be numbers, texts, true, false or null, not {value!r:.60}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{what} must be finite, and {value} is not.")
    return value
