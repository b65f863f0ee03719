"""Sharding styles of tensor-parallel plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
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
        name: the name in a plan.
        make_torch_style: returns the torch `ParallelStyle`.
        divided_size: attribute of the layer that must be divisible by the number of ranks, such as
            `out_features`.
        weight_dim: dimension along which the weight is sharded; None if it is not sharded.
        layer_classes: layer classes that support the style. Empty means all.
    """

    name: str
    make_torch_style: Callable[[], ParallelStyle]
    divided_size: str | None = None
    weight_dim: int | None = None
    layer_classes: tuple[type[nn.Module], ...] = ()

    def problem_with(self, module: nn.Module, size: int) -> str | None:
        """Return why a module cannot be sharded in this style over `size` ranks, or None."""
        if self.layer_classes and not isinstance(module, self.layer_classes):
            names = [f"nn.{layer_class.__name__}" for layer_class in self.layer_classes]
            module_class = type(module).__name__
            return f"{self.name!r} is for {' and '.join(names)}, but this is a {module_class}"

        if self.divided_size is None:
            return None
        extent = getattr(module, self.divided_size, None)
        if extent is None or extent % size == 0:
            return None
        return (
            f"{self.divided_size}={extent} is not divisible by tp_size={size}. Choose a tp_size "
            "that divides it"
        )

    def for_tied_module(self, other: nn.Module) -> Style | None:
        """Return the style for a module that shares its weight with one of this style, or None."""
        if self.weight_dim is None:
            return self

        # The shared weight must be sharded along the same dimension in both modules.
        splits_rows = self.weight_dim == 0
        if isinstance(other, nn.Embedding) and splits_rows:
            return STYLES["embedding_rowwise"]
        if isinstance(other, nn.Linear):
            name = "colwise_gather_output" if splits_rows else "rowwise_split_input"
            return STYLES[name]
        return None


class FullWeights(ParallelStyle):
    """Style for layers such as norms, with replicated weights and sharded inputs.

    As torch's `SequenceParallel`, but inputs and outputs are plain tensors, and gradients are
    summed over all shards.

    Args:
        dim: dimension along which the first argument is sharded.
        has_full_inputs: whether input and output are full tensors. Otherwise both are shards.
    """

    def __init__(self, *, dim: int, has_full_inputs: bool) -> None:
        super().__init__()
        self.inside = Shard(dim)
        self.outside = Replicate() if has_full_inputs else self.inside

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(
            module, device_mesh, _replicate_weights, self._shard_input, self._restore_output
        )

    # These two return Any, because torch declares such functions as returning None.

    def _shard_input(self, module: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> Any:
        """Shard the first argument before the module is called."""
        first, *other_inputs = inputs
        if not isinstance(first, DTensor):
            # All ranks use the same layout, so torch need not check it.
            first = DTensor.from_local(first, mesh, [self.outside], run_check=False)
        sharded = first.redistribute(placements=[self.inside])
        return (sharded, *other_inputs)

    def _restore_output(self, module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
        """Convert the output to a plain tensor with the layout of the input."""
        restored = output.redistribute(placements=[self.outside])
        return restored.to_local()


def _replicate_weights(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    """Convert the parameters of a module to replicated DTensors."""
    for key, parameter in module.named_parameters(recurse=False):
        replicated = distribute_tensor(parameter.data, mesh, [Replicate()])
        new_parameter = nn.Parameter(replicated, requires_grad=parameter.requires_grad)
        module.register_parameter(key, new_parameter)


def as_style(value: str | ParallelStyle) -> Style:
    """Return the style with this name, or wrap a torch `ParallelStyle`."""
    if isinstance(value, str):
        return STYLES[value]
    return Style(type(value).__name__, lambda: value)


_rowwise_from_full = partial(RowwiseParallel, input_layouts=Replicate())
_colwise_to_full = partial(ColwiseParallel, output_layouts=Replicate())
# The sequence is the second dimension of (samples, tokens, hidden).
_by_sequence = partial(FullWeights, dim=1, has_full_inputs=True)
# The inputs are already sharded by heads, in the second-last dimension.
_by_heads = partial(FullWeights, dim=-2, has_full_inputs=False)

_ALL = (
    Style("colwise", ColwiseParallel, "out_features", weight_dim=0, layer_classes=(nn.Linear,)),
    Style("rowwise", RowwiseParallel, "in_features", weight_dim=1, layer_classes=(nn.Linear,)),
    Style("colwise_gather_output", _colwise_to_full, weight_dim=0, layer_classes=(nn.Linear,)),
    Style("colwise_rep", _colwise_to_full, weight_dim=0, layer_classes=(nn.Linear,)),
    Style("rowwise_split_input", _rowwise_from_full, weight_dim=1, layer_classes=(nn.Linear,)),
    Style("rowwise_rep", _rowwise_from_full, weight_dim=1, layer_classes=(nn.Linear,)),
    Style("embedding_rowwise", _rowwise_from_full, weight_dim=0, layer_classes=(nn.Embedding,)),
    Style("sequence_parallel", _by_sequence),
    Style("replicated_with_grad_allreduce", _by_heads),
)
STYLES: dict[str, Style] = {style.name: style for style in _ALL}
"""The styles by their names in `transformers`."""
