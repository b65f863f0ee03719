"""The `TrainerCallback` family: events of a training run, and the callbacks that come with it.

Importing it loads nothing but the standard library; what a callback needs is imported when the callback is used.
"""

from typing import TYPE_CHECKING, Any

from . import loggers
from .base import EVENTS, TrainerCallback, reads_checkpoints
from .early_stopping import EarlyStoppingCallback, EarlyStoppingError
from .ema import EMACallback
from .flow import DefaultFlowCallback
from .gradient_norms import GradientNormCallback
from .handler import CallbackHandler
from .jit_checkpoint import JITCheckpointCallback
from .memory import MemoryCallback
from .nan_guard import NaNGuardCallback, NaNGuardError
from .progress import PrinterCallback, ProgressCallback
from .progress_notebook import NotebookProgressCallback, default_progress_callback
from .progress_rich import RichProgressCallback
from .report import LossCurveCallback, RunReportCallback, draw_loss_curve
from .reporting import available_reporting_integrations, reporting_callbacks
from .state import ExportableState, TrainerControl, TrainerState, collect_states, is_exportable
from .throughput import ThroughputCallback
from .time_limit import TimeLimitCallback

if TYPE_CHECKING:
    from .bridge import LightningBridge
    from .loggers import *  # noqa: F403

__all__ = [
    "EVENTS",
    "CallbackHandler",
    "DefaultFlowCallback",
    "EMACallback",
    "EarlyStoppingCallback",
    "EarlyStoppingError",
    "ExportableState",
    "GradientNormCallback",
    "JITCheckpointCallback",
    "LightningBridge",
    "LossCurveCallback",
    "MemoryCallback",
    "NaNGuardCallback",
    "NaNGuardError",
    "NotebookProgressCallback",
    "PrinterCallback",
    "ProgressCallback",
    "RichProgressCallback",
    "RunReportCallback",
    "ThroughputCallback",
    "TimeLimitCallback",
    "TrainerCallback",
    "TrainerControl",
    "TrainerState",
    "available_reporting_integrations",
    "collect_states",
    "default_progress_callback",
    "draw_loss_curve",
    "is_exportable",
    "reads_checkpoints",
    "reporting_callbacks",
]
__all__ += loggers.__all__


def __getattr__(name: str) -> Any:
    if name in loggers.__all__:
        return getattr(loggers, name)
    if name == "LightningBridge":  # the one callback here that is Lightning's
        from .bridge import LightningBridge

        return LightningBridge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
