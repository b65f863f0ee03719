"""Tensors that torch and TensorFlow share: arguments, results, and variables."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64
"""Alignment of TensorFlow's memory in bytes; its kernels crash on memory that is not aligned."""


def to_tensorflow(value: object) -> Any:
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
    return tensorflow.experimental.dlpack.from_dlpack(_shareable(value).__dlpack__())


def _shareable(tensor: Tensor) -> Tensor:
    """Return a tensor, or a copy whose memory TensorFlow can use."""
    tensor = tensor.contiguous()
    if not _is_aligned(tensor):
        tensor = tensor.clone()
    return tensor


def _is_aligned(tensor: Tensor) -> bool:
    """Return whether TensorFlow can use the memory of a tensor."""
    return not tensor.is_cpu or tensor.data_ptr() % ALIGNMENT == 0


def to_torch(value: object) -> Any:
    """Return a tensor or variable of TensorFlow as a tensor of torch, with the same memory.

    Args:
        value: a tensor of either library, or anything that `torch.as_tensor` accepts; None and
            tensors of torch are returned unchanged.
    """
    if value is None or isinstance(value, Tensor):
        return value
    tensorflow = sys.modules["tensorflow"]
    if not tensorflow.is_tensor(value):
        return torch.as_tensor(value)
    if not isinstance(value, tensorflow.Tensor):
        value = tensorflow.convert_to_tensor(value)
    return torch.from_dlpack(value)


def _address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory; the tensor may be of TensorFlow."""
    return torch.from_dlpack(tensor).data_ptr()


class SharedVariable:
    """A variable of TensorFlow and a tensor of torch with the same values.

    `assign` of TensorFlow adopts the memory of the assigned tensor, so both have the same memory
    after the first `write`: TensorFlow reads what an optimizer of torch writes there, through
    `.data` or not. TensorFlow itself writes to new memory, which `copy_changes` copies. Memory that
    cannot be shared is copied at each `write`. This is the case for embeddings: once rows of a
    variable were looked up, TensorFlow copies the variable at each access.

    Args:
        variable: a variable of TensorFlow.
    """

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self.tensor = to_torch(variable).clone()
        self._shared_address: int | None = None
        """Address of the memory that TensorFlow has adopted; None if it has not."""
        self._copied_version: int | None = None
        """Version of the tensor when it was last copied from TensorFlow."""
        self._copies_on_access = False
        """Whether TensorFlow copies the variable when it is read or assigned to."""

    def write(self) -> None:
        """Give TensorFlow the values of torch, unless its variable has newer values."""
        tensor = self.tensor
        if self._shared_address == tensor.data_ptr():
            if _address(self._current_value()) == self._shared_address:
                return

            # The variable has other memory than the tensor: TensorFlow has assigned to it, or
            # copies it at each access.
            self._copies_on_access = self._is_copied_on_read()
            if not self._copies_on_access:
                self.copy_changes()
        if self._copied_version == tensor._version:
            return

        value = to_tensorflow(tensor)
        dtype = self.variable.dtype
        has_fitting_memory = tensor.is_cpu and tensor.is_contiguous() and _is_aligned(tensor)
        can_share = has_fitting_memory and value.dtype == dtype
        if not can_share:
            value = sys.modules["tensorflow"].cast(value, dtype)
        self.variable.assign(value)
        self._shared_address = None
        if can_share and not self._copies_on_access:
            self._shared_address = tensor.data_ptr()
        self._copied_version = None

    def read(self) -> None:
        """Give torch the values of TensorFlow; the next `write` assigns them again."""
        self._copy(self.variable)
        self._shared_address = None
        self._copied_version = None

    def copy_changes(self, value: object = None) -> None:
        """Copy what TensorFlow has written since the last `write`, if anything.

        Args:
            value: the value of the variable, if a graph that ran after the last `write` has
                returned it.
        """
        if value is None:
            # If the memory is not shared, and the tensor was changed after it was copied, torch has
            # the newer values.
            is_shared = self._shared_address is not None
            if not is_shared and self._copied_version != self.tensor._version:
                return
            value = self.variable
        if self._copy(value):
            self._shared_address = None
            self._copied_version = self.tensor._version

    def _current_value(self) -> Any:
        """Return `self.variable.value()` in a third of the time.

        Each variable is read at each step.
        """
        variable = self.variable
        return sys.modules["tensorflow"].raw_ops.ReadVariableOp(
            resource=variable.handle, dtype=variable.dtype
        )

    def _is_copied_on_read(self) -> bool:
        """Return whether two values that are read have different memory."""
        first = self._current_value()
        second = self._current_value()
        return _address(first) != _address(second)

    def _copy(self, value: object) -> bool:
        """Copy a value unless it has the same memory; return whether it was copied."""
        tensor = to_torch(value)
        if tensor.data_ptr() == self.tensor.data_ptr():
            return False
        with torch.no_grad():
            self.tensor.copy_(tensor)
        return True
