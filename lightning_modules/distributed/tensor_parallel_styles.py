"""Styles of tensor parallelism by their names in plans."""

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
        name: in a plan.
        make_torch_style: makes the style of torch.
        divided_size: attribute of the layer that has to be a multiple of the number of processes,
            such as `out_features`.
        weight_dim: dimension along which the weight is sharded; None if it stays whole.
        layer_classes: classes of layers that support the style; empty for any layer.
    """

    name: str
    make_torch_style: Callable[[], ParallelStyle]
    divided_size: str | None = None
    weight_dim: int | None = None
    layer_classes: tuple[type[nn.Module], ...] = ()

    def problem_with(self, module: nn.Module, size: int) -> str | None:
        """Return why a module cannot be sharded in this style over `size` processes, or None."""
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
        """Return the style of a module tied to this one; None if no style fits it."""
        if self.weight_dim is None:
            return self

        # The shared weight has to be sharded along the same dimension in both modules.
        splits_rows = self.weight_dim == 0
        if isinstance(other, nn.Embedding) and splits_rows:
            return STYLES["embedding_rowwise"]
        if isinstance(other, nn.Linear):
            name = "colwise_gather_output" if splits_rows else "rowwise_split_input"
            return STYLES[name]
        return None


class FullWeights(ParallelStyle):
    """Style for layers with unsharded weights whose input is sharded, such as norms.

    As torch's `SequenceParallel`, but inputs and outputs are plain tensors, and gradients are
    summed over all shards.

    Args:
        dim: dimension along which the first argument is sharded.
        has_full_inputs: argument and result are whole; otherwise both are shards already.
    """

    def __init__(self, *, dim: int, has_full_inputs: bool) -> None:
        super().__init__()
        self.inside = Shard(dim)
        self.outside = Replicate() if has_full_inputs else self.inside

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(
            module, device_mesh, _replicate_weights, self._shard_input, self._restore_output
        )

    # These two return Any since torch declares that such functions return None.

    def _shard_input(self, module: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> Any:
        """Shard the first argument, before the module is called."""
        first, *other_inputs = inputs
        if not isinstance(first, DTensor):
            # The processes agree on the layout, so torch need not compare it.
            first = DTensor.from_local(first, mesh, [self.outside], run_check=False)
        sharded = first.redistribute(placements=[self.inside])
        return (sharded, *other_inputs)

    def _restore_output(self, module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
        """Return the result with the layout of the argument, as a plain tensor."""
        restored = output.redistribute(placements=[self.outside])
        return restored.to_local()


def _replicate_weights(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    """Make the parameters of a module replicated DTensors."""
    for key, parameter in module.named_parameters(recurse=False):
        replicated = distribute_tensor(parameter.data, mesh, [Replicate()])
        new_parameter = nn.Parameter(replicated, requires_grad=parameter.requires_grad)
        module.register_parameter(key, new_parameter)


def as_style(value: str | ParallelStyle) -> Style:
    """Return a style by its name in a plan, or a wrapper around a `ParallelStyle` of torch."""
    if isinstance(value, str):
        return STYLES[value]
    return Style(type(value).__name__, lambda: value)


_rowwise_from_full = partial(RowwiseParallel, input_layouts=Replicate())
_colwise_to_full = partial(ColwiseParallel, output_layouts=Replicate())
# The sequence is the second dimension of (samples, tokens, hidden).
_by_sequence = partial(FullWeights, dim=1, has_full_inputs=True)
# The inputs are sharded by heads already, in the last dimension but one.
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
