"""Copy tensors between CPU and device with as few synchronisations as possible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .nested import leaves, map_nested

PINNED_MEMORY_DEVICES = ("cuda", "xpu")
"""Device types that support asynchronous copies from pinned memory."""


def to_device_async(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a small CPU tensor to a device, asynchronously from pinned memory if possible."""
    if device.type not in PINNED_MEMORY_DEVICES or tensor.device.type != "cpu":
        return tensor.to(device)
    page_locked = tensor.pin_memory()
    return page_locked.to(device, non_blocking=True)


def to_host(data: object) -> Any:
    """Copy nested tensors to the CPU.

    Synchronises once for each device.
    """
    copies: dict[int, torch.Tensor] = {}
    for tensors in _tensors_by_device(data):
        # Copies from a device complete in order, so only wait for the last one. Copy the largest
        # tensor last, because the asynchronous copies before it allocate pinned memory.
        tensors.sort(key=torch.Tensor.numel)
        largest = tensors.pop()
        for tensor in tensors:
            detached = tensor.detach()
            copies[id(tensor)] = detached.to("cpu", non_blocking=True)

        detached = largest.detach()
        copies[id(largest)] = detached.cpu()

    def copied(leaf: object) -> Any:
        return copies.get(id(leaf), leaf)

    return map_nested(copied, data)


def _tensors_by_device(data: object) -> Iterable[list[torch.Tensor]]:
    """Group the tensors in nested data that are not on the CPU by device."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for leaf in leaves(data):
        if not isinstance(leaf, torch.Tensor):
            continue
        if leaf.device.type == "cpu":
            continue
        tensors_of_device = by_device.setdefault(leaf.device, [])
        tensors_of_device.append(leaf)
    return by_device.values()
