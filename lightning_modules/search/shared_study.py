"""Optuna's trials, optimization and pruning for ranks that train each trial together."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ..common.suggestions import did_you_mean
from ..internals.lightning_import import Callback, LightningModule, Trainer
from .channel import FAILURE, Channel, OtherProcessError, Outcome

if TYPE_CHECKING:
    from optuna import Study, Trial

Value = float | Sequence[float]
"""The value of a trial, or its values for several objectives."""


class SharedTrial:
    """An `optuna.Trial` that several ranks share: rank 0 asks the study.

    All ranks have to call `suggest_...`, `report` and `should_prune` in the same order, as they do
    when they run the same script. Only rank 0 has the attribute `study`.

    Args:
        trial: the trial on rank 0; None on the other ranks.
        channel: connects the ranks.
    """

    def __init__(self, trial: Trial | None, channel: Channel) -> None:
        self.in_study: Any = trial
        self._channel = channel

        # Every rank gets what rank 0 knows about the trial.
        description = None
        if trial is not None:
            description = (trial.number, trial.datetime_start, trial.params, trial.user_attrs)
        number, datetime_start, params, user_attrs = channel.broadcast(description)
        self.number: int = number
        self.datetime_start = datetime_start
        self.params: dict[str, Any] = params
        self.user_attrs: dict[str, Any] = user_attrs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("suggest_"):
            return functools.partial(self._suggest, name)
        # `self.in_study` would come here again in a copy, which has no attributes yet.
        trial = self.__dict__.get("in_study")
        if trial is None or name.startswith("__"):
            raise AttributeError(
                f"A trial has no attribute {name!r} in processes other than process 0."
            )
        return getattr(trial, name)

    def __reduce__(self) -> NoReturn:
        raise TypeError("A trial that is shared by several processes cannot be pickled.")

    def report(self, value: float, step: int) -> None:
        """Report as `optuna.Trial.report` does; the value of rank 0 is the one that counts."""
        self._channel.run_on_first(lambda: self.in_study.report(value, step))

    def should_prune(self) -> bool:
        """Ask `optuna.Trial.should_prune` on rank 0; return its answer on every rank."""
        return self._channel.run_on_first(lambda: bool(self.in_study.should_prune()))

    def set_user_attr(self, key: str, value: object) -> None:
        """Store an attribute of the trial, as `optuna.Trial.set_user_attr` does."""
        self._channel.run_on_first(lambda: self.in_study.set_user_attr(key, value))
        self.user_attrs = {**self.user_attrs, key: value}

    def _suggest(self, method_name: str, name: str, *args: object, **kwargs: object) -> object:
        def suggest() -> Any:
            method = getattr(self.in_study, method_name)
            return method(name, *args, **kwargs)

        value = self._channel.run_on_first(suggest)
        self.params = {**self.params, name: value}
        return value


class _FailureOnOtherRankError(Exception):
    """A failure on another rank, after which the search continues."""


def optimize_together(
    study: Study | None,
    objective: Callable[[Any], Value],
    n_trials: int | None = None,
    timeout: float | None = None,
    *,
    catch: Iterable[type[Exception]] | type[Exception] = (),
    channel: Channel | None = None,
    result: Callable[[Study], object] | None = None,
    completed: Callable[[], None] | None = None,
    **options: object,
) -> Any:
    """Run a study of optuna on all ranks of a process group.

    Works like `optuna.Study.optimize`, with one study on rank 0.

        def best_params(study):
            return study.best_params

        study = optuna.create_study() if rank == 0 else None
        best = optimize_together(study, objective, n_trials=20, result=best_params)

    All ranks call it, and `objective` is called on all of them with the same trial: the same
    parameters, and the same answer of `should_prune()`. They stop together: after the last trial,
    at the timeout, or after an error. In a single process it is `study.optimize`.

    Args:
        study: the study on rank 0; None on the other ranks.
        objective: called with the trial, an `optuna.Trial` or a `SharedTrial`; its value on rank 0
            is the value of the trial.
        n_trials: number of trials; None for as many as the timeout allows.
        timeout: seconds after which no trial starts, measured by rank 0.
        catch: exceptions after which the search continues; the same on every rank.
        channel: connects the ranks; a new one by default.
        result: called with the study on rank 0, after the last trial.
        completed: called on every rank after each trial that completed on all ranks.
        options: further options of `optuna.Study.optimize`.

    Returns:
        What `result` returned on rank 0, on every rank; None without `result`.

    Raises:
        Exception: the error of a trial; ranks without an error raise an `OtherProcessError`.
    """
    caught = tuple(catch) if isinstance(catch, Iterable) else (catch,)
    used_channel = Channel() if channel is None else channel
    trials = _SharedTrials(objective, used_channel, caught, completed)
    try:
        if used_channel.is_first:
            own_study = cast("Study", study)  # rank 0 has it
            return _optimize_on_rank_0(
                own_study, trials, result, n_trials=n_trials, timeout=timeout, **options
            )
        return _follow(trials)
    finally:
        if channel is None:
            used_channel.close()


def _optimize_on_rank_0(
    study: Study,
    trials: _SharedTrials,
    result: Callable[[Study], Any] | None,
    **options: Any,
) -> object:
    """Run optuna's loop on rank 0, and tell the other ranks how it ended."""
    channel = trials.channel
    run_trial = trials.run_on_rank_0
    caught = (*trials.caught, _FailureOnOtherRankError)
    if channel.is_single_process:
        run_trial = trials.run_alone
        caught = trials.caught

    # The other ranks wait for an announcement, also after an error.
    try:
        study.optimize(run_trial, catch=caught, **options)
        final_result = None if result is None else result(study)
    except Exception as error:
        channel.broadcast(("stop", f"{type(error).__name__}: {error}"))
        raise
    channel.broadcast(("end", final_result))
    return final_result


def _follow(trials: _SharedTrials) -> Any:
    """Run the trials that rank 0 announces, until it announces the end."""
    while True:
        announcement, content = trials.channel.broadcast()
        if announcement == "end":
            return content
        if announcement == "stop":
            # The error of this rank is the one to raise here.
            if trials.error is not None:
                raise trials.error
            raise OtherProcessError(f"Process 0 stopped the search: {content}")
        trials.follow()


class _SharedTrials:
    """Runs one trial after the other, on every rank."""

    def __init__(
        self,
        objective: Callable[[Any], Value],
        channel: Channel,
        caught: tuple[type[Exception], ...],
        completed: Callable[[], None] | None,
    ) -> None:
        self.objective = objective
        self.channel = channel
        self.caught = caught
        self.completed = completed
        self.error: Exception | None = None

    def run_alone(self, trial: Trial) -> Value:
        """Run the trial in the only process."""
        value = self.objective(trial)
        self._notify_completed()
        return value

    def run_on_rank_0(self, trial: Trial) -> Value:
        """Run the trial on rank 0."""
        self.channel.broadcast(("trial", None))
        value, outcome = self._run(SharedTrial(trial, self.channel))
        outcomes = self.channel.gather_outcomes(outcome)
        # The error of this rank is more precise than what the others report.
        if self.error is not None:
            raise self.error
        self._raise_for_other_ranks(trial, outcomes)
        self._notify_completed()
        return cast(Value, value)  # without an error there is one

    def follow(self) -> None:
        """Run the trial on another rank than 0."""
        _, outcome = self._run(SharedTrial(None, self.channel))
        outcomes = self.channel.gather_outcomes(outcome)
        if all(outcome.kind == "done" for outcome in outcomes):
            self._notify_completed()

    def _raise_for_other_ranks(self, trial: Trial, outcomes: list[Outcome]) -> None:
        """Raise if the trial failed, or was pruned, on another rank."""
        import optuna

        failed = [outcome for outcome in outcomes if outcome.kind == "failed"]
        if failed:
            message = failed[0].message
            trial.set_user_attr(FAILURE, message)
            error_class: type[Exception] = OtherProcessError
            if all(outcome.caught for outcome in failed):
                error_class = _FailureOnOtherRankError
            raise error_class(f"The trial failed in another process: {message}")
        if any(outcome.kind == "pruned" for outcome in outcomes):
            raise optuna.TrialPruned()

    def _run(self, trial: SharedTrial) -> tuple[Value | None, Outcome]:
        """Call the objective; return its value, and how the trial ended on this rank."""
        import optuna

        self.error = None
        try:
            return self.objective(trial), Outcome("done")
        except optuna.TrialPruned as error:
            self.error = error
            return None, Outcome("pruned")
        except Exception as error:
            self.error = error
            is_caught = isinstance(error, self.caught)
            return None, Outcome("failed", is_caught, f"{type(error).__name__}: {error}")

    def _notify_completed(self) -> None:
        if self.completed is not None:
            self.completed()


class OptunaPruningCallback(Callback):
    """End a training of Lightning whose trial optuna prunes, in all processes together.

    Works like `optuna.integration.PyTorchLightningPruningCallback`, where other ranks wait forever.

        def objective(trial):
            learning_rate = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
            config = OptimizerConfig(learning_rate=learning_rate)
            pruning = OptunaPruningCallback(trial, "val_loss")
            trainer = lightning.Trainer(callbacks=[pruning])
            trainer.fit(LossModule(model, optimizer=config), loader, held_out)
            return trainer.callback_metrics["val_loss"].item()

    After each validation the monitored value is reported to the trial under the number of
    optimizer steps. If the study's pruner decides so, the training ends with `optuna.TrialPruned`
    on every rank.

    Args:
        trial: the trial; only that of rank 0 is used, so the other ranks may pass None.
        monitor: name of the logged value.

    Raises:
        optuna.TrialPruned: the trial is pruned.
        ValueError: no value of that name was logged; the message lists the logged names.
    """

    def __init__(self, trial: Trial | SharedTrial | None, monitor: str = "val_loss") -> None:
        super().__init__()
        self.monitor = monitor
        # Lightning broadcasts the answer of rank 0, so the shared trial itself is not needed.
        self._trial: Trial | None = trial.in_study if isinstance(trial, SharedTrial) else trial
        self._last_step = -1

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the monitored value, and end the training if the trial is pruned."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if self.monitor not in trainer.callback_metrics:
            logged = list(map(str, trainer.callback_metrics))
            raise ValueError(
                f"monitor={self.monitor!r}: no such value was logged. Logged values: "
                f"{', '.join(logged) or 'none'}.{did_you_mean(self.monitor, logged)} Log it in "
                f"validation_step: self.log({self.monitor!r}, ...)."
            )
        value = float(trainer.callback_metrics[self.monitor])
        if trainer.strategy.broadcast(self._should_prune(trainer, value), src=0):
            import optuna

            raise optuna.TrialPruned(
                f"Pruned at step {trainer.global_step}, {self.monitor}={value:.6g}."
            )

    def _should_prune(self, trainer: Trainer, value: float) -> bool:
        if not trainer.is_global_zero or self._trial is None:
            return False

        # The validation at the end of an epoch may come at the same step as the one before it.
        step = trainer.global_step
        if step > self._last_step:
            self._last_step = step
            # Optuna accepts NaN, but not infinity, as an intermediate value.
            reported_value = value if math.isfinite(value) else float("nan")
            self._trial.report(reported_value, step)
        return bool(self._trial.should_prune())
