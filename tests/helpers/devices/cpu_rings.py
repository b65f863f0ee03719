"""A kernel of the CPU for torch's ring attention, which knows those of GPUs only: so rings are
tested everywhere.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard

_RINGS = "torch.distributed.tensor.experimental._context_parallel._attention"
_SEQUENCE = 2
_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def allow_rings_on_cpu() -> None:
    """Register the kernel with torch, if this torch has rings."""
    try:
        handlers: Any = import_module(_RINGS).custom_ops
    except ImportError:
        return
    handlers.update({_FORWARD: _forward, _BACKWARD: _backward})


def _forward(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[DTensor, ...]:
    """Run the kernel on each shard of keys and values; torch merges the results."""
    mesh = args[0].device_mesh
    query, key, value = _local(args[:3])
    dropout = args[3] if len(args) > 3 else 0.0
    causal = args[4] if len(args) > 4 else False
    out, logsumexp, *_ = import_module(_RINGS)._templated_ring_attention(
        mesh.get_group(),
        _SEQUENCE,
        _FORWARD,
        query=query,
        key=key,
        value=value,
        is_causal=causal,
        dropout_p=dropout,
        scale=options.get("scale"),
    )
    return _sharded([out, logsumexp], mesh)


def _backward(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[DTensor, ...]:
    mesh = args[1].device_mesh
    gradient, query, key, value, out, logsumexp = _local(args[:6])
    gradients = import_module(_RINGS)._templated_ring_attention_backward(
        mesh.get_group(),
        _SEQUENCE,
        _BACKWARD,
        grad_out=gradient,
        grad_out_name="grad_out",
        query=query,
        key=key,
        value=value,
        out=out,
        logsumexp=logsumexp,
        is_causal=args[7],
        dropout_p=args[6],
        scale=options.get("scale"),
    )
    return _sharded(gradients[:3], mesh)


def _local(tensors: Sequence[Any]) -> list[torch.Tensor]:
    with torch.no_grad():  # autograd runs above the dispatcher
        return [tensor.to_local() for tensor in tensors]


def _sharded(tensors: Sequence[torch.Tensor], mesh: Any) -> tuple[DTensor, ...]:
    return tuple(
        DTensor.from_local(tensor, mesh, [Shard(_SEQUENCE)], run_check=False) for tensor in tensors
    )
