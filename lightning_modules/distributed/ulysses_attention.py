"""Ulysses attention over sharded sequences, where each rank computes some of the heads.

Before attention, an all-to-all converts sequence shards with all heads to full sequences with some
of the heads, so that any attention kernel can be used. After attention, another all-to-all converts
back. See Jacobs et al., DeepSpeed Ulysses (arXiv:2309.14509), section 3.1.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from .sharded_attention import (
    AttentionCalls,
    SharedSequencesStrategy,
    repeated_heads,
    replaced_attention,
)

_HEADS = 1
_SEQUENCE = 2
"""Dimensions of the inputs of attention: (batch, heads, positions, features)."""


@contextlib.contextmanager
def ulysses_attention(
    mesh: DeviceMesh,
    buffers: Sequence[torch.Tensor],
    dims: Sequence[int],
    *,
    kept: set[torch.Tensor] | None = None,
) -> Iterator[AttentionCalls]:
    """Shard sequences within the `with` block. Each rank computes some heads for all positions.

    Used like `ring_attention`. The shard of each rank has consecutive positions.

    Args:
        mesh: one-dimensional mesh of the ranks that share a sequence.
        buffers: tensors that are resized in place to the shard of this rank.
        dims: the sequence dimension of each buffer. Its size must be divisible by the mesh size.
        kept: buffers that need not be restored after the block.

    Raises:
        ValueError: `buffers` is empty, or attention is called with unsupported arguments.
    """
    if not buffers:
        raise ValueError(
            "Sequence parallel: no tensors to split. Pass buffers and buffer_seq_dims."
        )

    # The buffers are resized in place, and restored from these copies.
    full_buffers = [buffer.clone() for buffer in buffers]
    for buffer, dim in zip(buffers, dims, strict=True):
        shards = buffer.chunk(mesh.size(), dim)
        _set(buffer, shards[mesh.get_local_rank()].clone())
    try:
        with replaced_attention(
            "sp_size", functools.partial(_attend, group=mesh.get_group())
        ) as calls:
            yield calls
    finally:
        for buffer, before in zip(buffers, full_buffers, strict=True):
            if kept is None or buffer not in kept:
                _set(buffer, before)


def _set(buffer: torch.Tensor, value: torch.Tensor) -> None:
    with torch.no_grad():
        buffer.resize_(value.shape).copy_(value)


def _attend(
    attention: Callable[..., torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    group: dist.ProcessGroup,
    enable_gqa: bool,
    **options: object,
) -> torch.Tensor:
    """Compute attention between two all-to-alls."""
    world_size = group.size()
    if query.shape[_HEADS] % world_size:
        raise ValueError(
            f"sp_size={world_size} does not divide the {query.shape[_HEADS]} attention heads."
        )

    # Repeat key and value heads if they cannot be distributed evenly over the ranks.
    if key.shape[_HEADS] % world_size:
        key, value = repeated_heads(query, key, value)
        enable_gqa = False

    attended_heads = attention(
        _Exchange.apply(query, _HEADS, _SEQUENCE, group),
        _Exchange.apply(key, _HEADS, _SEQUENCE, group),
        _Exchange.apply(value, _HEADS, _SEQUENCE, group),
        enable_gqa=enable_gqa,
        **options,
    )
    return _Exchange.apply(attended_heads, _SEQUENCE, _HEADS, group)


class _Exchange(torch.autograd.Function):
    """Shard one dimension and gather another by an all-to-all, with the reverse as backward pass.

    torch's own functions for this are deprecated or private.
    """

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, sharded: int, gathered: int, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.reverse = (gathered, sharded, group)
        return _exchanged(tensor, sharded, gathered, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _exchanged(gradients[0], *ctx.reverse), None, None, None


def _exchanged(
    tensor: torch.Tensor, sharded: int, gathered: int, group: dist.ProcessGroup
) -> torch.Tensor:
    # One part for each rank. The received parts are ordered by rank.
    parts = torch.stack(tensor.chunk(group.size(), sharded))
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    return torch.cat(received.unbind(), gathered)


class SequenceParallelStrategy(SharedSequencesStrategy):
    """Model-parallel strategy in which neighbouring ranks share sequences with Ulysses attention.

    Args:
        sequence_parallel_size: number of ranks that share a sequence. It must divide
            `data_parallel_size` and the number of heads.
        options: arguments of `ModelParallelStrategy`, with sizes as numbers.
    """

    def __init__(self, *, sequence_parallel_size: int, **options: Any) -> None:
        super().__init__(context_parallel_size=sequence_parallel_size, **options)

    def split_sequences(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], kept: set[torch.Tensor] | None
    ) -> contextlib.AbstractContextManager[AttentionCalls]:
        """Shard the tensors in place, see `ulysses_attention`."""
        return ulysses_attention(self.context_mesh, buffers, dims, kept=kept)
