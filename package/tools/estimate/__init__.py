"""Estimate memory per device and traffic per step on paper; torch is not loaded.

Here: shapes of models, sizes of their parts, tables. `command` is the command line. Not here: measuring a run. Imports
nothing of the facade.
"""

from .estimation import Choice, Estimate, compare, estimate
from .job import Job
from .shapes import ModelShape, model_of_size
from .source import model_from_folder

__all__ = ["Choice", "Estimate", "Job", "ModelShape", "compare", "estimate", "model_from_folder", "model_of_size"]
