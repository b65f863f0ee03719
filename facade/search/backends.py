"""Who runs a search: an object for each name."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import Any, ClassVar

from ...lightning_modules.names import did_you_mean
from ...lightning_modules.search.channel import Channel
from ...lightning_modules.search.together import optimize_together
from ..enums import HPSearchBackend
from ..helpers.hyperparameters import BestRun, default_hp_space_optuna
from . import retries
from .options import SearchOptions, exceptions, split_keywords
from .search import Search
from .studies import best_runs, make_study

logger = logging.getLogger(__name__)

_REFUSED = {
    "wandb": "a sweep of W&B is led by its server, which chooses the values. To see the trials there, leave backend "
    "out and set report_to='wandb': each trial is a run of its own",
    "sigopt": "the service was shut down, and later versions of the reference dropped it too. Leave backend out",
}


class Backend:
    """As `transformers.hyperparameter_search.HyperParamSearchBackendBase`: one way to run a search."""

    name: ClassVar[HPSearchBackend]
    package: ClassVar[str]
    """What to install."""
    default_hp_space: Callable[[Any], Any]

    @classmethod
    def ensure_available(cls) -> None:
        """Say what to install where the library is missing.

        Raises:
            RuntimeError: it is (also an ImportError).
        """
        if importlib.util.find_spec(cls.name.value) is None:
            raise MissingBackendError(
                f"backend={cls.name.value!r} needs a library that is not installed: pip install {cls.package}"
            )

    def check(self, trainer: Any, options: SearchOptions) -> None:
        """Refuse options that cannot be, before anything is made."""
        raise NotImplementedError

    def run(self, trainer: Any, search: Search) -> BestRun | list[BestRun]:
        """Run all trials."""
        raise NotImplementedError


class MissingBackendError(RuntimeError, ImportError):
    """The library of a backend is missing: a RuntimeError in the reference, an ImportError for everybody else."""


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
        from .workers import check_jobs

        check_jobs(self._jobs, trainer)

    def run(self, trainer: Any, search: Search) -> BestRun | list[BestRun]:
        """See `Backend.run`; every process gets the result."""
        channel = Channel(seconds=float(trainer.args.ddp_timeout))
        try:
            study = _InOneProcess(channel, lambda: make_study(search.options.directions, self._of_study)).value
            trainer.study = study
            if study is not None:
                retries.give_up_dead(study)
            if self._jobs != 1:
                from .workers import optimize_in_workers

                return optimize_in_workers(
                    trainer, search, study, self._jobs, **self._numbers(search), **self._of_optimization
                )
            objective = OptunaObjective(search, study, channel)
            options = {**self._numbers(search), **self._of_optimization, "completed": search.completed}
            return optimize_together(study, objective, channel=channel, result=best_runs, **options)
        finally:
            channel.close()

    @staticmethod
    def _numbers(search: Search) -> dict[str, Any]:
        return {"n_trials": search.options.n_trials}


class _InOneProcess:
    """What only the first process makes, an error in which all of them hear of."""

    def __init__(self, channel: Channel, make: Callable[[], Any]) -> None:
        self.value: Any = None
        self._make = make
        channel.share(self._fill)

    def _fill(self) -> None:
        self.value = self._make()


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
            return self.search.run(trial, continued)
        except (KeyboardInterrupt, SystemExit) as interruption:
            if self.study is not None and retries.is_persistent(self.study):
                # Whoever goes on with the study takes it up again. That it failed, optuna says of the first by itself.
                by_optuna = isinstance(interruption, KeyboardInterrupt) and self.channel.alone
                (retries.queue_again if by_optuna else retries.give_up)(self.study, trial.number)
            raise

    def _continuation(self, trial: Any) -> retries.Continuation | None:
        retries.take_on(self.study, getattr(trial, "_trial", trial))
        origin = retries.origin_of(self.study, trial)
        if origin == trial.number or not self.search.options.resume_trials:
            return None
        folder = self.search.run_dir(_Named(trial, origin))
        return retries.continuation(self.study, trial, folder, origin)


class _Named:
    """A trial under another number."""

    def __init__(self, trial: Any, number: int) -> None:
        self._trial, self.number = trial, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_trial"], name)


def choose_backend(name: Any) -> Backend:
    """The backend of a name; optuna without one.

    Raises:
        ValueError: nobody knows it.
        NotImplementedError: it is known and refused; says why.
        RuntimeError: its library is not installed.
    """
    from .ray_tune import RayBackend

    own: dict[str, type[Backend]] = {"optuna": OptunaBackend, "ray": RayBackend}
    word = "optuna" if name is None else str(getattr(name, "value", name))
    if word in _REFUSED:
        raise NotImplementedError(f"backend={word!r} is not supported: {_REFUSED[word]}.")
    if word not in own:
        raise ValueError(f"backend={name!r} is not known.{did_you_mean(word, own)} Choose from: {', '.join(own)}.")
    own[word].ensure_available()
    return own[word]()
