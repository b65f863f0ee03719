"""Optimizers by name, of other libraries too; schedules, clipping, gradient norms."""

from .adafactor import Adafactor, AdafactorSchedule, get_adafactor_schedule
from .arguments import parse_optimizer_args
from .build import BUILDERS, build_optimizer, optimizer_class_and_kwargs
from .config import OptimizerConfig
from .fused import let_backward_step, steps_in_backward
from .groups import decay_parameter_names, parameter_groups
from .layerwise import LayerwiseOptimizer, LayerwiseSchedule, is_layerwise
from .optional import MissingLibraryError

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
    "is_layerwise",
    "let_backward_step",
    "optimizer_class_and_kwargs",
    "parameter_groups",
    "parse_optimizer_args",
    "steps_in_backward",
]
