"""Shape of a decoder: its dimensions, and the shapes of its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

EMBEDDING = "embedding"
MATRIX = "matrix"
OTHER = "other"
"""Roles of a tensor: some optimizers treat embeddings, and matrices of layers, in ways of their
own.
"""


@dataclass(frozen=True)
class TensorShape:
    """Equal tensors among the weights of a model."""

    shape: tuple[int, ...]
    role: str
    """`EMBEDDING`, `MATRIX` or `OTHER`."""
    in_layers: bool
    """True for tensors of the repeated layers; the others are the root, which is gathered with
    the model.
    """
    count: int = 1

    @property
    def size(self) -> int:
        """Numbers in one of them."""
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
    """RMSNorm, and an MLP that multiplies two projections (SwiGLU); otherwise LayerNorm, and an
    MLP with GELU.
    """
    head: bool = True
    """Gives a distribution over the vocabulary for each token."""
    tied: bool = True
    """The head's weights are those of the embedding."""
    tensors: tuple[TensorShape, ...] = ()
    """All weights."""
    assumed: str = ""
    """The assumptions made for dimensions that were not given; a sentence."""

    @cached_property
    def parameters(self) -> int:
        """Numbers in the weights."""
        return sum(tensor.size * tensor.count for tensor in self.tensors)

    @cached_property
    def in_layers(self) -> int:
        """Numbers in the weights of all layers."""
        return sum(tensor.size * tensor.count for tensor in self.tensors if tensor.in_layers)

    @property
    def layer_parameters(self) -> int:
        """Numbers in the weights of one layer."""
        return self.in_layers // max(1, self.layers)

    @property
    def root_parameters(self) -> int:
        """Numbers in the weights outside of the layers: embeddings, the last norm, the head."""
        return self.parameters - self.in_layers
