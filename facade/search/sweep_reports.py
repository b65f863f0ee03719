"""Report evaluations and folders from a script to the sweep that runs it as a trial."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...lightning_modules.search.channel import Channel
from ..arguments.sweep_trial import ChildTrial, TrialEvaluation, TrialResult, this_trial
from ..evaluation.missing_metrics import MissingMetricError
from .metric_objective import look_up
from .retries import is_pruned

if TYPE_CHECKING:
    from optuna import Trial

    from .. import Trainer


@dataclass
class _TrialState:
    """The state of the trial that this process runs."""

    training: int = 0
    """The number of the current call of `train`, from 1; 0 before the first call."""
    pruned_training: int | None = None
    """The number of the training whose evaluations the pruner compares; None before the first."""
    in_study: Trial | None = None
    """The trial in the study, once process 0 has loaded it."""

    @cached_property
    def run_on_first(self) -> Callable[[Callable[[], Any]], Any]:
        """Return a function that runs another in process 0, and returns its result everywhere.

        Every process has to call it.
        """
        return Channel().run_on_first


_trial_state = _TrialState()


class TrialPrunedExit(SystemExit):
    """Ends a script whose trial is pruned.

    This is a `SystemExit`, so that `except Exception` in the script does not catch it.
    """


class InvalidTrialScriptExit(SystemExit):
    """Ends a script that cannot run as a trial with any values."""


def count_training() -> None:
    """Count a call of `train` in this script."""
    _trial_state.training += 1


def begin_training(trainer: Trainer) -> None:
    """End the script if the training does not use the values of the trial.

    Raises:
        InvalidTrialScriptExit: the training does not use the values.
    """
    trial = this_trial()
    if trial is not None:
        _require_values(trial, trainer)


def record_evaluation(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Write an evaluation of a Trainer into the result of the trial.

    Raises:
        InvalidTrialScriptExit: the training does not use the values of the trial.
    """
    trial = this_trial()
    if trial is None:
        return
    _require_values(trial, trainer)
    if trainer.is_world_process_zero():
        step = trainer.state.global_step
        _add_evaluation(trial, metrics, step, str(trainer.args.output_dir)).write(trial.result)


def report(trainer: Trainer, step: int, metrics: dict[str, float]) -> None:
    """Report an evaluation during a training, and end the script if its trial is pruned.

    Raises:
        MissingMetricError: the objective is a metric that does not exist.
        InvalidTrialScriptExit: an earlier training has reported evaluations, too.
        TrialPrunedExit: the trial is pruned.
    """
    trial = this_trial()
    if trial is None:
        return
    if _is_pruned(trial, metrics, step):
        end_training(trainer)
        raise TrialPrunedExit(0)


def end_training(trainer: Trainer) -> None:
    """Call `on_train_end` for a pruned training, so that trackers close their runs."""
    trainer.control = trainer.callback_handler.on_train_end(
        trainer.args, trainer.state, trainer.control
    )


def _require_values(trial: ChildTrial, trainer: Trainer) -> None:
    """Check that a training uses the values of the trial."""
    problem = trial.mismatch_with(trainer.args)
    if problem is not None:
        if trainer.is_world_process_zero():
            _refuse(trial, problem)
        raise InvalidTrialScriptExit(problem)


def _refuse(trial: ChildTrial, problem: str) -> None:
    """Write the reason why the script cannot run as a trial into the result."""
    result = TrialResult.read(trial.result)
    result.refused = problem
    result.write(trial.result)


def _add_evaluation(
    trial: ChildTrial, metrics: Mapping[str, float], step: int, folder: str
) -> TrialResult:
    """Return the result of the trial with another evaluation.

    Args:
        trial: the trial of this script.
        metrics: the metrics of the evaluation.
        step: number of optimizer steps taken.
        folder: the folder of the training.
    """
    result = TrialResult.read(trial.result)

    # Do not record an evaluation that lacks one of the objectives, because the script may run
    # another evaluation that has all of them.
    with suppress(MissingMetricError):
        values = [float(look_up(metrics, name)) for name in trial.metrics]
        result.values.append(TrialEvaluation(step, values, _trial_state.training))
    result.seen = sorted({*result.seen, *metrics})
    result.folder = folder
    return result


def _is_pruned(trial: ChildTrial, metrics: Mapping[str, float], step: int) -> bool:
    """Report an evaluation to the study, and return whether the trial is pruned.

    Args:
        trial: the trial of this script.
        metrics: the metrics of the evaluation.
        step: number of optimizer steps taken.
    """
    if len(trial.metrics) > 1:
        return False

    # A missing objective is an error even if nothing is pruned.
    value = float(look_up(metrics, trial.metrics[0]))
    training = _trial_state.training
    if trial.pruner == "none":
        return False

    # The pruner compares evaluations at the same step, but each training of a script has its own
    # steps.
    if _trial_state.pruned_training not in (None, training):
        problem = (
            "The script evaluates in more than one training, whose steps --pruner cannot compare. "
            "Leave --pruner out, or evaluate in one training only."
        )
        _trial_state.run_on_first(lambda: _refuse(trial, problem))
        raise InvalidTrialScriptExit(problem)
    _trial_state.pruned_training = training

    if not _trial_state.run_on_first(lambda: _should_prune(trial, step, value)):
        return False
    print(
        f"This trial is pruned at step {step}: {trial.metrics[0]} is {value:.6g}.", file=sys.stderr
    )
    return True


def _should_prune(trial: ChildTrial, step: int, value: float) -> bool:
    """Report a value, and return whether the trial is pruned; called in process 0.

    If the trial is pruned, write the step into the result.
    """
    state = _trial_state
    if state.in_study is None:
        state.in_study = _load_trial(trial)
    if not is_pruned(state.in_study, value, step):
        return False
    result = TrialResult.read(trial.result)
    result.pruned_at = step
    result.write(trial.result)
    return True


def _load_trial(trial: ChildTrial) -> Trial:
    """Return the trial in its study, loaded from the storage."""
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
