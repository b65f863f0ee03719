"""Device meshes that are made once, and a Lightning strategy that reuses its mesh in later runs."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from lightning.pytorch import strategies
from torch.distributed import device_mesh

_init_device_mesh = device_mesh.init_device_mesh
_meshes_by_group: weakref.WeakKeyDictionary[Any, dict[Any, device_mesh.DeviceMesh]] = (
    weakref.WeakKeyDictionary()
)
"""Meshes by their default process group: they are invalid once it is destroyed."""


def cached_device_mesh(
    device_type: str, mesh_shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...] | None = None
) -> device_mesh.DeviceMesh:
    """Return a device mesh; the same arguments give the same mesh.

    Each mesh has separate process groups, which hold threads, GPU memory and connections until the
    process ends.
    """
    meshes = _meshes_by_group.setdefault(dist.group.WORLD, {})
    key = (device_type, tuple(mesh_shape), mesh_dim_names)
    if key not in meshes:
        meshes[key] = _init_device_mesh(device_type, mesh_shape, mesh_dim_names=mesh_dim_names)
    return meshes[key]


class ModelParallelStrategy(strategies.ModelParallelStrategy):
    """As Lightning's, but reuses the mesh of an earlier run of the same sizes."""

    def setup_environment(self) -> None:
        """Make the process groups."""
        with _kept_for_lightning():
            super().setup_environment()


@contextlib.contextmanager
def _kept_for_lightning() -> Iterator[None]:
    """Let Lightning, which imports torch's function at the call, get the one of this module."""
    module: Any = device_mesh
    before = module.init_device_mesh
    module.init_device_mesh = cached_device_mesh
    try:
        yield
    finally:
        module.init_device_mesh = before
