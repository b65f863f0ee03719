"""Estimate the device memory that training a decoder needs.

`shape` reads the dimensions of a model and `decoder` defines the model; `estimation` measures it on
fake tensors, and `command` is the command line. Nothing is trained, and the facade is not imported.
"""

from .estimation import Estimate, Job, best, compare, estimate
from .shape import ModelShape, read_shape

__all__ = [
    "Estimate",
    "Job",
    "ModelShape",
    "best",
    "compare",
    "estimate",
    "read_shape",
]
