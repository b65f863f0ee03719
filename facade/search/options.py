"""What `hyperparameter_search` takes besides its documented parameters, sorted and checked before anything is made."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...lightning_modules.common.suggestions import did_you_mean
from .objective import directions_of

_OWN = ("final_model", "remove_pruned", "resume_trials", "report", "pruning_unit")
_FINAL = ("best", "retrain", "last")
_DIRECTIONS = ("minimize", "maximize")
_UNITS = ("steps", "epochs")


@dataclass(kw_only=True)
class SearchOptions:
    """What goes for every backend, and the rest as the backend takes it."""

    n_trials: int | None
    """Trials to begin; None for as many as `timeout` allows."""
    directions: list[str]
    """`minimize` or `maximize`, one for each objective."""
    metrics: list[str] = field(default_factory=list)
    """The metric of each objective, where they have names."""
    implied: bool = False
    """Whether the user said nothing of the direction."""
    final_model: Literal["best", "retrain", "last"] = "best"
    """What the Trainer holds afterwards: the model of the best trial, one that is trained once more with its values, or
    that of the last trial."""
    remove_pruned: bool = False
    """Whether the folder of a pruned trial is removed."""
    resume_trials: bool = True
    """Whether the retry of a trial that was interrupted goes on from its newest checkpoint."""
    pruning_unit: Literal["steps", "epochs"] = "steps"
    """What evaluations are reported under to the pruner: optimizer steps, or completed epochs."""
    report: bool | str = False
    """Write a report to `output_dir/search`, or to the folder that is named."""
    backend: dict[str, Any] = field(default_factory=dict)
    """Everything else."""

    @property
    def several(self) -> bool:
        """Whether there are several objectives."""
        return len(self.directions) > 1

    @property
    def goal(self) -> str:
        """What is done with what, such as `maximize accuracy`."""
        names = self.metrics or ["the objective"] * len(self.directions)
        return ", ".join(f"{word} {name}" for word, name in zip(self.directions, names, strict=True))


def read_options(n_trials: Any, direction: Any, given: dict[str, Any], metrics: Sequence[str] = ()) -> SearchOptions:
    """Sort the keywords.

    Args:
        n_trials: see `hyperparameter_search`.
        direction: one word, or a list of them; None for that of the metrics, or else `minimize`.
        given: the other keywords.
        metrics: the names of the objectives, where they have any.

    Raises:
        ValueError, TypeError: what cannot be; all of it in one message.
    """
    own = {name: given[name] for name in _OWN if name in given}
    rest = {name: value for name, value in given.items() if name not in own}
    implied = direction is None
    if implied:
        direction = directions_of(metrics, "direction", "compute_objective") if metrics else "minimize"
    several = isinstance(direction, (list, tuple))
    directions = [getattr(word, "name", word) for word in (direction if several else [direction])]
    directions = [word.lower() if isinstance(word, str) else word for word in directions]
    said = [*_number_problems(n_trials, rest), *_direction_problems(directions, rest), *_own_problems(own)]
    if metrics and directions and len(metrics) != len(directions):
        said.append(
            f"compute_objective names {len(metrics)} metrics, and direction has {len(directions)}: pass as many."
        )
    said += _type_problems(rest)
    if said:
        raise ValueError("\n".join(said))
    return SearchOptions(
        n_trials=n_trials, directions=directions, metrics=list(metrics), implied=implied, backend=rest, **own
    )


def _number_problems(n_trials: Any, rest: dict[str, Any]) -> list[str]:
    if n_trials is None:
        no_end = rest.get("timeout") is None
        return ["n_trials is None and there is no timeout, so the search would never end. Pass one."] if no_end else []
    whole = isinstance(n_trials, int) and not isinstance(n_trials, bool)
    return [] if whole and n_trials >= 1 else [f"n_trials={n_trials!r} must be a whole number of at least 1."]


def _direction_problems(directions: list[Any], rest: dict[str, Any]) -> list[str]:
    if "directions" in rest:
        return ["directions is not taken: pass direction=[...] with one word for each objective."]
    if not directions:
        return ["direction is an empty list: pass one word for each objective."]
    return [
        f"direction={word!r} is not known.{did_you_mean(word, _DIRECTIONS)} Choose from: {', '.join(_DIRECTIONS)}."
        for word in directions
        if word not in _DIRECTIONS
    ]


def _type_problems(rest: dict[str, Any]) -> list[str]:
    timeout, storage = rest.get("timeout"), rest.get("storage")
    said = []
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is not None and not (number and timeout >= 0):
        said.append(f"timeout={timeout!r} must be a number of seconds, or None.")
    if isinstance(storage, (int, float, bytes, Collection)) and not isinstance(storage, str):
        said.append(
            f"storage={storage!r:.60} must be a URL such as 'sqlite:///study.db', a storage of optuna, or None."
        )
    return said


def check_functions(hp_space: Any, hp_name: Any) -> None:
    """Look at the functions of a trial before one is begun.

    Raises:
        TypeError: something else stands in their place.
    """
    example = "{'learning_rate': trial.suggest_float('learning_rate', 1e-6, 1e-3)}"
    if hp_space is not None and not callable(hp_space):
        raise TypeError(
            f"hp_space={hp_space!r:.60} must be a function that takes a trial and returns a dict of values, such as "
            f"lambda trial: {example}."
        )
    if hp_name is not None and not callable(hp_name):
        raise TypeError(f"hp_name={hp_name!r:.60} must be a function that takes a trial and returns its name.")


def _own_problems(own: dict[str, Any]) -> list[str]:
    final = own.get("final_model", "best")
    said = []
    if final not in _FINAL:
        near = did_you_mean(final, _FINAL)
        said.append(f"final_model={final!r} is not known.{near} Choose from: {', '.join(_FINAL)}.")
    unit = own.get("pruning_unit", "steps")
    if unit not in _UNITS:
        said.append(
            f"pruning_unit={unit!r} is not known.{did_you_mean(unit, _UNITS)} Choose from: {', '.join(_UNITS)}."
        )
    report = own.get("report", False)
    if not isinstance(report, (bool, str, os.PathLike)):
        said.append(f"report={report!r} must be True, False, or a folder.")
    elif not isinstance(report, bool) and os.path.exists(report) and not os.path.isdir(report):
        said.append(f"report={os.fspath(report)!r} is a file. Pass a folder.")
    for name in ("remove_pruned", "resume_trials"):
        if not isinstance(own.get(name, True), bool):
            said.append(f"{name}={own[name]!r} must be True or False.")
    return said


def split_keywords(given: dict[str, Any], *functions: Callable[..., Any]) -> list[dict[str, Any]]:
    """Which keywords are meant for which of some functions.

    Raises:
        TypeError: names those that none of them takes.
    """
    parameters = [inspect.signature(function).parameters.values() for function in functions]
    taken = [{one.name for one in found if one.kind is not one.VAR_KEYWORD} for found in parameters]
    takes_any = [any(one.kind is one.VAR_KEYWORD for one in found) for found in parameters]
    unknown = [name for name in given if not any(name in names for names in taken)]
    if unknown and not any(takes_any):
        known = sorted(set().union(*taken) - {"self", "func", "direction", "directions", "n_trials"})
        known += _OWN
        said = [f"{name}={given[name]!r:.60}.{did_you_mean(name, known)}" for name in unknown]
        raise TypeError(
            f"hyperparameter_search does not know {' '.join(said)} It takes, besides the parameters of its own: "
            f"{', '.join(known)}."
        )
    # A function that somebody has wrapped may take any: it gets what no other does.
    return [
        {name: value for name, value in given.items() if name in names or (takes and name in unknown)}
        for names, takes in zip(taken, takes_any, strict=True)
    ]


def exceptions(catch: Any) -> tuple[type[Exception], ...]:
    """`catch` as a tuple.

    Raises:
        TypeError: something in it is no exception.
    """
    found = tuple(catch) if isinstance(catch, Iterable) else (catch,)
    if not all(isinstance(one, type) and issubclass(one, Exception) for one in found):
        raise TypeError(f"catch={catch!r} must be an exception class, or a tuple of them.")
    return found
