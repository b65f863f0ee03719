"""Tensors of torch as those of TensorFlow, and back: arguments, results, and variables."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes to which TensorFlow's memory is aligned; other memory terminates the process."""


def to_tensorflow(value: Any) -> Any:
    """Return a tensor of torch as one of TensorFlow, with the same memory if possible.

    Args:
        value: a tensor without gradient; anything else is returned unchanged.
    """
    if not isinstance(value, Tensor):
        return value
    tensorflow = sys.modules["tensorflow"]
    value = value.detach()
    if value.is_cuda and not tensorflow.config.list_logical_devices("GPU"):
        value = value.cpu()
    value = value.contiguous()
    if value.is_cpu and value.data_ptr() % ALIGNMENT != 0:
        value = value.clone()
    return tensorflow.experimental.dlpack.from_dlpack(value.__dlpack__())


def to_torch(value: Any) -> Any:
    """Return a tensor or variable of TensorFlow as a tensor of torch, with the same memory.

    None stays None.

    Args:
        value: of either library, or anything that `torch.as_tensor` accepts.
    """
    if value is None or isinstance(value, Tensor):
        return value
    tensorflow = sys.modules["tensorflow"]
    if not tensorflow.is_tensor(value):
        return torch.as_tensor(value)
    if not isinstance(value, tensorflow.Tensor):
        value = tensorflow.convert_to_tensor(value)
    return torch.from_dlpack(value)


class SharedVariable:
    """A variable of TensorFlow and a tensor of torch that are given the same values.

    Either may be changed in any way: both are compared with the value that they had last in common.
    If both have changed, TensorFlow's value counts, as scripts assign to its variables.

    Args:
        variable: of TensorFlow.
    """

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self.tensor: Tensor = to_torch(variable).clone()
        self._in_common = self.tensor.clone()

    def push(self) -> None:
        """Give the variable the value of the tensor, unless it was assigned to since."""
        self.follow()
        value = self.tensor.detach().to(self._in_common, copy=True)
        if not torch.equal(value, self._in_common):
            # A copy, as TensorFlow adopts the memory of the value.
            self.variable.assign(to_tensorflow(value.clone()))
            self._in_common = value

    def pull(self) -> None:
        """Give the tensor the value of the variable."""
        self._copy(to_torch(self.variable))

    def follow(self, value: Any = None) -> None:
        """Give the tensor the value of the variable, if that has changed.

        Args:
            value: of the variable, as a graph returned it; by default it is read.
        """
        if value is None:
            value = self.variable
        tensor = to_torch(value)
        if not torch.equal(tensor.to(self._in_common), self._in_common):
            self._copy(tensor)

    def _copy(self, value: Tensor) -> None:
        with torch.no_grad():
            self.tensor.copy_(value)
        self._in_common.copy_(value)
