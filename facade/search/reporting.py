"""What becomes of an evaluation in the middle of a trial."""

from __future__ import annotations

import math
from typing import Any

from ...lightning_modules.search.channel import SharedTrial
from ..arguments.enums import HPSearchBackend
from .objective import judged


def report(trainer: Any, trial: Any, step: int, metrics: dict[str, float]) -> None:
    """Tell the backend, under the step, and end the trial if its pruner says so.

    With several objectives nothing is pruned: optuna compares single numbers only.

    Args:
        trainer: the Trainer.
        trial: the trial.
        step: optimizer steps done.
        metrics: of the evaluation.

    Raises:
        optuna.TrialPruned: it is to be pruned; `on_train_end` was called, so that trackers close their runs.
    """
    search = trainer._search
    objectives = len(search.options.directions) if search is not None else _objectives(trial)
    if search is not None:
        value = search.judge(metrics)
    else:
        value = trainer.objective = judged(trainer.compute_objective, metrics, objectives)
    if search is not None and search.is_over:
        return
    if trainer.hp_search_backend == HPSearchBackend.RAY:
        from .ray_tune import report as report_to_ray

        report_to_ray(trainer, metrics, value)
    elif objectives == 1 and (hasattr(trial, "study") or isinstance(trial, SharedTrial)):
        _report_to_optuna(trainer, trial, step, value)


def place_of(state: Any, step: int, unit: str) -> int | None:
    """What an evaluation is reported under: the step, or the epochs that are completed; None before the first is.

    Args:
        state: of the training.
        step: optimizer steps done.
        unit: `steps` or `epochs`.
    """
    if unit == "steps":
        return step
    return math.floor((state.epoch or 0.0) + 1e-6) or None


def _report_to_optuna(trainer: Any, trial: Any, step: int, value: Any) -> None:
    import optuna

    reported, unit = set(), "steps"
    if trainer._search is not None:
        reported, unit = trainer._search.reported, trainer._search.options.pruning_unit
    place = place_of(trainer.state, step, unit)
    if place is None:
        return
    step = place
    if step not in reported:  # optuna keeps the first one, and would warn
        reported.add(step)
        trial.report(value, step)
    if trial.should_prune():
        trainer.control = trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
        raise optuna.TrialPruned(f"Pruned at {unit[:-1]} {step}, with an objective of {value:.6g}.")


def _objectives(trial: Any) -> int:
    study = getattr(trial, "study", None)
    return 1 if study is None else len(study.directions)
