"""Cached device meshes, and a Lightning strategy that reuses its mesh in later runs."""

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
"""Meshes by default process group. They become invalid when it is destroyed."""


def cached_device_mesh(
    device_type: str, mesh_shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...] | None = None
) -> device_mesh.DeviceMesh:
    """Return a device mesh, which is the same object for the same arguments.

    Each new mesh would create process groups, which hold threads, GPU memory and connections until
    the process exits.
    """
    meshes = _meshes_by_group.setdefault(dist.group.WORLD, {})
    key = (device_type, tuple(mesh_shape), mesh_dim_names)
    if key not in meshes:
        meshes[key] = _init_device_mesh(device_type, mesh_shape, mesh_dim_names=mesh_dim_names)
    return meshes[key]


class ModelParallelStrategy(strategies.ModelParallelStrategy):
    """As Lightning's, but reuses the mesh of an earlier run with the same sizes."""

    def setup_environment(self) -> None:
        """Create the process groups."""
        with _cached_for_lightning():
            super().setup_environment()


@contextlib.contextmanager
def _cached_for_lightning() -> Iterator[None]:
    """Replace torch's `init_device_mesh`, which Lightning imports when it calls it."""
    module: Any = device_mesh
    before = module.init_device_mesh
    module.init_device_mesh = cached_device_mesh
    try:
        yield
    finally:
        module.init_device_mesh = before
