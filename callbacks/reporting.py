"""Resolve the names in `report_to` to callback classes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module

from ..lightning_modules.common.suggestions import did_you_mean
from .base import TrainerCallback
from .loggers.availability import AVAILABLE, TRACKERS, is_comet_available

PROFILE = "LIGHTRAINER_PROFILE"
"""The environment variable by which `lightrainer profile` adds a `ProfilerCallback`.

Its value is `wait,warmup,active`.
"""


def available_reporting_integrations() -> list[str]:
    """List the trackers that `report_to="all"` stands for.

    Works like `transformers.integrations.get_available_reporting_integrations`.

    These are the names whose package is installed, without those that cannot work: Flyte outside of
    its tasks, DagsHub without `MLFLOW_TRACKING_URI`, Comet without a key. MLflow replaces Azure ML,
    which writes to MLflow too, and DagsHub replaces MLflow, since it is an MLflow server.
    """
    checks = {**AVAILABLE, "comet_ml": is_comet_available}
    available = [name for name in _NAMES_IN_ALL if checks[name]()]

    left_out: set[str] = set()
    if "mlflow" in available:
        left_out.add("azure_ml")
    if "dagshub" in available:
        if os.environ.get("MLFLOW_TRACKING_URI"):
            left_out.add("mlflow")
        else:
            left_out.add("dagshub")
    return [name for name in available if name not in left_out]


_NAMES_IN_ALL = (
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
"""Names that "all" may stand for, in the order of transformers."""


def reporting_callbacks(report_to: str | Iterable[str] | None) -> list[type[TrainerCallback]]:
    """Return the callback classes of trackers.

    Works like `transformers.integrations.get_reporting_integration_callbacks`, with "all" in lists
    too.

    Args:
        report_to: one name or several; `None` and "none" stand for no callback, "all" for all that
            are installed.

    Raises:
        ValueError: a name is unknown.
    """
    names = [report_to] if isinstance(report_to, str) else list(report_to or [])
    if "all" in names:
        other_names = [name for name in names if name != "all"]
        names = available_reporting_integrations() + other_names

    # A name that is repeated counts once.
    unique_names = dict.fromkeys(names)
    return [_callback_class(name) for name in unique_names if name != "none"]


def requested_profilers() -> list[TrainerCallback]:
    """Return the callback that `lightrainer profile` requests; empty if it does not run."""
    settings = os.environ.get(PROFILE)
    if not settings:
        return []
    from .profiler import ProfilerCallback

    wait, warmup, active = (int(steps) for steps in settings.split(","))
    return [ProfilerCallback(wait, warmup, active, stop=True)]


def _callback_class(name: str) -> type[TrainerCallback]:
    if name not in TRACKERS:
        valid_names = [*TRACKERS, "all", "none"]
        raise ValueError(
            f"report_to has {name!r}.{did_you_mean(name, valid_names)} Valid names: "
            f"{', '.join(valid_names)}. Other trackers are passed as callbacks=[...]."
        )
    tracker = TRACKERS[name]
    module = import_module(f".loggers.{tracker.module}", __package__)
    return getattr(module, tracker.class_name)
