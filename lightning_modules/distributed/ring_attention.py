"""Ring attention over sharded sequences with torch's `context_parallel`."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from .sharded_attention import (
    AttentionCalls,
    SharedSequencesStrategy,
    repeated_heads,
    replaced_attention,
)

# Kernels with a ring implementation. torch's fallback kernel would treat each shard as a full
# sequence.
_FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]


def require_ring_attention(device: str) -> None:
    """Check that torch supports ring attention on a device type, such as `cuda`.

    Raises:
        ValueError: it does not. The message names an alternative.
    """
    on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    if device == "cpu" and on_cpu not in _torch_module().custom_ops:
        raise ValueError(
            "parallelism_config: cp_size above 1 needs GPUs, because torch has no ring attention "
            "for the CPU. Use sp_size, which shards attention by heads, or dp_shard_size."
        )


def _torch_module() -> ModuleType:
    """Import torch's module of context parallelism.

    Raises:
        NotImplementedError: this version of torch is not supported.
    """
    try:
        return importlib.import_module(
            "torch.distributed.tensor.experimental._context_parallel._attention"
        )
    except ImportError as error:
        raise NotImplementedError(
            f"cp_size above 1: the context_parallel of torch {torch.__version__} is not supported. "
            "Install torch 2.13."
        ) from error


@contextlib.contextmanager
def ring_attention(
    mesh: DeviceMesh,
    buffers: Sequence[torch.Tensor],
    dims: Sequence[int],
    *,
    kept: set[torch.Tensor] | None = None,
) -> Iterator[AttentionCalls]:
    """Shard sequences within the `with` block, and compute attention in a ring of ranks.

    Works like `torch.distributed.tensor.experimental.context_parallel`, but with checks.

    Within the block, `torch.nn.functional.scaled_dot_product_attention` attends to the full
    sequence. The backward pass must run in the block too.

    Args:
        mesh: one-dimensional mesh of the ranks that share a sequence.
        buffers: tensors that are resized in place to the shard of this rank.
        dims: the sequence dimension of each buffer.
        kept: buffers that need not be restored after the block.

    Raises:
        ValueError: `buffers` is empty, or attention is called with unsupported arguments.
        NotImplementedError: this version of torch is not supported.
    """
    if not buffers:
        raise ValueError("Context parallel: no tensors to split. Pass buffers and buffer_seq_dims.")
    module = _torch_module()
    shards = module.context_parallel(
        mesh, buffers=list(buffers), buffer_seq_dims=list(dims), no_restore_buffers=kept or set()
    )
    with shards, sdpa_kernel(_FUSED):
        torch_attention = functional.scaled_dot_product_attention
        with replaced_attention("cp_size", _attend) as calls:
            yield calls

    # torch adds an entry for the replaced function each time, and never removes it.
    module._replaced_functions.pop(torch_attention, None)


def _attend(
    attention: Callable[..., torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    enable_gqa: bool,
    **options: object,
) -> torch.Tensor:
    # The float32 kernel does not support grouped-query attention.
    if enable_gqa and query.is_cuda and query.dtype == torch.float32:
        key, value = repeated_heads(query, key, value)
        enable_gqa = False
    return attention(query, key, value, enable_gqa=enable_gqa, **options)


class ContextParallelStrategy(SharedSequencesStrategy):
    """Model-parallel strategy in which neighbouring ranks share sequences with ring attention.

    Args:
        context_parallel_size: number of ranks that share a sequence. It must divide
            `data_parallel_size`, which includes them.
        rotation: how keys and values are exchanged: `allgather` (all at once) or `alltoall`
            (between neighbours).
        options: arguments of `ModelParallelStrategy`, with sizes as numbers.
    """

    def __init__(
        self, *, context_parallel_size: int, rotation: str = "allgather", **options: Any
    ) -> None:
        super().__init__(context_parallel_size=context_parallel_size, **options)
        self.rotation = rotation

    def setup_environment(self) -> None:
        """Create the process groups, and select the rotation."""
        super().setup_environment()
        _torch_module().set_rotate_method(self.rotation)

    def split_sequences(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], kept: set[torch.Tensor] | None
    ) -> contextlib.AbstractContextManager[AttentionCalls]:
        """Shard the tensors in place, see `ring_attention`."""
        return ring_attention(self.context_mesh, buffers, dims, kept=kept)
