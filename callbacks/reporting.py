"""Resolve the names in `report_to` to callback classes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ..lightning_modules.common.suggestions import did_you_mean
from . import loggers
from .base import TrainerCallback
from .loggers import availability
from .loggers.kubeflow import KubeflowCallback, is_kubeflow_there

CALLBACKS = {name: callback for name, (_, callback, _) in availability.TRACKERS.items()}
"""The class in `lightrainer.callbacks` that each name stands for."""


def available_reporting_integrations() -> list[str]:
    """As `transformers.integrations.get_available_reporting_integrations`: what "all" stands for.

    The names whose package is installed, without those that could not work: Flyte outside of its tasks, DagsHub without
    `MLFLOW_TRACKING_URI`, Comet without a key. MLflow comes before Azure ML, which writes there too, and DagsHub before
    MLflow, as it is one.
    """
    mlflow = availability.is_mlflow_available()
    dagshub = mlflow and availability.is_dagshub_available() and bool(os.environ.get("MLFLOW_TRACKING_URI"))
    there = {
        "azure_ml": not mlflow and availability.is_azureml_available(),
        "comet_ml": availability.is_comet_available(),
        "dagshub": dagshub,
        "dvclive": availability.is_dvclive_available(),
        "mlflow": mlflow and not dagshub,
        "tensorboard": availability.is_tensorboard_available(),
        "wandb": availability.is_wandb_available(),
        "codecarbon": availability.is_codecarbon_available(),
        "clearml": availability.is_clearml_available(),
        "swanlab": availability.is_swanlab_available(),
        "trackio": availability.is_trackio_available(),
    }
    return [name for name, is_there in there.items() if is_there]


def reporting_callbacks(report_to: str | Iterable[str] | None) -> list[type[TrainerCallback]]:
    """As `transformers.integrations.get_reporting_integration_callbacks`, but "none" and "all" may be in a list.

    In a job of Kubeflow that takes reports, its callback is always among them.

    Args:
        report_to: a name or several; `None` and "none" stand for no callback, "all" for everything that is installed.

    Raises:
        ValueError: there is no callback of such a name.
    """
    names = [report_to] if isinstance(report_to, str) else list(report_to or [])
    if "all" in names:
        names = [*available_reporting_integrations(), *(name for name in names if name != "all")]
    there = is_kubeflow_there()
    left_out = ("none", "kubeflow") if there else ("none",)
    chosen = [_callback_class(name) for name in dict.fromkeys(names) if name not in left_out]
    return [*chosen, KubeflowCallback] if there else chosen


def _callback_class(name: str) -> type[TrainerCallback]:
    if name not in CALLBACKS:
        known = [*CALLBACKS, "all", "none"]
        raise ValueError(
            f"report_to has {name!r}, for which there is no callback.{did_you_mean(name, known)} There are: "
            f"{', '.join(known)}. For another service pass a TrainerCallback of your own in `callbacks`."
        )
    return getattr(loggers, CALLBACKS[name])
