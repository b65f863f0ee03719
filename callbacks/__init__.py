"""The `TrainerCallback` family: events of a training run, and the callbacks that come with the package.

Importing it loads nothing but the standard library; what a callback needs is imported when the callback is used.
"""

from .base import EVENTS, TrainerCallback, reads_checkpoints
from .early_stopping import EarlyStoppingCallback, EarlyStoppingError
from .flow import DefaultFlowCallback
from .handler import CallbackHandler
from .jit_checkpoint import JITCheckpointCallback
from .loss_curve import LossCurveCallback, draw_loss_curve
from .progress import PrinterCallback, ProgressCallback
from .reporting import available_reporting_integrations, reporting_callbacks
from .state import ExportableState, TrainerControl, TrainerState, collect_states, is_exportable
from .tensorboard import TensorBoardCallback, rewrite_logs

__all__ = [
    "EVENTS",
    "CallbackHandler",
    "DefaultFlowCallback",
    "EarlyStoppingCallback",
    "EarlyStoppingError",
    "ExportableState",
    "JITCheckpointCallback",
    "LossCurveCallback",
    "PrinterCallback",
    "ProgressCallback",
    "TensorBoardCallback",
    "TrainerCallback",
    "TrainerControl",
    "TrainerState",
    "available_reporting_integrations",
    "collect_states",
    "draw_loss_curve",
    "is_exportable",
    "reads_checkpoints",
    "reporting_callbacks",
    "rewrite_logs",
]
