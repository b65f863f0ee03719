"""Default search spaces and objective of a hyperparameter search, and the type of its result."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from optuna import Trial

_SPEED_SUFFIXES = ("_runtime", "_per_second", "_model_preparation_time")
_BATCH_SIZES = [4, 8, 16, 32, 64]


class BestRun(NamedTuple):
    """Result of `Trainer.hyperparameter_search`: the best trial.

    Works like `transformers.trainer_utils.BestRun`.
    """

    run_id: str
    """The number of the trial, as text; with Ray the id of the trial."""
    objective: float | list[float]
    """The objective of the trial; a list for several objectives."""
    hyperparameters: dict[str, Any]
    """The values of the trial, by name."""
    run_summary: Any = None
    """The `ExperimentAnalysis` of Ray; otherwise None."""


def default_compute_objective(metrics: dict[str, float]) -> float | None:
    """Compute the objective of a search from the metrics of an evaluation.

    Works like `transformers.trainer_utils.default_compute_objective`, except that the latter also
    adds memory and the time of preparing the model.

    Args:
        metrics: the metrics of an evaluation. Speed, epoch, memory and the time of preparing the
            model are left out of the sum.

    Returns:
        The sum of the metrics except `eval_loss`, or `eval_loss` if there are no other metrics.
    """
    quality_metrics = []
    for name, value in metrics.items():
        is_speed = name.endswith(_SPEED_SUFFIXES)
        is_memory = name.startswith("eval_mem_")
        if name not in ("eval_loss", "epoch") and not is_speed and not is_memory:
            quality_metrics.append(value)
    if not quality_metrics:
        return metrics.get("eval_loss")
    return sum(quality_metrics)


def default_hp_space_optuna(trial: Trial) -> dict[str, object]:
    """Suggest learning rate, number of epochs, seed and batch size for an Optuna trial.

    The space is that of `transformers.trainer_utils.default_hp_space_optuna`.

    Args:
        trial: the trial that suggests the values.

    Returns:
        Values by the names of the training arguments.
    """
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-4, log=True),
        "num_train_epochs": trial.suggest_int("num_train_epochs", 1, 5),
        "seed": trial.suggest_int("seed", 1, 40),
        "per_device_train_batch_size": trial.suggest_categorical(
            "per_device_train_batch_size", _BATCH_SIZES
        ),
    }


def default_hp_space_ray(trial: None) -> dict[str, object]:
    """Describe learning rate, number of epochs, seed and batch size for `ray.tune`.

    The space is that of `transformers.trainer_utils.default_hp_space_ray`.

    Args:
        trial: ignored; Ray draws the values.

    Returns:
        Distributions by the names of the training arguments.

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


def default_hp_space_wandb(trial: None) -> dict[str, object]:
    """Describe learning rate, number of epochs, seed and batch size for a sweep of wandb.

    The space is that of `transformers.trainer_utils.default_hp_space_wandb`.

    Args:
        trial: ignored.

    Returns:
        The configuration of a sweep.
    """
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
