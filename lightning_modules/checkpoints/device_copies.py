"""Copy tensors of a GPU to main memory while it computes."""

from __future__ import annotations

from typing import Any

import torch


class DeviceCopies:
    """Copies tensors of one device to page-locked memory, on a stream of its own.

    The host does not wait for the device. Kernels that the training queues after `end` wait for the copies, so that no
    step changes a weight before it is copied.

    Args:
        device: of the tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self._module: Any = torch.get_device_module(device)
        self._stream = self._module.Stream(device)
        self._device = device
        self._done: Any = None

    def copy(self, tensor: torch.Tensor, memory: torch.Tensor) -> None:
        """Queue a copy to `memory`, after all that the training has queued so far."""
        self._stream.wait_stream(self._module.current_stream(self._device))
        with self._module.stream(self._stream):
            memory.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._stream)

    def end(self) -> None:
        """Let the training's later kernels wait for the copies."""
        self._done = self._stream.record_event()
        self._module.current_stream(self._device).wait_event(self._done)

    def wait(self) -> None:
        """Wait until the copies are there; called by the thread that writes them."""
        if self._done is not None:
            self._done.synchronize()
