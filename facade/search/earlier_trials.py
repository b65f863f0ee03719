"""Trials of an earlier study, as a beginning of a new one: its sampler and pruner know them from
the start.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from .storages import open_storage, shown

ORIGIN = "lightrainer:origin"
"""Attribute of a trial that was not run in this study: name of its study, and number there."""


def load_earlier(address: str) -> Any:
    """Load a study to begin with.

    Args:
        address: a storage, and `#name` where there are several studies in it, or the folder of a
            sweep.

    Raises:
        FileNotFoundError: there is no such file.
        StorageError: the storage cannot be reached.
        ValueError: it has no such study, or several and none is named.
    """
    import optuna

    place, _, name = address.partition("#")
    if os.path.isdir(place):
        place = f"sqlite:///{os.path.join(place, 'study.db')}"
    path = place.removeprefix("sqlite:///").removeprefix("journal://")
    if "://" not in path and not os.path.isfile(path):  # opening it would make it
        raise FileNotFoundError(f"begin_with={place}: there is no file {path}.")
    storage = open_storage(place)
    names = optuna.get_all_study_names(storage)
    if (name or len(names) != 1) and name not in names:
        raise ValueError(
            f"begin_with={shown(place)}#{name}: name one of its studies: "
            f"{', '.join(names) or 'none'}."
        )
    return optuna.load_study(study_name=name or names[0], storage=storage)


def require_comparable(earlier: Any, directions: Sequence[str], metrics: Sequence[str]) -> None:
    """Refuse a study whose values cannot be compared with those of a new one.

    Raises:
        TypeError: it is no study.
        ValueError: it has other directions or metrics.
    """
    import optuna

    if not isinstance(earlier, optuna.Study):
        raise TypeError(
            f"begin_with={earlier!r:.60} must be a study: optuna.load_study(study_name=..., "
            "storage=...)."
        )
    theirs = [one.name.lower() for one in earlier.directions]
    named = [short_name(name) for name in earlier.metric_names or metrics]
    if theirs != list(directions) or named != [short_name(name) for name in metrics or named]:
        has = (
            f"begin_with: the study {earlier.study_name!r} has direction={theirs} and "
            f"{', '.join(named)}"
        )
        raise ValueError(
            f"{has}, and this search {list(directions)} and {', '.join(metrics)}. Search for the "
            "same."
        )


def begin_with(study: Any, earlier: Any, hp_space: Callable[[Any], Any]) -> tuple[int, int]:
    """Add the completed and the pruned trials of an earlier study, each once.

    Args:
        study: gets them.
        earlier: the study that has them.
        hp_space: suggests the values of a trial. One that could not have those of an earlier trial
            leaves it out.

    Returns:
        the number of trials added, and of those left out.
    """
    from optuna.trial import TrialState

    known = {trial.user_attrs.get(ORIGIN) for trial in study.get_trials(deepcopy=False)}
    finished = earlier.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    origins = {
        one.user_attrs.get(ORIGIN, f"{earlier.study_name} {one.number}"): one for one in finished
    }
    added = [
        _retold(trial, hp_space, origin) for origin, trial in origins.items() if origin not in known
    ]
    study.add_trials([trial for trial in added if trial is not None])
    return len(added) - added.count(None), added.count(None)


def suggested(hp_space: Callable[[Any], Any], values: dict[str, Any]) -> Any:
    """Return a trial to which the space has suggested these values, and others where they leave
    some out.

    Raises:
        ValueError: a value is none of the space.
    """
    import optuna

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    study.enqueue_trial(values)
    trial = study.ask()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of values out of range, which raise below
        hp_space(trial)
    optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, value=0.0)
    return trial


def short_name(metric: str) -> str:
    """Return the name that `loss` and `eval_loss` have in common."""
    return metric.removeprefix("eval_")


def _retold(trial: Any, hp_space: Callable[[Any], Any], origin: str) -> Any:
    """Return a finished trial with the distributions of this space; None if the space has not
    all of its values.
    """
    import optuna

    try:
        told = suggested(hp_space, trial.params)
    except ValueError:
        return None
    if told.params != trial.params:
        return None
    return optuna.trial.create_trial(
        state=trial.state,
        values=trial.values,
        params=trial.params,
        distributions=told.distributions,
        user_attrs={**trial.user_attrs, ORIGIN: origin},
        intermediate_values=trial.intermediate_values,
    )
