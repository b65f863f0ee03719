"""Prepare a process for DeepSpeed: its devices and its process group.

`deepspeed` is imported only when a function is called.
"""

from __future__ import annotations

import atexit
import gc
import os
from importlib import import_module
from typing import Any

import torch.distributed as dist


def prepare_deepspeed(device: str) -> None:
    """Prepare for DeepSpeed: choose its devices, and make a process group for a single process.

    Args:
        device: type of the device, such as `cpu`.
    """
    choose_accelerator(device)
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return
    # DeepSpeed reads this variable.
    os.environ.setdefault("LOCAL_RANK", "0")
    backend = "nccl" if device == "cuda" else "gloo"
    # torch does not declare the stores.
    stores: Any = dist
    dist.init_process_group(backend, store=stores.HashStore(), rank=0, world_size=1)
    atexit.register(_destroy_process_group)


def choose_accelerator(device: str) -> None:
    """Choose DeepSpeed's devices before its first import.

    By default it uses GPUs if the machine has any.

    Args:
        device: type of the device, such as `cpu`.

    Raises:
        RuntimeError: it uses other devices already.
    """
    os.environ.setdefault("DS_ACCELERATOR", device)
    get_accelerator = import_module("deepspeed.accelerator").get_accelerator
    if device == "cpu":
        # Do not compile this operation, which takes a minute: gloo replaces it.
        import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    chosen = get_accelerator().device_name()
    if chosen.partition(":")[0] != device:
        raise RuntimeError(
            f"deepspeed works on {chosen!r}, not {device!r}: set DS_ACCELERATOR={device} at the "
            "start."
        )


def _destroy_process_group() -> None:
    """Destroy the process group at the end of the process, because torch warns otherwise."""
    if dist.is_initialized():
        # Engines that are garbage still hold the group.
        gc.collect()
        dist.destroy_process_group()
