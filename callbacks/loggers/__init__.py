"""One callback for each tracker in `report_to`; clients are imported when used.

They stand in `lightrainer.callbacks`, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .availability import TRACKERS

if TYPE_CHECKING:
    from .base import LoggerCallback
    from .clearml import ClearMLCallback
    from .dvclive import DVCLiveCallback
    from .mlflow import DagsHubCallback, MLflowCallback
    from .services import AzureMLCallback, CodeCarbonCallback, CometCallback, FlyteCallback
    from .swanlab import SwanLabCallback
    from .tensorboard import TensorBoardCallback
    from .trackio import TrackioCallback
    from .values import rewrite_logs
    from .wandb import WandbCallback

_HOMES = {name: module for module, name, _ in TRACKERS.values()} | {"LoggerCallback": "base", "rewrite_logs": "values"}
"""The module of each public name."""

__all__ = [
    "AzureMLCallback",
    "ClearMLCallback",
    "CodeCarbonCallback",
    "CometCallback",
    "DVCLiveCallback",
    "DagsHubCallback",
    "FlyteCallback",
    "LoggerCallback",
    "MLflowCallback",
    "SwanLabCallback",
    "TensorBoardCallback",
    "TrackioCallback",
    "WandbCallback",
    "rewrite_logs",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
