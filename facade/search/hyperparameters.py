"""Defaults of a hyperparameter search: spaces, objective, and the type of its result."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

_CLOCKS = ("_runtime", "_per_second", "_model_preparation_time")
_BATCH_SIZES = [4, 8, 16, 32, 64]


class BestRun(NamedTuple):
    """As `transformers.trainer_utils.BestRun`: the result of `Trainer.hyperparameter_search`."""

    run_id: str
    """The trial."""
    objective: float | list[float]
    """Its value; several numbers for several objectives."""
    hyperparameters: dict[str, Any]
    """The values it was trained with."""
    run_summary: Any = None
    """More from the backend; Ray has some."""


def default_compute_objective(metrics: dict[str, float]) -> float | None:
    """As `transformers.trainer_utils.default_compute_objective`: the loss, or the sum of the other
    metrics.

    Args:
        metrics: of an evaluation; speed and epoch do not count, nor do memory and the seconds of
            the preparation, which the reference takes for metrics.
    """
    measured = {
        name: value
        for name, value in metrics.items()
        if name not in ("eval_loss", "epoch")
        and not name.endswith(_CLOCKS)
        and not name.startswith("eval_mem_")
    }
    return sum(measured.values()) if measured else metrics.get("eval_loss")


def default_hp_space_optuna(trial: Any) -> dict[str, Any]:
    """As `transformers.trainer_utils.default_hp_space_optuna`: rate, epochs, seed and batch size
    of a trial.
    """
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-4, log=True),
        "num_train_epochs": trial.suggest_int("num_train_epochs", 1, 5),
        "seed": trial.suggest_int("seed", 1, 40),
        "per_device_train_batch_size": trial.suggest_categorical(
            "per_device_train_batch_size", _BATCH_SIZES
        ),
    }


def default_hp_space_ray(trial: Any) -> dict[str, Any]:
    """As `transformers.trainer_utils.default_hp_space_ray`.

    Raises:
        ImportError: Ray is not installed.
    """
    tune = import_module("ray.tune")
    return {
        "learning_rate": tune.loguniform(1e-6, 1e-4),
        "num_train_epochs": tune.choice(list(range(1, 6))),
        "seed": tune.uniform(1, 40),
        "per_device_train_batch_size": tune.choice(_BATCH_SIZES),
    }


def default_hp_space_wandb(trial: Any) -> dict[str, Any]:
    """As `transformers.trainer_utils.default_hp_space_wandb`: the settings of a sweep."""
    return {
        "method": "random",
        "metric": {"name": "objective", "goal": "minimize"},
        "parameters": {
            "learning_rate": {"distribution": "uniform", "min": 1e-6, "max": 1e-4},
            "num_train_epochs": {"distribution": "int_uniform", "min": 1, "max": 6},
            "seed": {"distribution": "int_uniform", "min": 1, "max": 40},
            "per_device_train_batch_size": {"values": _BATCH_SIZES},
        },
    }
