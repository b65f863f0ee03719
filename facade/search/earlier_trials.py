"""Trials that a study begins with: given values, and the trials of an earlier study."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...lightning_modules.common.suggestions import did_you_mean
from .metric_objective import directions_of
from .storages import open_storage, without_password

if TYPE_CHECKING:
    from optuna import Study, Trial

ORIGIN = "lightrainer:origin"
"""User attribute of a trial from an earlier study: the name of that study, and its number there."""


def load_earlier(address: str) -> Study:
    """Load a study whose trials are added to a new one.

    Args:
        address: a storage, followed by `#name` if it holds several studies, or the folder of a
            sweep.

    Raises:
        FileNotFoundError: the file does not exist.
        StorageError: the storage cannot be reached.
        ValueError: the storage has no such study, or several and none is named.
    """
    import optuna

    storage_address, _, name = address.partition("#")
    if os.path.isdir(storage_address):
        storage_address = f"sqlite:///{os.path.join(storage_address, 'study.db')}"

    # Opening a missing file would create it.
    path = storage_address.removeprefix("sqlite:///").removeprefix("journal://")
    if "://" not in path and not os.path.isfile(path):
        raise FileNotFoundError(f"begin_with={storage_address}: the file {path} does not exist.")

    # The name may be left out if there is only one study.
    storage = open_storage(storage_address)
    names = optuna.get_all_study_names(storage)
    if not name and len(names) == 1:
        name = names[0]
    if name not in names:
        raise ValueError(
            f"begin_with={without_password(storage_address)}#{name}: name one of its studies: "
            f"{', '.join(names) or 'none'}."
        )
    return optuna.load_study(study_name=name, storage=storage)


def require_same_objectives(
    study: Study, where: str, directions: Sequence[str], metrics: Sequence[str]
) -> None:
    """Refuse a study whose values cannot be compared with those of a search.

    Args:
        study: the study.
        where: the origin of the study, for the message.
        directions: the directions of the search.
        metrics: the metrics of the search; empty if the objectives have no names.

    Raises:
        ValueError: the study has other directions or metrics.
    """
    study_directions = directions_of(study)
    study_metrics = study.metric_names or []

    # Objectives without names are compared by their directions alone.
    same_metrics = not study_metrics or not metrics
    if not same_metrics:
        same_metrics = _short_names(study_metrics) == _short_names(metrics)
    if study_directions == list(directions) and same_metrics:
        return
    raise ValueError(
        f"{where}: the study {study.study_name!r} has direction={study_directions} and metrics "
        f"{', '.join(study_metrics) or 'without names'}, but this search has "
        f"direction={list(directions)} and metrics {', '.join(metrics) or 'without names'}. "
        "Search for the same metrics in the same directions, or use another study."
    )


def _short_names(metrics: Sequence[str]) -> list[str]:
    """Return names without `eval_`, so that `loss` and `eval_loss` are the same."""
    return [metric.removeprefix("eval_") for metric in metrics]


def add_earlier_trials(
    study: Study, earlier: Study, hp_space: Callable[[Any], object]
) -> tuple[int, int]:
    """Add the completed and the pruned trials of an earlier study, each once.

    Args:
        study: the new study.
        earlier: the earlier study.
        hp_space: suggests the values of a trial. An earlier trial whose values the space cannot
            suggest is left out.

    Returns:
        the number of trials that were added, and of those that were left out.
    """
    from optuna.trial import TrialState, create_trial

    present = {trial.user_attrs.get(ORIGIN) for trial in study.get_trials(deepcopy=False)}
    finished = earlier.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    added = []
    left_out = 0
    for trial in finished:
        # A trial that the earlier study has from a study before it keeps its origin.
        origin = trial.user_attrs.get(ORIGIN, f"{earlier.study_name} {trial.number}")
        if origin in present:
            continue
        suggested = _suggest(hp_space, trial.params)
        if suggested is None or suggested.params != trial.params:
            left_out += 1
            continue
        present.add(origin)
        copied = create_trial(
            state=trial.state,
            values=trial.values,
            params=trial.params,
            distributions=suggested.distributions,
            user_attrs={**trial.user_attrs, ORIGIN: origin},
            intermediate_values=trial.intermediate_values,
        )
        added.append(copied)
    study.add_trials(added)
    return len(added), left_out


def check_enqueued(hp_space: Callable[[Any], object], points: Sequence[dict[str, Any]]) -> None:
    """Refuse queued values that the space does not suggest; optuna would ignore or accept them.

    Raises:
        ValueError: the message names the value.
    """
    for point in points:
        suggested = trial_with_values(hp_space, point).params
        for name in point.keys() - suggested.keys():
            raise ValueError(
                f"enqueue has {name}={point[name]!r}, but the space does not suggest "
                f"{name!r}.{did_you_mean(name, suggested)}"
            )


def trial_with_values(hp_space: Callable[[Any], object], values: dict[str, Any]) -> Trial:
    """Return a trial to which a space has suggested given values.

    Args:
        hp_space: suggests the values of a trial.
        values: by name; the space samples those that are missing.

    Raises:
        ValueError: a value is not in the space.
    """
    import optuna

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    study.enqueue_trial(values)
    trial = study.ask()

    # Optuna warns of a value out of range, for which `create_trial` raises below.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        hp_space(trial)
    optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, value=0.0)
    return trial


def _suggest(hp_space: Callable[[Any], object], values: dict[str, Any]) -> Trial | None:
    """Return the trial of `trial_with_values`, or None if a value is not in the space."""
    try:
        return trial_with_values(hp_space, values)
    except ValueError:
        return None
