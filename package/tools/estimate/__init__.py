"""Estimate the memory of a device for the training of a decoder.

`shape` has the dimensions of a model, `decoder` the model, `estimation` measures it on fake
tensors, and `command` is the command line. It trains nothing, and imports nothing of the facade.
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
