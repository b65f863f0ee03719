"""Optimizers by name, of other libraries too; schedules, clipping, norms.

Here: parameter groups, the settings of a LightningModule's optimizer, the check of optimizer
states. Not here: the training step. Imports `common`.
"""

from .adafactor import Adafactor, AdafactorSchedule, get_adafactor_schedule
from .build import (
    BUILDERS,
    OptimizerConfig,
    add_no_op_step,
    build_optimizer,
    optimizer_class_and_kwargs,
    steps_in_backward,
)
from .groups import decay_parameter_names, freeze_parameters, parameter_groups
from .layerwise import LayerwiseOptimizer, LayerwiseSchedule
from .libraries import MissingLibraryError
from .request import parse_optimizer_args
from .requirements import OptimizerRequirements, optimizer_requirements

__all__ = [
    "BUILDERS",
    "Adafactor",
    "AdafactorSchedule",
    "LayerwiseOptimizer",
    "LayerwiseSchedule",
    "MissingLibraryError",
    "OptimizerConfig",
    "OptimizerRequirements",
    "add_no_op_step",
    "build_optimizer",
    "decay_parameter_names",
    "freeze_parameters",
    "get_adafactor_schedule",
    "optimizer_class_and_kwargs",
    "optimizer_requirements",
    "parameter_groups",
    "parse_optimizer_args",
    "steps_in_backward",
]
