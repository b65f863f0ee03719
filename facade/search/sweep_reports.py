"""Reports of a script to the sweep that it is a trial of: evaluations, folders, pruning.

A Trainer calls these functions by itself; a plain `lightning.Trainer` gets the callback of
`callbacks`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ...lightning_modules.common.claimed_folder import is_claimed
from ...lightning_modules.search.channel import Channel
from ..arguments.sweep_trial import ChildTrial, TrialResult, this_trial
from .metric_objective import look_up, objective_value, report_position
from .retries import reported_steps

if TYPE_CHECKING:
    from optuna import Trial
    from torch.optim import Optimizer

    from .. import Trainer

_SET_BY = {"learning_rate": "initial_lr", "weight_decay": "weight_decay"}
"""Training arguments, and the value of an optimizer's groups that each sets."""


@dataclass
class _Process:
    """The trial in this process."""

    training: int = 0
    """The number of the current call of `train`; evaluations before the first one have 0."""
    compared: int | None = None
    """The training whose evaluations the pruner compares."""
    channel: Channel | None = None
    in_study: Trial | None = None
    reported: set[int] = field(default_factory=set)


_process = _Process()


class EndedBySweep(SystemExit):
    """Ends a script whose trial is pruned: like `sys.exit(0)`, so that `except Exception` does
    not catch it.
    """


class RefusedBySweep(SystemExit):
    """Ends a script that cannot be a trial, whatever the values."""


def count_training() -> None:
    """Number the trainings of this script."""
    _process.training += 1


def begin_training(trainer: Trainer) -> None:
    """End the script if the training does not have the values of the trial.

    Raises:
        RefusedBySweep: it does not.
    """
    trial = this_trial()
    if trial is not None:
        _require_values(trial, trainer)


def note(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Write down the metrics of an evaluation of a Trainer.

    Raises:
        RefusedBySweep: the training does not have the values of the trial.
    """
    trial = this_trial()
    if trial is None:
        return
    _require_values(trial, trainer)
    if trainer.is_world_process_zero():
        position = report_position(trainer.state, trainer.state.global_step, trial.unit)
        result = _with_evaluation(trial, metrics, position, str(trainer.args.output_dir))
        if trainer.optimizer is not None:
            result.rates.update(_rates(trial, trainer.optimizer))
        result.write(trial.result)


def _rates(trial: ChildTrial, optimizer: Optimizer) -> dict[str, list[float]]:
    """Return the values that the optimizer's groups have for training arguments of the trial, by
    argument.
    """
    rates: dict[str, list[float]] = {}
    for name in trial.values.keys() & _SET_BY.keys():
        values: list[Any] = [group.get(_SET_BY[name]) for group in optimizer.param_groups]
        if values and None not in values:
            rates[name] = [float(value) for value in values]
    return rates


def report(trainer: Trainer, step: int, metrics: dict[str, float]) -> None:
    """Report an evaluation in the middle of a training, and end the script if its trial is pruned.

    Raises:
        MissingMetricError: the objective is a metric that does not exist.
        RefusedBySweep: an earlier training was reported, and `--training` is not given.
        EndedBySweep: the trial is to be pruned.
    """
    trial = this_trial()
    if trial is None:
        return
    if _process.channel is None:
        _process.channel = Channel()
    position = report_position(trainer.state, step, trial.unit)
    if _is_pruned(trial, metrics, position, _process.channel.run_on_first):
        trainer.control = trainer.callback_handler.on_train_end(
            trainer.args, trainer.state, trainer.control
        )
        raise EndedBySweep(0)


def _require_values(trial: ChildTrial, trainer: Trainer) -> None:
    problem = trial.problem(trainer.args)
    if problem is not None:
        if trainer.is_world_process_zero():
            _refuse(trial, problem)
        raise RefusedBySweep(problem)


def _refuse(trial: ChildTrial, problem: str) -> None:
    result = TrialResult.read(trial.result)
    result.refused = problem
    result.write(trial.result)


def callbacks() -> list[Any]:
    """Return the callbacks of a plain Trainer in a sweep.

    If the sweep asks for the objective only, `fit` answers and ends the script, so that nothing is
    written.
    """
    from ...lightning_modules.internals.lightning_import import Callback, Trainer

    class SweepReports(Callback):
        """Report logged metrics after each validation, and end the script if its trial is
        pruned.
        """

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            if trial.values and not trial.applied:
                raise ValueError(
                    f"The sweep has values for training arguments ({', '.join(trial.values)}), and "
                    "this script has none. Pass --values-as options, or another way in which it "
                    "takes them."
                )

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            count_training()

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                _report_of_lightning(trial, trainer)

    trial: Any = this_trial()
    if trial is None:
        return []
    if trial.asks:
        Trainer.fit = cast(Any, lambda trainer, *args, **kwargs: _answer(trial, trainer))
    return [SweepReports()]


def _answer(trial: ChildTrial, trainer: Any) -> NoReturn:
    watching: list[Any] = [
        one for one in trainer.checkpoint_callbacks if getattr(one, "monitor", None)
    ]
    for one in [*watching, *trainer.early_stopping_callbacks]:
        why = f"The script has {type(one).__name__}(monitor={one.monitor!r}, mode={one.mode!r})."
        trial.answer(one.monitor, one.mode == "max", why)
    trial.answer(
        "val_loss", False, "No ModelCheckpoint or EarlyStopping of the script has a monitor."
    )


def _report_of_lightning(trial: ChildTrial, trainer: Any) -> None:
    fits = trainer.state.fn == "fit"
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    epochs = trainer.current_epoch + (fits and trainer.is_last_batch)
    position = trainer.global_step if trial.unit == "steps" else epochs or None
    folder = trainer.log_dir or trainer.default_root_dir  # a collective call
    if trainer.is_global_zero:
        _with_evaluation(trial, metrics, position, folder).write(trial.result)

    def run_on_first(ask: Callable[[], bool]) -> bool:
        return trainer.strategy.broadcast(trainer.is_global_zero and ask())

    if fits and _is_pruned(trial, metrics, position, run_on_first):
        raise EndedBySweep(0)


def _with_evaluation(
    trial: ChildTrial, metrics: Mapping[str, float], position: int | None, folder: str
) -> TrialResult:
    """Return the results of the trial with one more evaluation.

    Args:
        trial: the trial of this script.
        metrics: of the evaluation.
        position: the step, or the completed epochs.
        folder: of the training.
    """
    result = TrialResult.read(trial.result)
    if all(name in metrics or f"eval_{name}" in metrics for name in trial.metrics):
        names = trial.metrics
        value = objective_value(
            lambda metrics: [look_up(metrics, name) for name in names], metrics, len(names)
        )
        values: list[float] = value if isinstance(value, list) else [value]
        result.values.append((position, values, _process.training))
    result.seen = sorted({*result.seen, *metrics})
    result.folder = folder
    if is_claimed(folder, trial.owner):
        result.claimed = sorted({*result.claimed, folder})
    return result


def _is_pruned(
    trial: ChildTrial, metrics: Mapping[str, float], position: int | None, run_on_first: Any
) -> bool:
    """Report an evaluation to the study, and return whether the trial is to be pruned.

    Args:
        trial: the trial of this script.
        metrics: of the evaluation.
        position: the step, or the completed epochs.
        run_on_first: runs a function in the first process, and returns the result in all.
    """
    if len(trial.metrics) > 1:
        return False
    value = float(look_up(metrics, trial.metrics[0]))
    training = _process.training
    if trial.pruner == "none" or position is None or trial.training not in (None, training):
        return False

    # Steps of two trainings cannot be compared.
    if _process.compared not in (None, training):
        problem = (
            "The script evaluates in more than one training: say which one --pruner compares, with "
            "--training N."
        )
        run_on_first(lambda: _refuse(trial, problem))
        raise RefusedBySweep(problem)
    _process.compared = training

    if not run_on_first(lambda: _should_prune(trial, position, value)):
        return False
    print(
        f"This trial is pruned at {trial.unit[:-1]} {position}: {trial.metrics[0]} is {value:.6g}.",
        file=sys.stderr,
    )
    return True


def _should_prune(trial: ChildTrial, position: int, value: float) -> bool:
    if _process.in_study is None:
        _process.in_study = _trial_in_study(trial)
        # A retry has the values of the trial that it retries.
        _process.reported.update(reported_steps(_process.in_study.study, trial.number))
    if position not in _process.reported:
        _process.reported.add(position)
        _process.in_study.report(value, position)
    is_pruned = _process.in_study.should_prune()
    if is_pruned:
        result = TrialResult.read(trial.result)
        result.pruned = f"{trial.unit[:-1]} {position}"
        result.write(trial.result)
    return is_pruned


def _trial_in_study(trial: ChildTrial) -> Trial:
    import optuna

    from .samplers import make_pruner
    from .storages import open_storage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = open_storage(trial.storage)
    study = optuna.load_study(
        study_name=trial.study, storage=storage, pruner=make_pruner(trial.pruner)
    )
    study_id = storage.get_study_id_from_name(trial.study)
    trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
    return optuna.trial.Trial(study, trial_id)
