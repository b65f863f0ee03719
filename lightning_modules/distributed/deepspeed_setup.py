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
    """Select DeepSpeed's accelerator, and create the process group of a single process.

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
    """Select DeepSpeed's accelerator before its first import.

    By default, DeepSpeed uses GPUs if the machine has any.

    Args:
        device: type of the device, such as `cpu`.

    Raises:
        RuntimeError: DeepSpeed uses another accelerator already.
    """
    os.environ.setdefault("DS_ACCELERATOR", device)
    get_accelerator = import_module("deepspeed.accelerator").get_accelerator
    if device == "cpu":
        # Do not compile this operation, because that takes a minute. gloo is used instead.
        import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    chosen = get_accelerator().device_name()
    if chosen.partition(":")[0] != device:
        raise RuntimeError(
            f"DeepSpeed uses {chosen!r} instead of {device!r}: set DS_ACCELERATOR={device} before "
            "it is imported."
        )


def _destroy_process_group() -> None:
    """Destroy the process group at exit; otherwise torch warns."""
    if dist.is_initialized():
        # Unreachable engines still hold the group.
        gc.collect()
        dist.destroy_process_group()
