"""What optuna calls for each trial."""

from __future__ import annotations

from typing import Any

from ...lightning_modules.search.channel import Channel
from . import retries
from .search import Search


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
        return retries.continuation(self.study, trial, folder, origin, self.search.options.pruning_unit)


class _Named:
    """A trial under another number."""

    def __init__(self, trial: Any, number: int) -> None:
        self._trial, self.number = trial, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_trial"], name)
