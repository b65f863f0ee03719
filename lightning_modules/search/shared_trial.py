"""A trial that several processes train together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .channel import Channel


class SharedTrial:
    """As `optuna.Trial`, for the same trial in several processes: the first one asks the study, the others hear it.

    All of them have to call `suggest_...`, `report` and `should_prune` in the same order, as the same script does by
    itself. `study` is there in the first process only.

    Args:
        trial: the trial, None in all processes but the first.
        channel: what the processes talk over.
    """

    def __init__(self, trial: Any, channel: Channel) -> None:
        self._trial = trial
        self._channel = channel
        about = None if trial is None else (trial.number, trial.datetime_start, trial.params, trial.user_attrs)
        self.number, self.datetime_start, self.params, self.user_attrs = channel.tell(about)

    def __getattr__(self, name: str) -> Any:
        trial = self.__dict__.get("_trial")
        if trial is None or name.startswith("__"):
            raise AttributeError(f"a trial in another process than the first one has no attribute {name!r}")
        return getattr(trial, name)

    def __reduce__(self) -> Any:
        raise TypeError("a trial that is shared by processes cannot be pickled")

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """As `optuna.Trial.suggest_float`."""
        return self._suggested(name, "suggest_float", low, high, step=step, log=log)

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """As `optuna.Trial.suggest_int`."""
        return self._suggested(name, "suggest_int", low, high, step=step, log=log)

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """As `optuna.Trial.suggest_categorical`."""
        return self._suggested(name, "suggest_categorical", choices)

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        """As `optuna.Trial.suggest_uniform`."""
        return self._suggested(name, "suggest_float", low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        """As `optuna.Trial.suggest_loguniform`."""
        return self._suggested(name, "suggest_float", low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        """As `optuna.Trial.suggest_discrete_uniform`."""
        return self._suggested(name, "suggest_float", low, high, step=q)

    def report(self, value: float, step: int) -> None:
        """As `optuna.Trial.report`; the value of the first process counts."""
        self._channel.share(lambda: self._trial.report(value, step))

    def should_prune(self) -> bool:
        """As `optuna.Trial.should_prune`: the same answer in every process."""
        return self._channel.share(lambda: bool(self._trial.should_prune()))

    def set_user_attr(self, key: str, value: Any) -> None:
        """As `optuna.Trial.set_user_attr`."""
        self._channel.share(lambda: self._trial.set_user_attr(key, value))
        self.user_attrs = {**self.user_attrs, key: value}

    def _suggested(self, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        value = self._channel.share(lambda: getattr(self._trial, method)(name, *args, **kwargs))
        self.params = {**self.params, name: value}
        return value
