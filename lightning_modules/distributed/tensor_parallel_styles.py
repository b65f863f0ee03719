"""Styles of tensor parallelism by their names in plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel


@dataclass(frozen=True)
class Style:
    """Sharding style of one layer.

    Attributes:
        name: in a plan.
        make: makes the style of torch.
        splits: attribute of the layer that has to be a multiple of the number of processes, such as
            `out_features`.
        weight_dim: dimension along which the weight is sharded; None if it stays whole.
        layers: classes of layers that it is for; any layer if empty.
    """

    name: str
    make: Callable[[], Any]
    splits: str | None = None
    weight_dim: int | None = None
    layers: tuple[type[nn.Module], ...] = ()

    def fault(self, module: nn.Module, size: int) -> str | None:
        """Return the reason why a module cannot be sharded so over `size` processes, or None."""
        if self.layers and not isinstance(module, self.layers):
            kinds = " and ".join(f"nn.{kind.__name__}" for kind in self.layers)
            return f"{self.name!r} is for {kinds}, but this is a {type(module).__name__}"
        if self.splits is None:
            return None
        extent = getattr(module, self.splits, None)
        if extent is None or extent % size == 0:
            return None
        return (
            f"{self.splits}={extent} is not divisible by tp_size={size}. Choose a tp_size that "
            "divides it"
        )

    def of_tied(self, other: nn.Module) -> Style | None:
        """Return the style of a module tied to this one; None if no style fits it."""
        if self.weight_dim is None:
            return self
        splits_rows = self.weight_dim == 0
        if isinstance(other, nn.Embedding) and splits_rows:
            return STYLES["embedding_rowwise"]
        if isinstance(other, nn.Linear):
            name = "colwise_gather_output" if splits_rows else "rowwise_split_input"
            return STYLES[name]
        return None


class WholeWeights(ParallelStyle):
    """As torch's `SequenceParallel`, but with plain tensors, and gradients of all the data.

    Args:
        dim: dimension along which the first argument is sharded.
        shares_out: argument and result are whole; otherwise both are shards already.
    """

    def __init__(self, *, dim: int, shares_out: bool) -> None:
        super().__init__()
        self.shard = Shard(dim)
        self.outside = Replicate() if shares_out else self.shard

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, _replicate, self._in, self._out)

    def _in(self, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
        first, *others = inputs
        if not isinstance(first, DTensor):
            first = DTensor.from_local(first, mesh, [self.outside], run_check=False)
        return (first.redistribute(placements=[self.shard]), *others)

    def _out(self, module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
        return output.redistribute(placements=[self.outside]).to_local()


def _replicate(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for key, parameter in module.named_parameters(recurse=False):
        replicated = distribute_tensor(parameter.data, mesh, [Replicate()])
        new_parameter = nn.Parameter(replicated, requires_grad=parameter.requires_grad)
        module.register_parameter(key, new_parameter)


def as_style(value: Any) -> Style:
    """Return a style by its name in a plan, or a wrapper around a `ParallelStyle` of torch."""
    if isinstance(value, str):
        return STYLES[value]
    return Style(type(value).__name__, lambda: value)


_of_whole = partial(RowwiseParallel, input_layouts=Replicate())
_to_whole = partial(ColwiseParallel, output_layouts=Replicate())
_of_whole_sequence = partial(WholeWeights, dim=1, shares_out=True)
# Its inputs are sharded by heads already, in the last dimension but one.
_of_heads = partial(WholeWeights, dim=-2, shares_out=False)

_ALL = (
    Style("colwise", ColwiseParallel, "out_features", weight_dim=0, layers=(nn.Linear,)),
    Style("rowwise", RowwiseParallel, "in_features", weight_dim=1, layers=(nn.Linear,)),
    Style("colwise_gather_output", _to_whole, weight_dim=0, layers=(nn.Linear,)),
    Style("colwise_rep", _to_whole, weight_dim=0, layers=(nn.Linear,)),
    Style("rowwise_split_input", _of_whole, weight_dim=1, layers=(nn.Linear,)),
    Style("rowwise_rep", _of_whole, weight_dim=1, layers=(nn.Linear,)),
    Style("embedding_rowwise", _of_whole, weight_dim=0, layers=(nn.Embedding,)),
    Style("sequence_parallel", _of_whole_sequence),
    Style("replicated_with_grad_allreduce", _of_heads),
)
STYLES: dict[str, Style] = {style.name: style for style in _ALL}
"""The styles by their names in `transformers`."""
