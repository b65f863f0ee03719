"""Optimizers by name, of other libraries too; schedules, clipping, norms.

Here: parameter groups, the settings of a LightningModule's optimizer, the check of optimizer states. Not here: the
training step. Imports `common`.
"""

from .adafactor import Adafactor, AdafactorSchedule, get_adafactor_schedule
from .build import (
    BUILDERS,
    OptimizerConfig,
    build_optimizer,
    let_backward_step,
    optimizer_class_and_kwargs,
    steps_in_backward,
)
from .groups import decay_parameter_names, parameter_groups
from .layerwise import LayerwiseOptimizer, LayerwiseSchedule
from .libraries import MissingLibraryError
from .request import parse_optimizer_args
from .whole_parameters import needs_whole_parameters

__all__ = [
    "BUILDERS",
    "Adafactor",
    "AdafactorSchedule",
    "LayerwiseOptimizer",
    "LayerwiseSchedule",
    "MissingLibraryError",
    "OptimizerConfig",
    "build_optimizer",
    "decay_parameter_names",
    "get_adafactor_schedule",
    "let_backward_step",
    "needs_whole_parameters",
    "optimizer_class_and_kwargs",
    "parameter_groups",
    "parse_optimizer_args",
    "steps_in_backward",
]
