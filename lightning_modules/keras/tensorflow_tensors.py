"""Share the memory of arguments, results and variables between torch and TensorFlow."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64
"""Alignment of TensorFlow's memory in bytes; its kernels crash on unaligned memory."""


def to_tensorflow(value: object) -> Any:
    """Convert a torch tensor to a TensorFlow tensor, sharing the memory if possible.

    Args:
        value: a tensor, which is detached; anything else is returned unchanged.
    """
    if not isinstance(value, Tensor):
        return value
    tensorflow = sys.modules["tensorflow"]
    value = value.detach()
    if value.is_cuda and not tensorflow.config.list_logical_devices("GPU"):
        value = value.cpu()
    return tensorflow.experimental.dlpack.from_dlpack(_shareable(value).__dlpack__())


def _shareable(tensor: Tensor) -> Tensor:
    """Return a tensor, or a copy if TensorFlow cannot use its memory."""
    tensor = tensor.contiguous()
    if not _is_aligned(tensor):
        tensor = tensor.clone()
    return tensor


def _is_aligned(tensor: Tensor) -> bool:
    """Return whether TensorFlow can use the memory of a tensor."""
    return not tensor.is_cpu or tensor.data_ptr() % ALIGNMENT == 0


def to_torch(value: object) -> Any:
    """Convert a TensorFlow tensor or variable to a torch tensor, sharing the memory.

    Args:
        value: a tensor of either library, or anything that `torch.as_tensor` accepts; None and
            torch tensors are returned unchanged.
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
    """Return the memory address of a tensor of torch or TensorFlow."""
    return torch.from_dlpack(tensor).data_ptr()


class SharedVariable:
    """A TensorFlow variable and a torch tensor with the same values.

    TensorFlow's `assign` adopts the memory of the assigned tensor, so both share their memory after
    the first `write`: TensorFlow sees everything that a torch optimizer writes, even through
    `.data`. TensorFlow itself writes to new memory, which `copy_changes` copies to torch. If the
    memory cannot be shared, each `write` copies it. This is the case for embeddings: once rows of a
    variable have been looked up, TensorFlow copies the variable at each access.

    Args:
        variable: a TensorFlow variable.
    """

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self.tensor = to_torch(variable).clone()
        self._shared_address: int | None = None
        """Address of the memory that TensorFlow has adopted; None if memory is not shared."""
        self._copied_version: int | None = None
        """Version of the tensor after it was last copied from TensorFlow."""
        self._copies_on_access = False
        """Whether TensorFlow copies the variable when it is read or assigned to."""

    def write(self) -> None:
        """Copy torch's values to TensorFlow, unless its variable has newer values."""
        tensor = self.tensor
        if self._shared_address == tensor.data_ptr():
            if _address(self._current_value()) == self._shared_address:
                return

            # The variable no longer shares the tensor's memory. Either TensorFlow has assigned to
            # the variable, or copies it at each access.
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
        """Copy TensorFlow's values to torch; the next `write` assigns them again."""
        self._copy(self.variable)
        self._shared_address = None
        self._copied_version = None

    def copy_changes(self, value: object = None) -> None:
        """Copy what TensorFlow has written since the last `write`, if anything.

        Args:
            value: the value of the variable, if a graph that ran after the last `write` returned
                it; None to read the variable.
        """
        if value is None:
            # If the memory is not shared and the tensor has changed since it was copied, torch has
            # the newer values.
            is_shared = self._shared_address is not None
            if not is_shared and self._copied_version != self.tensor._version:
                return
            value = self.variable
        if self._copy(value):
            self._shared_address = None
            self._copied_version = self.tensor._version

    def _current_value(self) -> Any:
        """Return the same as `self.variable.value()`, in a third of the time.

        The time matters because every variable is read at each step.
        """
        variable = self.variable
        return sys.modules["tensorflow"].raw_ops.ReadVariableOp(
            resource=variable.handle, dtype=variable.dtype
        )

    def _is_copied_on_read(self) -> bool:
        """Return whether reading the variable twice returns different memory."""
        first = self._current_value()
        second = self._current_value()
        return _address(first) != _address(second)

    def _copy(self, value: object) -> bool:
        """Copy a value unless it shares the tensor's memory; return whether it was copied."""
        tensor = to_torch(value)
        if tensor.data_ptr() == self.tensor.data_ptr():
            return False
        with torch.no_grad():
            self.tensor.copy_(tensor)
        return True
