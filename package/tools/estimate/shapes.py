"""The shape of a decoder: its dimensions, and the shapes of its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

EMBEDDING = "embedding"
MATRIX = "matrix"
OTHER = "other"
"""Roles of a tensor: some optimizers treat embeddings and matrices of layers differently."""


@dataclass(frozen=True)
class TensorShape:
    """Weights of a model that have the same shape and role."""

    shape: tuple[int, ...]
    role: str
    """`EMBEDDING`, `MATRIX` or `OTHER`."""
    in_layers: bool
    """True for tensors of the repeated layers; FSDP gathers all others together, as the root."""
    count: int = 1

    @property
    def size(self) -> int:
        """Number of elements of one of them."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Dimensions of a decoder; lengths are numbers of elements."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    gated: bool = True
    """True for RMSNorm and an MLP that multiplies two projections (SwiGLU); False for LayerNorm
    and an MLP with GELU.
    """
    head: bool = True
    """True if it has a language modeling head."""
    tied: bool = True
    """True if the head shares its weights with the embedding."""
    tensors: tuple[TensorShape, ...] = ()
    """All weights."""
    assumed: str = ""
    """The assumptions about dimensions that the user did not pass, for people."""

    @cached_property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(tensor.size * tensor.count for tensor in self.tensors)

    @cached_property
    def in_layers(self) -> int:
        """Number of parameters of all layers."""
        return sum(tensor.size * tensor.count for tensor in self.tensors if tensor.in_layers)

    @property
    def layer_parameters(self) -> int:
        """Number of parameters of one layer."""
        return self.in_layers // max(1, self.layers)

    @property
    def root_parameters(self) -> int:
        """Number of parameters outside of the layers: embeddings, the last norm, the head."""
        return self.parameters - self.in_layers
