"""A search with optuna, in one process or in several."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...lightning_modules.search.channel import Channel
from ...lightning_modules.search.together import optimize_together
from ..arguments.enums import HPSearchBackend
from . import retries
from .backend import Backend
from .hyperparameters import BestRun, default_hp_space_optuna
from .options import SearchOptions, exceptions, split_keywords
from .search import Search
from .studies import OptunaObjective, best_runs, make_study
from .workers import check_jobs, optimize_in_workers


class OptunaBackend(Backend):
    """A study of optuna. In several processes the first one has it, and the others train along."""

    name = HPSearchBackend.OPTUNA
    package = "optuna"
    default_hp_space = staticmethod(default_hp_space_optuna)

    def check(self, trainer: Any, options: SearchOptions) -> None:
        """Sort the keywords between study and optimization.

        Raises:
            TypeError: a keyword that neither takes.
            ValueError: `n_jobs` that cannot be.
        """
        import optuna

        kinds = split_keywords(options.backend, optuna.create_study, optuna.study.Study.optimize)
        self._of_study, self._of_optimization = kinds
        self._of_optimization["catch"] = exceptions(self._of_optimization.get("catch", ()))
        self._jobs = self._of_optimization.pop("n_jobs", 1)
        check_jobs(self._jobs, trainer)

    def run(self, trainer: Any, search: Search) -> BestRun | list[BestRun]:
        """See `Backend.run`; every process gets the result."""
        from optuna.pruners import NopPruner

        channel = Channel(seconds=float(trainer.args.ddp_timeout))
        try:
            wanted = search.options
            make = functools.partial(make_study, wanted.directions, self._of_study, wanted.metrics)
            study = _InOneProcess(channel, make).value
            trainer.study = study
            if study is not None:
                retries.give_up_dead(study)
                search.pruner = None if isinstance(study.pruner, NopPruner) else study.pruner
            if self._jobs != 1:
                numbers = self._numbers(search)
                found = optimize_in_workers(trainer, search, study, self._jobs, **numbers, **self._of_optimization)
                search.learn_origins(retries.origins_of(study))
                return found
            objective = OptunaObjective(search, study, channel)
            options = {**self._numbers(search), **self._of_optimization, "completed": search.completed}
            found, origins = optimize_together(study, objective, channel=channel, result=_best_and_origins, **options)
            search.learn_origins(origins)
            return found
        finally:
            channel.close()

    @staticmethod
    def _numbers(search: Search) -> dict[str, Any]:
        return {"n_trials": search.options.n_trials}


def _best_and_origins(study: Any) -> tuple[BestRun | list[BestRun], dict[int, int]]:
    return best_runs(study), retries.origins_of(study)


class _InOneProcess:
    """What only the first process makes, an error in which all of them hear of."""

    def __init__(self, channel: Channel, make: Callable[[], Any]) -> None:
        self.value: Any = None
        self._make = make
        channel.share(self._fill)

    def _fill(self) -> None:
        self.value = self._make()
