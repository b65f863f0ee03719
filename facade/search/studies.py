"""The study of optuna: how it is made, what it calls for each trial, and what comes out of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...lightning_modules.search.channel import Channel
from . import retries
from .hyperparameters import BestRun
from .search import Search
from .storages import StorageError, open_storage, shown, without_experimental_warnings


def make_study(directions: list[str], given: dict[str, Any], metrics: Sequence[str] = ()) -> Any:
    """As `optuna.create_study`, with the storage opened by `open_storage`.

    Args:
        directions: one for each objective.
        given: its other keywords.
        metrics: the names of the objectives, which the study then has for optuna's plots and dashboard.

    Raises:
        StorageError: the storage cannot be reached.
        ValueError: the study in it has other metrics or directions.
        optuna.exceptions.DuplicatedStudyError: it is there already; says what to pass.
    """
    import optuna

    keywords = dict(given)
    for name, kind in (("sampler", optuna.samplers.BaseSampler), ("pruner", optuna.pruners.BasePruner)):
        _require(name, keywords.get(name), kind)
    address = keywords.get("storage")
    keywords["storage"] = open_storage(address)
    where = shown(str(address)) if isinstance(address, str) else "the storage"
    wanted = {"directions": directions} if len(directions) > 1 else {"direction": directions[0]}
    try:
        study = optuna.create_study(**wanted, **keywords)
    except optuna.exceptions.DuplicatedStudyError as error:
        name = keywords.get("study_name")
        raise optuna.exceptions.DuplicatedStudyError(
            f"There is a study {name!r} in {where} already. To go on with it, pass load_if_exists=True; for a new one, "
            "another study_name."
        ) from error
    except optuna.exceptions.StorageInternalError as error:
        raise StorageError(f"storage={where}: {error}") from error
    named = study.metric_names
    if metrics and named and [_short(name) for name in named] != [_short(name) for name in metrics]:
        raise ValueError(
            f"The study {study.study_name!r} in {where} has values of {', '.join(named)}, which cannot be compared "
            f"with {', '.join(metrics)}. Search for {', '.join(named)} again, or pass another study_name."
        )
    present = [one.name.lower() for one in study.directions]
    if present != directions:
        raise ValueError(
            f"The study {study.study_name!r} in {where} has direction={present}, and direction={directions} is asked "
            "for. Pass the same, or another study_name."
        )
    if metrics and named is None:
        with without_experimental_warnings():
            study.set_metric_names(list(metrics))
    return study


def _short(metric: str) -> str:
    """Return the name that `loss` and `eval_loss` have in common."""
    return metric.removeprefix("eval_")


def _require(name: str, value: Any, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        hint = f" Did you mean {value.__name__}(...)?" if isinstance(value, type) else ""
        raise TypeError(
            f"{name}={value!r:.60} must be an object of optuna.{name}s (a {kind.__name__[4:].lower()}).{hint}"
        )


class OptunaObjective:
    """What optuna calls for each trial, in every process.

    Args:
        search: the search.
        study: None in all processes but the first.
        channel: what the processes talk over.
    """

    def __init__(self, search: Search, study: Any, channel: Channel) -> None:
        self.search = search
        self.study = study
        self.channel = channel

    def __call__(self, trial: Any) -> float | list[float]:
        """Train once."""
        continued = self.channel.share(lambda: self._continuation(trial))
        try:
            value = self.search.run(trial, continued)
            if any(math.isnan(one) for one in (value if isinstance(value, list) else [value])):
                self._note_failure(trial, f"the objective is {value}")
            return value
        except Exception as error:
            if type(error).__name__ != "TrialPruned":
                self._note_failure(trial, f"{type(error).__name__}: {error}".strip().splitlines()[0])
            raise
        except (KeyboardInterrupt, SystemExit) as interruption:
            if self.study is not None and retries.is_persistent(self.study):
                # Whoever goes on with the study takes it up again. That it failed, optuna says of the first by itself.
                by_optuna = isinstance(interruption, KeyboardInterrupt) and self.channel.alone
                (retries.queue_again if by_optuna else retries.give_up)(self.study, trial.number)
            raise

    def _note_failure(self, trial: Any, why: str) -> None:
        if self.study is not None:
            getattr(trial, "_trial", trial).set_user_attr(retries.FAILURE, why)

    def _continuation(self, trial: Any) -> retries.Continuation | None:
        retries.take_on(self.study, getattr(trial, "_trial", trial))
        origin = retries.origin_of(self.study, trial)
        if origin == trial.number or not self.search.options.resume_trials:
            return None
        folder = self.search.run_dir(_Named(trial, origin))
        return retries.continuation(self.study, trial, folder, origin, self.search.options.pruning_unit)


class _Named:
    """A trial under another number."""

    def __init__(self, trial: Any, number: int) -> None:
        self._trial, self.number = trial, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_trial"], name)


def best_runs(study: Any) -> BestRun | list[BestRun]:
    """What `hyperparameter_search` returns: the best run, or all that none beats, where there are several objectives.

    Raises:
        ValueError: no trial was completed; says what became of them.
    """
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False)
    if not any(trial.state == TrialState.COMPLETE for trial in trials):
        raise ValueError(_none_completed(trials))
    if len(study.directions) > 1:
        return [BestRun(str(best.number), list(best.values), dict(best.params)) for best in study.best_trials]
    best = study.best_trial
    return BestRun(str(best.number), best.value, dict(best.params))


def _none_completed(trials: list[Any]) -> str:
    from optuna.trial import TrialState

    passed_on = retries.interrupted(trials)
    states = Counter(retries.state_of(trial, passed_on) for trial in trials)
    said = [f"{number} {state.lower()}" for state, number in states.items()]
    if not trials:
        return "No trial was completed, for none was begun: timeout was up before."
    why = ""
    if states[TrialState.FAIL.name]:
        why = retries.listed(retries.failures(trials))
    elif states[TrialState.PRUNED.name]:
        why = " Let the pruner prune less, e.g. with n_warmup_steps or n_startup_trials."
    return f"No trial was completed, so there is no best one: {', '.join(said)}.{why}"
