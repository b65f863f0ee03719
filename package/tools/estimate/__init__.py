"""Estimate memory per device and traffic per step for a training of a decoder.

It has the shapes of models, the sizes of their parts, and tables; `command` is the command line. It
measures no run, and imports nothing of the facade.
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
