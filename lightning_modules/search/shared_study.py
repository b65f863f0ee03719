"""Optuna's trials, optimization and pruning for several processes that train each trial
together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

from ..common.suggestions import did_you_mean
from ..internals.lightning_import import Callback
from .channel import FAILURE, Channel, OtherProcessError, Outcome
from .taken_trials import optimize_own, own_trial

Objective = Callable[[Any], Any]
_UNITS = ("steps", "epochs")


class SharedTrial:
    """As `optuna.Trial`, for the same trial in several processes: the first one asks the study.

    All of them have to call `suggest_...`, `report` and `should_prune` in the same order, as the
    same script does. `study` exists in the first process only.

    Args:
        trial: the trial, None in all processes but the first.
        channel: connects the processes.
    """

    def __init__(self, trial: Any, channel: Channel) -> None:
        self.in_study = trial
        self._channel = channel
        about = (
            None
            if trial is None
            else (trial.number, trial.datetime_start, trial.params, trial.user_attrs)
        )
        self.number, self.datetime_start, self.params, self.user_attrs = channel.broadcast(about)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("suggest_"):
            return functools.partial(self._suggest, name)
        trial = self.__dict__.get("in_study")
        if trial is None or name.startswith("__"):
            raise AttributeError(
                f"a trial in another process than the first one has no attribute {name!r}"
            )
        return getattr(trial, name)

    def __reduce__(self) -> Any:
        raise TypeError("a trial that is shared by processes cannot be pickled")

    def report(self, value: float, step: int) -> None:
        """As `optuna.Trial.report`; the value of the first process counts."""
        self._channel.run_on_first(lambda: self.in_study.report(value, step))

    def should_prune(self) -> bool:
        """As `optuna.Trial.should_prune`: the same answer in every process."""
        return self._channel.run_on_first(lambda: bool(self.in_study.should_prune()))

    def set_user_attr(self, key: str, value: Any) -> None:
        """As `optuna.Trial.set_user_attr`."""
        self._channel.run_on_first(lambda: self.in_study.set_user_attr(key, value))
        self.user_attrs = {**self.user_attrs, key: value}

    def _suggest(self, method: str, name: str, *args: Any, **kwargs: Any) -> Any:
        value = self._channel.run_on_first(
            lambda: getattr(self.in_study, method)(name, *args, **kwargs)
        )
        self.params = {**self.params, name: value}
        return value


class _CaughtElsewhereError(Exception):
    """A failure in another process, after which the search continues."""


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
    """As `optuna.Study.optimize`, but in every process of a process group, with one study, in the
    first process.

        study = optuna.create_study() if rank == 0 else None
        best = optimize_together(study, objective, n_trials=20, result=lambda study:
        study.best_params)

    All processes call it, and `objective` is called in all of them, with the same trial: the same
    parameters, and the same answer of `should_prune()`. They stop together, after the last trial,
    at the timeout, or after an error. In one process it is `study.optimize`.

    Args:
        study: the study, None in all processes but the first.
        objective: takes the trial; its value in the first process is that of the trial.
        n_trials: number of trials; None for as many as the time allows.
        timeout: seconds after which no trial begins, by the clock of the first process.
        catch: exceptions after which the search continues; the same everywhere.
        channel: connects the processes; by default a new one.
        result: takes the study, in the first process, after the last trial.
        completed: called in every process after each trial that was completed in all of them.
        options: more of `optuna.Study.optimize`.

    Returns:
        The result of `result` in the first process, in every process.

    Raises:
        Exception: the error of a trial; in processes without one, an `OtherProcessError`.
    """
    caught = tuple(catch) if isinstance(catch, Iterable) else (catch,)
    own = channel is None
    channel = channel or Channel()
    trials = _SharedTrials(objective, channel, caught, completed or (lambda: None))
    try:
        if channel.is_first:
            return _lead(study, trials, result, n_trials=n_trials, timeout=timeout, **options)
        return _follow(trials)
    finally:
        if own:
            channel.close()


def _lead(
    study: Any, trials: _SharedTrials, result: Callable[[Any], Any] | None, **options: Any
) -> Any:
    channel = trials.channel
    try:
        if channel.alone:
            optimize_own(study, trials.run_alone, catch=trials.caught, **options)
        else:
            optimize_own(
                study, trials.lead, catch=(*trials.caught, _CaughtElsewhereError), **options
            )
        found = None if result is None else result(study)
    except Exception as error:
        channel.broadcast(("stop", f"{type(error).__name__}: {error}"))
        raise
    channel.broadcast(("end", found))
    return found


def _follow(trials: _SharedTrials) -> Any:
    while True:
        what, about = trials.channel.broadcast()
        if what == "end":
            return about
        if what == "stop":
            raise trials.error or OtherProcessError(f"The search was stopped by process 0: {about}")
        trials.follow()


class _SharedTrials:
    """Runs one trial after the other, in every process."""

    def __init__(
        self,
        objective: Objective,
        channel: Channel,
        caught: tuple[type[Exception], ...],
        completed: Callable[[], None],
    ) -> None:
        self.objective = objective
        self.channel = channel
        self.caught = caught
        self.completed = completed
        self.error: Exception | None = None

    def run_alone(self, trial: Any) -> Any:
        """Run the trial in the only process."""
        with own_trial(trial):
            value = self.objective(trial)
        self.completed()
        return value

    def lead(self, trial: Any) -> Any:
        """Run the trial in the first process."""
        import optuna

        self.channel.broadcast(("trial", None))
        with own_trial(trial):
            value, own = self._run(SharedTrial(trial, self.channel))
            outcomes = self.channel.gather_outcomes(own)
            if self.error is not None:
                raise self.error
            failed = [one for one in outcomes if one.kind == "failed"]
            if failed:
                trial.set_user_attr(FAILURE, failed[0].message)
                kind = (
                    _CaughtElsewhereError
                    if all(one.caught for one in failed)
                    else OtherProcessError
                )
                raise kind(f"The trial failed in another process: {failed[0].message}")
            if any(one.kind == "pruned" for one in outcomes):
                raise optuna.TrialPruned()
        self.completed()
        return value

    def follow(self) -> None:
        """Run the trial in another process."""
        _, own = self._run(SharedTrial(None, self.channel))
        if all(one.kind == "done" for one in self.channel.gather_outcomes(own)):
            self.completed()

    def _run(self, trial: SharedTrial) -> tuple[Any, Outcome]:
        import optuna

        self.error = None
        try:
            return self.objective(trial), Outcome("done")
        except optuna.TrialPruned as error:
            self.error = error
            return None, Outcome("pruned")
        except Exception as error:
            self.error = error
            return None, Outcome(
                "failed", isinstance(error, self.caught), f"{type(error).__name__}: {error}"
            )


class OptunaPruningCallback(Callback):
    """As `optuna.integration.PyTorchLightningPruningCallback`, but under DDP all processes stop
    together.

        def objective(trial):
            config = OptimizerConfig(learning_rate=trial.suggest_float("learning_rate", 1e-4, 1e-1,
            log=True)) trainer = lightning.Trainer(callbacks=[OptunaPruningCallback(trial,
            "val_loss")]) trainer.fit(LossModule(model, optimizer=config), loader, held_out)
            return trainer.callback_metrics["val_loss"].item()

    After each validation the monitored value is reported to the trial, under the number of
    optimizer steps, or after the first one of each epoch under the number of the epoch. If the
    study's pruner says so, the training ends with `optuna.TrialPruned`, in every process.

    Args:
        trial: the trial; the other processes may have None, as only that of the first one is used.
        monitor: the name of the logged value.
        unit: `steps` or `epochs`, the unit of reports; steps of different batch sizes cannot be
            compared.

    Raises:
        optuna.TrialPruned: the trial is pruned.
        ValueError: no value of that name was logged; names those that there are. Also, on
            construction, for an unknown unit.
    """

    def __init__(
        self, trial: Any, monitor: str = "val_loss", *, unit: Literal["steps", "epochs"] = "steps"
    ) -> None:
        super().__init__()
        if unit not in _UNITS:
            near = did_you_mean(unit, _UNITS)
            raise ValueError(f"unit={unit!r} is not known.{near} Choose from: {', '.join(_UNITS)}.")
        self.unit = unit
        self.monitor = monitor
        # Lightning broadcasts the answer
        self._trial = trial.in_study if isinstance(trial, SharedTrial) else trial
        self._reported = -1

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report, and end the training if it is to be pruned."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        value = trainer.callback_metrics.get(self.monitor)
        if value is None:
            known = list(map(str, trainer.callback_metrics))
            raise ValueError(
                f"monitor={self.monitor!r}: no such value was logged. There are: "
                f"{', '.join(known) or 'none'}.{did_you_mean(self.monitor, known)} Log it in "
                f"validation_step: self.log({self.monitor!r}, ...)."
            )
        if trainer.strategy.broadcast(self._should_prune(trainer, float(value)), src=0):
            import optuna

            raise optuna.TrialPruned(
                f"Pruned at step {trainer.global_step}, {self.monitor}={float(value):.6g}."
            )

    def _should_prune(self, trainer: Any, value: float) -> bool:
        if not trainer.is_global_zero or self._trial is None:
            return False
        # A validation at the end of an epoch may be at the step of the one before it.
        position = trainer.global_step if self.unit == "steps" else trainer.current_epoch
        if position > self._reported:
            self._reported = position
            self._trial.report(value if math.isfinite(value) else float("nan"), position)
        return bool(self._trial.should_prune())
