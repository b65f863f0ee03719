"""Grids of processes that are made once, and a strategy of Lightning that does not make its own anew for each run."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from lightning.pytorch import strategies
from torch.distributed import device_mesh

_init_device_mesh = device_mesh.init_device_mesh
_made: weakref.WeakKeyDictionary[Any, dict[Any, device_mesh.DeviceMesh]] = weakref.WeakKeyDictionary()
"""By the group of all processes that they are of: those of a group that was left lead nowhere."""


def kept_device_mesh(
    device_type: str, mesh_shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...] | None = None
) -> device_mesh.DeviceMesh:
    """As `torch.distributed.init_device_mesh`, but gives the same grid for the same arguments.

    Each grid has groups of its own, which hold threads, memory of the GPU and connections until the process ends.
    """
    grids = _made.setdefault(dist.group.WORLD, {})
    kind = device_type, tuple(mesh_shape), mesh_dim_names
    if kind not in grids:
        grids[kind] = _init_device_mesh(device_type, mesh_shape, mesh_dim_names=mesh_dim_names)
    return grids[kind]


class ModelParallelStrategy(strategies.ModelParallelStrategy):
    """As Lightning's, whose grid is that of an earlier run where there was one of the same sizes."""

    def setup_environment(self) -> None:
        """Form the groups."""
        with _kept_for_lightning():
            super().setup_environment()


@contextlib.contextmanager
def _kept_for_lightning() -> Iterator[None]:
    """Let Lightning, which imports torch's function when it calls it, find the one of this module."""
    place: Any = device_mesh
    before, place.init_device_mesh = place.init_device_mesh, kept_device_mesh
    try:
        yield
    finally:
        place.init_device_mesh = before
