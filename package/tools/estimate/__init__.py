"""Estimate the memory of a device for the training of a decoder.

`decoder` has the model, `estimation` measures it on fake tensors, and `command` is the command
line. It runs no training, and imports nothing of the facade.
"""

from .decoder import ModelShape, read_shape
from .estimation import Estimate, Job, compare, estimate

__all__ = ["Estimate", "Job", "ModelShape", "compare", "estimate", "read_shape"]
