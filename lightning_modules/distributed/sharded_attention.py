"""Common parts of ring and Ulysses attention: replacing torch's function, process groups."""

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
    """Counts the calls of attention while sequences are sharded.

    Zero means that the model does not call `scaled_dot_product_attention`.
    """

    count: int = 0


@contextlib.contextmanager
def replaced_attention(
    argument: str, attend: Callable[..., torch.Tensor]
) -> Iterator[AttentionCalls]:
    """Replace torch's `scaled_dot_product_attention` within the `with` block.

    Args:
        argument: name of the user's argument, such as `cp_size`, for errors.
        attend: the replacement. It is called with torch's function, query, key, value, and
            `is_causal=True`, `scale` and `enable_gqa`.

    Raises:
        ValueError: attention is called with arguments that are not supported for sharded sequences.
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

    # A model that imported the function by name still calls the original, so its calls are not
    # counted.
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
    """Describe an unsupported argument of a call; None if all are supported."""
    if mask is not None:
        return (
            "an attn_mask: sharded sequences support only the causal mask; do not pass a mask, and "
            "pad on the right"
        )
    if not is_causal:
        return "is_causal=False: sharded sequences support only causal attention"
    if dropout > 0:
        return (
            f"dropout_p={dropout}: each rank would draw a different mask; set the attention "
            "dropout to 0"
        )
    if query.ndim != 4 or query.shape[2:3] != key.shape[2:3]:
        return (
            f"query of shape {tuple(query.shape)} and key of shape {tuple(key.shape)}: both must "
            "be (batch, heads, positions, features) with the same number of positions"
        )
    return None


def repeated_heads(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Repeat key and value heads to match the query, for grouped-query attention."""
    groups = query.shape[1] // key.shape[1]
    return key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)


class SharedSequencesStrategy(ModelParallelStrategy):
    """Model-parallel strategy in which neighbouring ranks of a data-parallel group share sequences.

    Args:
        context_parallel_size: number of ranks that share a sequence. It must divide
            `data_parallel_size`, which includes them.
        options: arguments of `ModelParallelStrategy`, with sizes as numbers.
    """

    def __init__(self, *, context_parallel_size: int, **options: Any) -> None:
        super().__init__(**options)
        self.context_parallel_size = context_parallel_size
        self._context_mesh: DeviceMesh | None = None

    def setup_environment(self) -> None:
        """Create Lightning's process groups, then those that share sequences."""
        super().setup_environment()
        # In Lightning's mesh, ranks that share a sequence belong to the data-parallel dimension.
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
        """Return the mesh of the ranks that share sequences with this one."""
        assert self._context_mesh is not None, "setup_environment comes first"
        return self._context_mesh

    def split_sequences(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], kept: set[torch.Tensor] | None
    ) -> contextlib.AbstractContextManager[AttentionCalls]:
        """Shard tensors over the ranks in place, within a `with` block.

        Attention within the block is computed over the full sequences.

        Args:
            buffers: tensors that are resized to the shard of this rank.
            dims: the sequence dimension of each buffer.
            kept: buffers that need not be restored after the block.
        """
        raise NotImplementedError
