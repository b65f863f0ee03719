"""Tensors that torch and TensorFlow share: arguments, results, and variables whose values a
tensor of torch has.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes to which TensorFlow's memory is aligned; it ends the process when it is given other
memory.
"""


def to_tensorflow(value: Any) -> Any:
    """Return a tensor of torch as one of TensorFlow, with the same memory where that can be; others
    as they are.

    Args:
        value: a tensor without gradient, or anything else.
    """
    if not isinstance(value, Tensor):
        return value
    tensorflow = sys.modules["tensorflow"]
    value = value.detach()
    if value.is_cuda and not tensorflow.config.list_logical_devices("GPU"):
        value = value.cpu()
    return tensorflow.experimental.dlpack.from_dlpack(_shareable(value).__dlpack__())


def _shareable(tensor: Tensor) -> Tensor:
    tensor = tensor.contiguous()
    return tensor if _is_aligned(tensor) else tensor.clone()


def _is_aligned(tensor: Tensor) -> bool:
    return not tensor.is_cpu or tensor.data_ptr() % ALIGNMENT == 0


def to_torch(value: Any) -> Any:
    """Return a tensor or variable of TensorFlow as a tensor of torch, with the same memory; None
    stays None.

    Args:
        value: of either library, or what torch makes a tensor of.
    """
    if value is None or isinstance(value, Tensor):
        return value
    tensorflow = sys.modules["tensorflow"]
    if tensorflow.is_tensor(value):
        return torch.from_dlpack(
            value if isinstance(value, tensorflow.Tensor) else tensorflow.convert_to_tensor(value)
        )
    return torch.as_tensor(value)


def _address(tensor: Any) -> int:
    return torch.from_dlpack(tensor).data_ptr()


class SharedVariable:
    """A variable of TensorFlow and a tensor of torch with the same values.

    `assign` of TensorFlow takes over the memory of what is assigned, so both have the same memory
    from the first `push` on: what an optimizer of torch writes there, through `.data` or not,
    TensorFlow reads. Where TensorFlow writes, it does so in memory of its own, which `follow`
    copies. Memory that cannot be shared is copied at each `push`; that of an embedding cannot:
    TensorFlow keeps variables whose rows are looked up to itself, from the first time on.

    Args:
        variable: of TensorFlow.
    """

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self.tensor = to_torch(variable).clone()
        self._shared_at: int | None = None
        """Where the memory is that TensorFlow was given."""
        self._followed: int | None = None
        """The version that the tensor had when it was copied from TensorFlow."""
        self._keeps_to_itself = False
        """TensorFlow copies the variable whenever it is read or assigned to."""

    def push(self) -> None:
        """Let TensorFlow have the values of torch, unless others were assigned to its variable
        since.
        """
        tensor = self.tensor
        if self._shared_at == tensor.data_ptr():
            if _address(self._reading()) == self._shared_at:
                return
            self._keeps_to_itself = self._is_copied_when_read()
            if not self._keeps_to_itself:
                self.follow()
        if self._followed == tensor._version:
            return
        value, dtype = to_tensorflow(tensor), self.variable.dtype
        can_share = (
            tensor.is_cpu
            and tensor.is_contiguous()
            and _is_aligned(tensor)
            and value.dtype == dtype
        )
        self.variable.assign(value if can_share else sys.modules["tensorflow"].cast(value, dtype))
        self._shared_at = tensor.data_ptr() if can_share and not self._keeps_to_itself else None
        self._followed = None

    def pull(self) -> None:
        """Let torch have the values of TensorFlow; the next `push` gives them back."""
        self._copy(self.variable)
        self._shared_at = self._followed = None

    def follow(self, value: Any = None) -> None:
        """Take over what TensorFlow has written since the last `push`, if it has.

        Args:
            value: of the variable, where it is known already, from a graph that ran after the last
                `push`.
        """
        torch_leads = (
            value is None and self._shared_at is None and self._followed != self.tensor._version
        )
        if not torch_leads and self._copy(self.variable if value is None else value):
            self._shared_at, self._followed = None, self.tensor._version

    def _reading(self) -> Any:
        """Return `self.variable.value()`, in a third of the time: each variable is read at each
        step.
        """
        variable = self.variable
        return sys.modules["tensorflow"].raw_ops.ReadVariableOp(
            resource=variable.handle, dtype=variable.dtype
        )

    def _is_copied_when_read(self) -> bool:
        """Look whether TensorFlow has gone over to copies: otherwise two readings at a time have
        one memory.
        """
        readings = [self._reading() for _ in range(2)]
        return _address(readings[0]) != _address(readings[1])

    def _copy(self, value: Any) -> bool:
        """Copy a value unless it is the same memory; says whether it was copied."""
        found = to_torch(value)
        if found.data_ptr() == self.tensor.data_ptr():
            return False
        with torch.no_grad():
            self.tensor.copy_(found)
        return True
