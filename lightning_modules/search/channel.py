"""How the processes of a search talk about it, apart from what their trainings say; and the trial that they share."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from ..distributed.health.failure_monitor import OtherProcessError

Result = TypeVar("Result")


class Outcome(NamedTuple):
    """How a trial ended in one process."""

    kind: str
    """`done`, `pruned` or `failed`."""
    caught: bool = False
    """Whether the search goes on after this failure."""
    said: str = ""
    """What failed."""


class Channel:
    """A process group of its own, over gloo: what is said here cannot be mixed up with gradients.

    In one process it does nothing. All processes have to make it, at the same point.

    Args:
        seconds: how long a process waits for the others; as long as one trial may take longer in one than in another.
        seconds_to_fail: how long a process in which a trial has failed waits for the others to say the same.
    """

    def __init__(self, seconds: float = 1800, seconds_to_fail: float = 60) -> None:
        self.alone = not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1
        self.is_first = self.alone or dist.get_rank() == 0
        self._wait, self._wait_to_fail = timedelta(seconds=seconds), timedelta(seconds=seconds_to_fail)
        self._met = 0
        self._group: Any = None if self.alone else dist.new_group(backend="gloo", timeout=self._wait)
        if not self.alone:
            # Outcomes are left here: whoever waits in vain for another can then still end, which is not so in an
            # exchange over the group.
            from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

            number = self.tell(uuid.uuid4().hex)
            self._board = PrefixStore(f"lightrainer/{number}", _get_default_store())

    def close(self) -> None:
        """Give the group back."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def tell(self, message: Any = None) -> Any:
        """Return what the first process has to say, in every process."""
        if self.alone:
            return message
        box = [message]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def share(self, make: Callable[[], Result]) -> Result:
        """Return what `make` gives in the first process, in every process; it is called nowhere else.

        Raises:
            OtherProcessError: `make` has raised, and this is another process; the first raises what it was.
        """
        if self.alone:
            return make()
        if not self.is_first:
            answer, said = self.tell()
            if said is not None:
                raise OtherProcessError(f"In process 0: {said}")
            return answer
        try:
            made = make()
        except Exception as error:
            self.tell((None, f"{type(error).__name__}: {error}"))
            raise
        self.tell((made, None))
        return made

    def outcomes(self, own: Outcome) -> list[Outcome]:
        """Return how a trial ended in each process; all have to call it.

        Raises:
            RuntimeError: this process has failed, and the others have not come to the end of the trial in time: they
                wait for it somewhere in the training, so that only the end of all processes helps.
        """
        if self.alone:
            return [own]
        self._met += 1
        keys = [f"{self._met}/{rank}" for rank in range(dist.get_world_size())]
        self._board.set(keys[dist.get_rank()], json.dumps(own))
        try:
            self._board.wait(keys, self._wait_to_fail if own.kind == "failed" else self._wait)
        except RuntimeError as error:
            if own.kind != "failed":
                raise
            raise RuntimeError(
                f"The trial failed in process {dist.get_rank()} and not in the others, which are still training: "
                f"{own.said}. The search cannot go on."
            ) from error
        return [Outcome(*json.loads(self._board.get(key))) for key in keys]


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
