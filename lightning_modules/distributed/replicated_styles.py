"""A style of torch for layers whose weights stay whole, while each process works on a part of the data."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle


class WholeWeights(ParallelStyle):
    """As torch's `SequenceParallel`, but around it plain tensors come and go; gradients are those of all the data.

    Args:
        dim: dimension of the first argument of which each process has, or gets, a part.
        shares_out: the argument is whole, and so is the result; otherwise both are parts already.
    """

    def __init__(self, *, dim: int, shares_out: bool) -> None:
        super().__init__()
        self.dim = dim
        self.shares_out = shares_out

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, _whole, self._in, self._out)

    def _in(self, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
        given, *others = inputs
        if not isinstance(given, DTensor):
            placed = Replicate() if self.shares_out else Shard(self.dim)
            given = DTensor.from_local(given, mesh, [placed], run_check=False)
        return (given.redistribute(placements=[Shard(self.dim)]), *others)

    def _out(self, module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
        placed = Replicate() if self.shares_out else Shard(self.dim)
        return output.redistribute(placements=[placed]).to_local()


def _whole(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for key, parameter in module.named_parameters(recurse=False):
        spread = distribute_tensor(parameter.data, mesh, [Replicate()])
        module.register_parameter(key, nn.Parameter(spread, requires_grad=parameter.requires_grad))
