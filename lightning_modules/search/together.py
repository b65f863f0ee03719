"""`study.optimize` for several processes that train each trial together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .channel import Channel, OtherProcessError, Outcome, SharedTrial

Objective = Callable[[Any], Any]
FAILURE = "lightrainer:failure"
"""The attribute of a trial that says why it failed."""


class _CaughtElsewhereError(Exception):
    """A failure in another process, of a kind that the search goes on after."""


def optimize_together(
    study: Any,
    objective: Objective,
    n_trials: int | None = None,
    timeout: float | None = None,
    *,
    catch: Iterable[type[Exception]] | type[Exception] = (),
    channel: Channel | None = None,
    result: Callable[[Any], Any] | None = None,
    completed: Callable[[], None] | None = None,
    **options: Any,
) -> Any:
    """As `optuna.Study.optimize`, but in every process of a process group, with one study, in the first process.

        study = optuna.create_study() if rank == 0 else None
        best = optimize_together(study, objective, n_trials=20, result=lambda study: study.best_params)

    All processes call it, and `objective` is called in all of them, with the same trial: the same parameters, and the
    same answer of `should_prune()`. All of them stop together, be it after the last trial, when the time is up, or for
    an error. In one process it is `study.optimize`.

    Args:
        study: the study, None in all processes but the first.
        objective: takes the trial; what it returns in the first process is told to the study.
        n_trials: how many trials; None for as many as the time allows.
        timeout: seconds after which no trial begins any more, by the clock of the first process.
        catch: exceptions after which the search goes on; the same everywhere.
        channel: what the processes talk over; by default one that is made for this.
        result: takes the study, in the first process, when all is done.
        completed: called in every process after each trial that came to its end in all of them.
        options: more of `optuna.Study.optimize`.

    Returns:
        What `result` returned in the first process, in every process.

    Raises:
        Exception: what a trial raised; in processes in which nothing was wrong, an `OtherProcessError` that says so.
    """
    caught = tuple(catch) if isinstance(catch, Iterable) else (catch,)
    own, channel = channel is None, channel or Channel()
    shared = _Together(objective, channel, caught, completed)
    try:
        if channel.is_first:
            return _lead(study, shared, result, n_trials=n_trials, timeout=timeout, **options)
        return _follow(shared)
    finally:
        if own:
            channel.close()


def _lead(study: Any, shared: _Together, result: Callable[[Any], Any] | None, **options: Any) -> Any:
    channel, caught = shared.channel, shared.caught
    try:
        if channel.alone:
            study.optimize(shared.alone, catch=caught, **options)
        else:
            study.optimize(shared.lead, catch=(*caught, _CaughtElsewhereError), **options)
        found = None if result is None else result(study)
    except Exception as error:
        channel.tell(("stop", f"{type(error).__name__}: {error}"))
        raise
    channel.tell(("end", found))
    return found


def _follow(shared: _Together) -> Any:
    while True:
        what, about = shared.channel.tell()
        if what == "end":
            return about
        if what == "stop":
            # The reason that this process has itself is the better one.
            raise shared.error or OtherProcessError(f"The search was stopped by process 0: {about}")
        shared.follow()


class _Together:
    """One trial after the other, in the same way in every process."""

    def __init__(
        self,
        objective: Objective,
        channel: Channel,
        caught: tuple[type[Exception], ...],
        completed: Callable[[], None] | None,
    ) -> None:
        self.objective = objective
        self.channel = channel
        self.caught = caught
        self.completed = completed or _nothing
        self.error: Exception | None = None

    def alone(self, trial: Any) -> Any:
        """Return the trial where there is no other process."""
        value = self.objective(trial)
        self.completed()
        return value

    def lead(self, trial: Any) -> Any:
        """Return the trial in the first process."""
        self.channel.tell(("trial", None))
        value, own = self._run(SharedTrial(trial, self.channel))
        others = self.channel.outcomes(own)
        if self.error is not None:
            raise self.error
        failed = [one for one in others if one.kind == "failed"]
        if failed:
            trial.set_user_attr(FAILURE, failed[0].said)
            kind = _CaughtElsewhereError if all(one.caught for one in failed) else OtherProcessError
            raise kind(f"The trial failed in another process: {failed[0].said}")
        if any(one.kind == "pruned" for one in others):
            raise _pruned()()
        self.completed()
        return value

    def follow(self) -> None:
        """Run the trial in another process."""
        _, own = self._run(SharedTrial(None, self.channel))
        if all(one.kind == "done" for one in self.channel.outcomes(own)):
            self.completed()

    def _run(self, trial: SharedTrial) -> tuple[Any, Outcome]:
        self.error = None
        try:
            return self.objective(trial), Outcome("done")
        except _pruned() as error:
            self.error = error
            return None, Outcome("pruned")
        except Exception as error:
            self.error = error
            said = f"{type(error).__name__}: {error}"
            return None, Outcome("failed", isinstance(error, self.caught), said)


def _pruned() -> type[Exception]:
    import optuna

    return optuna.TrialPruned


def _nothing() -> None:
    return None
