"""Common parts of ring and Ulysses attention: the replaced function of torch, process groups."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from .device_meshes import ModelParallelStrategy, cached_device_mesh


@dataclass
class AttentionCalls:
    """Number of calls of attention while sequences were sharded.

    Zero tells that the model uses another function for attention.
    """

    count: int = 0


@contextlib.contextmanager
def replaced_attention(
    argument: str, attend: Callable[..., torch.Tensor]
) -> Iterator[AttentionCalls]:
    """Replace torch's `scaled_dot_product_attention` in the block by one over sharded sequences.

    Args:
        argument: the user's argument, such as `cp_size`, for errors.
        attend: called with torch's function, query, key, value, and `is_causal=True`, `scale` and
            `enable_gqa`.

    Raises:
        ValueError: attention is called in a way that sharded sequences do not support.
    """
    torch_attention = functional.scaled_dot_product_attention
    calls = AttentionCalls()

    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        problem = _problem(query, key, attn_mask, dropout_p, is_causal)
        if problem is not None:
            raise ValueError(
                f"{argument} above 1: the model calls scaled_dot_product_attention with {problem}."
            )
        calls.count += 1
        return attend(
            torch_attention, query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa
        )

    # A model that has imported the function itself is not reached: its calls are not counted.
    functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield calls
    finally:
        functional.scaled_dot_product_attention = torch_attention


def _problem(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
) -> str | None:
    """Describe the unsupported part of a call; None if everything is supported."""
    if mask is not None:
        return (
            "an attn_mask: sharded sequences have the causal mask only; leave masks out, and pad "
            "on the right"
        )
    if not is_causal:
        return "is_causal=False: sharded sequences have causal attention only"
    if dropout > 0:
        return (
            f"dropout_p={dropout}: ranks would draw their own masks; set the attention's dropout "
            "to 0"
        )
    if query.ndim != 4 or query.shape[2:3] != key.shape[2:3]:
        return (
            f"query of shape {tuple(query.shape)} and key of shape {tuple(key.shape)}: both have "
            "to be (batch, heads, positions, features) with the same number of positions"
        )
    return None


def repeated_heads(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values with as many heads as the query, for grouped queries."""
    groups = query.shape[1] // key.shape[1]
    return key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)


class SharedSequencesStrategy(ModelParallelStrategy):
    """Model-parallel strategy in which neighbouring processes of a sharding group share sequences.

    Args:
        context_parallel_size: processes that share a sequence; divides `data_parallel_size`, which
            includes them.
        options: those of `ModelParallelStrategy`; sizes as numbers.
    """

    def __init__(self, *, context_parallel_size: int, **options: Any) -> None:
        super().__init__(**options)
        self.context_parallel_size = context_parallel_size
        self._context_mesh: DeviceMesh | None = None

    def setup_environment(self) -> None:
        """Make the groups that share sequences, after those of Lightning."""
        super().setup_environment()
        # Lightning counts the ranks that share a sequence as data parallel, see the class.
        sizes = (
            self.device_mesh["data_parallel"].size() // self.context_parallel_size,
            self.context_parallel_size,
            self.device_mesh["tensor_parallel"].size(),
        )
        names = ("data", "context_parallel", "tensor_parallel")
        mesh = cached_device_mesh(self.device_mesh.device_type, sizes, mesh_dim_names=names)
        self._context_mesh = mesh["context_parallel"]

    @property
    def context_mesh(self) -> DeviceMesh:
        """Return the mesh of the processes that share sequences with this one."""
        assert self._context_mesh is not None, "setup_environment comes first"
        return self._context_mesh

    def split_sequences(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], kept: set[torch.Tensor] | None
    ) -> contextlib.AbstractContextManager[AttentionCalls]:
        """Shard tensors over the processes, in place, for a block.

        Attention in the block is computed over the whole sequences.

        Args:
            buffers: tensors that are resized to the part of this process.
            dims: the dimension of the positions in each.
            kept: buffers that need not be restored after the block.
        """
        raise NotImplementedError
