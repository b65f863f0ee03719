"""Estimate memory per device and traffic per step of a training of a decoder.

Here: shapes of models, sizes of their parts, tables. `command` is the command line. Not here:
measuring a run. Imports nothing of the facade.
"""

from .estimation import Estimate, best, compare, estimate
from .job import Job
from .shapes import ModelShape
from .source import model_from_config, model_from_folder, model_of_size

__all__ = [
    "Estimate",
    "Job",
    "ModelShape",
    "best",
    "compare",
    "estimate",
    "model_from_config",
    "model_from_folder",
    "model_of_size",
]
