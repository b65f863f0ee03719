"""Resolve the names in `report_to` to callback classes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module

from ..lightning_modules.common.suggestions import did_you_mean
from .base import TrainerCallback
from .loggers.availability import AVAILABLE, TRACKERS, is_comet_available
from .loggers.kubeflow import KubeflowCallback, is_kubeflow_there

PROFILE = "LIGHTRAINER_PROFILE"
"""The environment variable of `lightrainer profile`: wait, warmup and active of a
`ProfilerCallback`, with commas.
"""


def available_reporting_integrations() -> list[str]:
    """As `transformers.integrations.get_available_reporting_integrations`: what "all" stands for.

    The names whose package is installed, without those that could not work: Flyte outside of its
    tasks, DagsHub without `MLFLOW_TRACKING_URI`, Comet without a key. MLflow comes before Azure ML,
    which writes there too, and DagsHub before MLflow, as it is one.
    """
    checks = {**AVAILABLE, "comet_ml": is_comet_available}
    there = [name for name in _ALL if checks[name]()]
    left_out = {"azure_ml"} if "mlflow" in there else set()
    if "dagshub" in there:
        left_out.add("mlflow" if os.environ.get("MLFLOW_TRACKING_URI") else "dagshub")
    return [name for name in there if name not in left_out]


_ALL = (
    "azure_ml",
    "comet_ml",
    "dagshub",
    "dvclive",
    "mlflow",
    "tensorboard",
    "wandb",
    "codecarbon",
    "clearml",
    "swanlab",
    "trackio",
)
"""Names that "all" may stand for, in the order of the reference."""


def reporting_callbacks(report_to: str | Iterable[str] | None) -> list[type[TrainerCallback]]:
    """As `transformers.integrations.get_reporting_integration_callbacks`, but "none" and "all" may
    be in a list.

    In a job of Kubeflow that takes reports, its callback is always among them.

    Args:
        report_to: a name or several; `None` and "none" stand for no callback, "all" for everything
            that is installed.

    Raises:
        ValueError: a name is unknown.
    """
    names = [report_to] if isinstance(report_to, str) else list(report_to or [])
    if "all" in names:
        names = [*available_reporting_integrations(), *(name for name in names if name != "all")]
    there = is_kubeflow_there()
    left_out = ("none", "kubeflow") if there else ("none",)
    chosen = [_callback_class(name) for name in dict.fromkeys(names) if name not in left_out]
    return [*chosen, KubeflowCallback] if there else chosen


def profilers_asked_for() -> list[TrainerCallback]:
    """Return the callback that `lightrainer profile` asks for, if it does."""
    asked = os.environ.get(PROFILE)
    if not asked:
        return []
    from .profiler import ProfilerCallback

    return [ProfilerCallback(*map(int, asked.split(",")), stop=True)]


def _callback_class(name: str) -> type[TrainerCallback]:
    if name not in TRACKERS:
        known = [*TRACKERS, "all", "none"]
        raise ValueError(
            f"report_to has {name!r}.{did_you_mean(name, known)} There are: {', '.join(known)}; or "
            "TrainerCallbacks."
        )
    module, callback, _ = TRACKERS[name]
    return getattr(import_module(f".loggers.{module}", __package__), callback)
