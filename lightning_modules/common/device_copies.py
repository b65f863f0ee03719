"""Copies between the memory of the host and that of a device, for which the host waits as seldom as it can."""

from __future__ import annotations

from typing import Any

import torch

from .nested import leaves, map_nested, to_device

WITH_PAGE_LOCKS = ("cuda", "xpu")
"""Devices that copy from page-locked memory while the host goes on."""


def to_device_without_waiting(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a small tensor that was made here to a device, by way of page-locked memory where the device knows it."""
    if device.type in WITH_PAGE_LOCKS and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return to_device(tensor, device, non_blocking=False)


def to_host(data: Any) -> Any:
    """Copy tensors, however nested, to the memory of the host, which waits once for each device that has some.

    The copies of a device end in their order, so only the last one is waited for. That is the largest tensor: the
    others take page-locked memory meanwhile, of which there should not be much.
    """
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for leaf in leaves(data):
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
            by_device.setdefault(leaf.device, []).append(leaf)

    copies: dict[int, torch.Tensor] = {}
    for tensors in by_device.values():
        tensors.sort(key=torch.Tensor.numel)
        for tensor in tensors[:-1]:
            copies[id(tensor)] = tensor.detach().to("cpu", non_blocking=True)
        copies[id(tensors[-1])] = tensors[-1].detach().cpu()

    return map_nested(lambda leaf: copies.get(id(leaf), leaf), data)
