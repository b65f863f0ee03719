"""Attention over sequences sharded across processes, with some of the heads in each process (Ulysses).

Before attention an all-to-all turns shards of the sequence with all heads into whole sequences with some heads. So any
kernel computes attention over a whole sequence; another all-to-all restores the shards. From Jacobs et al., DeepSpeed
Ulysses (arXiv:2309.14509), section 3.1; the exchange is torch's own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from .ring_attention import AttentionCalls, ContextParallelStrategy, repeated_heads, replaced_attention

_HEADS, _SEQUENCE = 1, 2
"""Dimensions of the inputs of attention: (batch, heads, positions, features)."""


@contextlib.contextmanager
def ulysses_attention(
    mesh: DeviceMesh, buffers: Sequence[torch.Tensor], dims: Sequence[int], *, kept: set[torch.Tensor] | None = None
) -> Iterator[AttentionCalls]:
    """As `ring_attention`, but each process has consecutive positions, and computes some of the heads for all of them.

    Args:
        mesh: the processes that share a sequence; of one dimension.
        buffers: tensors that are resized, in place, to the part of this process.
        dims: the dimension of the positions in each; their number is a multiple of the processes.
        kept: those of them that need not be whole again after the block.

    Raises:
        ValueError: there is no tensor to split, or in the block attention is called in a way that is not exchanged.
    """
    if not buffers:
        raise ValueError("Sequence parallel: there is no tensor to split. Pass buffers and buffer_seq_dims.")
    whole = [buffer.clone() for buffer in buffers]
    for buffer, dim in zip(buffers, dims, strict=True):
        _become(buffer, buffer.chunk(mesh.size(), dim)[mesh.get_local_rank()].clone())
    attend = functools.partial(_attend, group=mesh.get_group(), size=mesh.size())
    try:
        with replaced_attention("sp_size", attend) as calls:
            yield calls
    finally:
        for buffer, before in zip(buffers, whole, strict=True):
            if buffer not in (kept or set()):
                _become(buffer, before)


def _become(buffer: torch.Tensor, other: torch.Tensor) -> None:
    with torch.no_grad():
        buffer.resize_(other.shape).copy_(other)


def _attend(
    attention: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    group: Any,
    size: int,
    enable_gqa: bool,
    **options: Any,
) -> torch.Tensor:
    """Compute attention between two exchanges."""
    if query.shape[_HEADS] % size:
        raise ValueError(f"sp_size={size} does not divide the {query.shape[_HEADS]} heads of attention.")
    if key.shape[_HEADS] % size:  # each process needs a copy of some heads
        key, value = repeated_heads(query, key, value)
        enable_gqa = False
    query, key, value = (_Exchange.apply(tensor, group, _HEADS, _SEQUENCE) for tensor in (query, key, value))
    return _Exchange.apply(attention(query, key, value, enable_gqa=enable_gqa, **options), group, _SEQUENCE, _HEADS)


class _Exchange(torch.autograd.Function):
    """Shard one dimension and gather another by an all-to-all; the backward pass reverses it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any, given: int, got: int) -> torch.Tensor:
        ctx.way = group, got, given
        return _exchanged(tensor, group, given, got)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _exchanged(gradients[0], *ctx.way), None, None, None


def _exchanged(tensor: torch.Tensor, group: Any, given: int, got: int) -> torch.Tensor:
    parts = torch.stack(tensor.chunk(dist.get_world_size(group), given))
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    return torch.cat(received.unbind(), got)


class SequenceParallelStrategy(ContextParallelStrategy):
    """As `ContextParallelStrategy`, but each of the processes that share a sequence computes some of the heads.

    Args:
        sequence_parallel_size: processes that share a sequence; divides `data_parallel_size` and the number of heads.
        options: those of `ModelParallelStrategy`; sizes as numbers.
    """

    def __init__(self, *, sequence_parallel_size: int, **options: Any) -> None:
        super().__init__(context_parallel_size=sequence_parallel_size, **options)

    def split_sequences(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], kept: set[torch.Tensor] | None
    ) -> contextlib.AbstractContextManager[AttentionCalls]:
        """Shard the tensors over the processes, in place, see `ulysses_attention`."""
        return ulysses_attention(self.context_mesh, buffers, dims, kept=kept)

    def _choose_rotation(self) -> None:
        """Do nothing: keys and values are not rotated."""
