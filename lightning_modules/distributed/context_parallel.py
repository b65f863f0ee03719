"""Lightning's strategy for processes that share sequences (context parallel), and the model's parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .ring_attention import AttentionCalls, ring_attention, set_rotation

__all__ = ["ContextParallelStrategy"]


class ContextParallelStrategy(ModelParallelStrategy):
    """As Lightning's `ModelParallelStrategy`, but neighbours among the processes that shard the model share sequences.

    Args:
        context_parallel_size: how many share each; divides `data_parallel_size`, which has them all.
        rotation: see `ring_attention.set_rotation`.
        options: those of `ModelParallelStrategy`; sizes as numbers.
    """

    def __init__(self, *, context_parallel_size: int, rotation: str = "allgather", **options: Any) -> None:
        super().__init__(**options)
        self.context_parallel_size = context_parallel_size
        self.rotation = rotation
        self._context_mesh: DeviceMesh | None = None

    def setup_environment(self) -> None:
        """Form the groups that share sequences, after those that Lightning forms."""
        super().setup_environment()
        sharding, splitting = self.device_mesh["data_parallel"].size(), self.device_mesh["tensor_parallel"].size()
        sizes = (sharding // self.context_parallel_size, self.context_parallel_size, splitting)
        names = ("data", "context_parallel", "tensor_parallel")
        self._context_mesh = init_device_mesh(self.device_mesh.device_type, sizes, mesh_dim_names=names)[names[1]]
        set_rotation(self.rotation)

    @property
    def context_mesh(self) -> DeviceMesh:
        """The processes with which this one shares sequences."""
        assert self._context_mesh is not None, "setup_environment comes first"
        return self._context_mesh

    def split_sequences(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], kept: set[torch.Tensor] | None
    ) -> contextlib.AbstractContextManager[AttentionCalls]:
        """Let each process have its part of the tensors, in place, see `ring_attention`."""
        return ring_attention(self.context_mesh, buffers, dims, kept=kept)
