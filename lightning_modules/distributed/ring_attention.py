"""Attention over sequences sharded across processes: torch's ring attention, on GPUs and on the CPU.

Torch's `context_parallel` supports the kernels of GPUs; that of the CPU is added here. The private names of torch that
this needs are used only here.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from .device_meshes import ModelParallelStrategy, kept_device_mesh

_PLACES = (
    "torch.distributed.tensor.experimental._context_parallel._attention",
    "torch.distributed.tensor.experimental._attention",
)
_NEEDED = (
    "_templated_ring_attention",
    "_templated_ring_attention_backward",
    "context_parallel",
    "custom_ops",
    "set_rotate_method",
)
# The fallback of torch would treat the shards as whole sequences in order.
_FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
_SEQUENCE = 2
"""Dimension of the positions in the inputs of attention: (batch, heads, positions, features)."""


@dataclass
class AttentionCalls:
    """Number of calls of attention while sequences were sharded; zero if the model uses another attention."""

    count: int = 0


@contextlib.contextmanager
def ring_attention(
    mesh: DeviceMesh, buffers: Sequence[torch.Tensor], dims: Sequence[int], *, kept: set[torch.Tensor] | None = None
) -> Iterator[AttentionCalls]:
    """As `torch.distributed.tensor.experimental.context_parallel`, but also on the CPU, and with checks.

    In the block `torch.nn.functional.scaled_dot_product_attention` attends to the whole sequence. The backward pass has
    to run in the block too.

    Args:
        mesh: the processes that share a sequence; of one dimension.
        buffers: tensors that are resized, in place, to the part of this process.
        dims: the dimension of the positions in each.
        kept: those of them that need not be whole again after the block.

    Raises:
        ValueError: there is no tensor to split, or in the block attention is called in a way that rings do not have.
        NotImplementedError: this torch lacks what is needed.
    """
    if not buffers:
        raise ValueError("Context parallel: there is no tensor to split. Pass buffers and buffer_seq_dims.")
    module = _torch_module()
    module.custom_ops.update(_ON_CPU)
    split = module.context_parallel(
        mesh, buffers=list(buffers), buffer_seq_dims=list(dims), no_restore_buffers=set() if kept is None else kept
    )
    with split, sdpa_kernel(_FUSED):
        of_torch = functional.scaled_dot_product_attention
        with replaced_attention("cp_size", _attend) as calls:
            yield calls
    getattr(module, "_replaced_functions", {}).pop(of_torch, None)  # torch adds one for each block


def set_rotation(method: str) -> None:
    """Choose the exchange of keys and values: `allgather`, all at once, or `alltoall`, between neighbours."""
    _torch_module().set_rotate_method(method)


def _torch_module() -> Any:
    for place in _PLACES:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(place)
            if all(hasattr(module, name) for name in _NEEDED):
                return module
    raise NotImplementedError(
        f"cp_size above 1: torch {torch.__version__} has no context_parallel of the known form. Install torch 2.13."
    )


def _attend(
    attention: Callable[..., Any], query: Any, key: Any, value: Any, *, enable_gqa: bool, **options: Any
) -> Any:
    if enable_gqa and query.is_cuda and query.dtype == torch.float32:  # its kernel has no grouped queries
        key, value = repeated_heads(query, key, value)
        enable_gqa = False
    return attention(query, key, value, enable_gqa=enable_gqa, **options)


@contextlib.contextmanager
def replaced_attention(argument: str, attend: Callable[..., Any]) -> Iterator[AttentionCalls]:
    """Replace `torch.nn.functional.scaled_dot_product_attention` in the block by attention over sharded sequences.

    Args:
        argument: of the user, for errors, such as `cp_size`.
        attend: called with torch's function, query, key, value, and `is_causal=True`, `scale` and `enable_gqa`.

    Raises:
        ValueError: in the block, attention is called in a way that shards of sequences do not have.
    """
    of_torch, calls = functional.scaled_dot_product_attention, AttentionCalls()

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
        if fault := _fault(query, key, attn_mask, dropout_p, is_causal):
            raise ValueError(f"{argument} above 1: the model calls scaled_dot_product_attention with {fault}.")
        calls.count += 1
        return attend(of_torch, query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa)

    functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield calls
    finally:
        functional.scaled_dot_product_attention = of_torch


def _fault(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, dropout: float, is_causal: bool
) -> str | None:
    if mask is not None:
        return "an attn_mask: sharded sequences have the causal mask only; leave masks out, and pad on the right"
    if not is_causal:
        return "is_causal=False: sharded sequences have causal attention only"
    if dropout > 0:
        return f"dropout_p={dropout}: ranks would draw their own masks; set the attention's dropout to 0"
    if query.ndim != 4 or query.shape[2:3] != key.shape[2:3]:
        shapes = f"query of shape {tuple(query.shape)} and key of shape {tuple(key.shape)}"
        return f"{shapes}: both have to be (batch, heads, positions, features) with as many positions"
    return None


def repeated_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values with as many heads as the query, for grouped queries."""
    groups = query.shape[1] // key.shape[1]
    return key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)


_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _forward(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[DTensor, ...]:
    """Run the CPU kernel on each shard of keys and values; torch merges the results."""
    mesh, (query, key, value) = args[0].device_mesh, _local(args[:3])
    dropout, causal = (*args[3:], *(0.0, False)[len(args) - 3 :])
    given = {"query": query, "key": key, "value": value, "scale": options.get("scale")}
    ring = _torch_module()._templated_ring_attention
    found = ring(mesh.get_group(), _SEQUENCE, _CPU, **given, is_causal=causal, dropout_p=dropout)
    return _spread(found[:2], mesh)


def _backward(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[DTensor, ...]:
    mesh, (gradient, query, key, value, out, logsumexp) = args[1].device_mesh, _local(args[:6])
    dropout, causal = args[6:8]
    given = {"query": query, "key": key, "value": value, "scale": options.get("scale")}
    given |= {"grad_out": gradient, "grad_out_name": "grad_out", "out": out, "logsumexp": logsumexp}
    ring = _torch_module()._templated_ring_attention_backward
    found = ring(mesh.get_group(), _SEQUENCE, _CPU_BACKWARD, **given, is_causal=causal, dropout_p=dropout)
    return _spread(found[:3], mesh)


def _local(tensors: Sequence[Any]) -> list[torch.Tensor]:
    with torch.no_grad():  # autograd runs above the dispatcher
        return [tensor.to_local() for tensor in tensors]


def _spread(tensors: Sequence[torch.Tensor], mesh: DeviceMesh) -> tuple[DTensor, ...]:
    return tuple(DTensor.from_local(tensor, mesh, [Shard(_SEQUENCE)], run_check=False) for tensor in tensors)


_ON_CPU = {_CPU: _forward, _CPU_BACKWARD: _backward}
"""Handlers of the CPU kernel for the dispatcher of DTensors."""


class ContextParallelStrategy(ModelParallelStrategy):
    """As Lightning's `ModelParallelStrategy`, but neighbouring processes of the sharding group share sequences.

    Args:
        context_parallel_size: processes that share a sequence; divides `data_parallel_size`, which includes them.
        rotation: see `ring_attention.set_rotation`.
        options: those of `ModelParallelStrategy`; sizes as numbers.
    """

    def __init__(self, *, context_parallel_size: int, rotation: str = "allgather", **options: Any) -> None:
        super().__init__(**options)
        self.context_parallel_size = context_parallel_size
        self.rotation = rotation
        self._context_mesh: DeviceMesh | None = None

    def setup_environment(self) -> None:
        """Make the groups that share sequences, after those of Lightning."""
        super().setup_environment()
        sharding, splitting = self.device_mesh["data_parallel"].size(), self.device_mesh["tensor_parallel"].size()
        sizes = (sharding // self.context_parallel_size, self.context_parallel_size, splitting)
        names = ("data", "context_parallel", "tensor_parallel")
        self._context_mesh = kept_device_mesh(self.device_mesh.device_type, sizes, mesh_dim_names=names)[names[1]]
        self._choose_rotation()

    def _choose_rotation(self) -> None:
        set_rotation(self.rotation)

    @property
    def context_mesh(self) -> DeviceMesh:
        """Return the mesh of the processes that share sequences with this one."""
        assert self._context_mesh is not None, "setup_environment comes first"
        return self._context_mesh

    def split_sequences(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], kept: set[torch.Tensor] | None
    ) -> contextlib.AbstractContextManager[AttentionCalls]:
        """Shard the tensors over the processes, in place, see `ring_attention`."""
        return ring_attention(self.context_mesh, buffers, dims, kept=kept)
