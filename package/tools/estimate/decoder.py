"""A decoder in plain torch, built only to measure its weights and activations."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from .shape import ModelShape


class RMSNorm(nn.Module):
    """RMSNorm as most models compute it: in float32, without a fused kernel."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, device="cpu"))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input, in its dtype."""
        # In float32, as the squares of half-precision numbers overflow or lose digits.
        x_float32 = x.float()
        mean_square = x_float32.square().mean(-1, keepdim=True)
        normalized = x_float32 * torch.rsqrt(mean_square + 1e-6)
        return self.weight * normalized.to(x.dtype)


class DecoderLayer(nn.Module):
    """One device's part of a layer: attention and MLP, with a norm before each.

    Args:
        shape: the shape of the whole model.
        tp: number of devices that share heads and MLP.
    """

    def __init__(self, shape: ModelShape, tp: int = 1) -> None:
        super().__init__()
        self.head_size = shape.head_size

        # Each device computes its share of the heads and of the width of the MLP.
        query_size = shape.heads * shape.head_size // tp
        key_size = shape.kv_heads * shape.head_size // tp
        mlp_size = shape.intermediate // tp
        norm_class = RMSNorm if shape.gated else nn.LayerNorm

        # Attention. Keys and values may have fewer heads than queries.
        self.attention_norm = norm_class(shape.hidden)
        self.query = nn.Linear(shape.hidden, query_size, bias=False)
        self.key = nn.Linear(shape.hidden, key_size, bias=False)
        self.value = nn.Linear(shape.hidden, key_size, bias=False)
        self.output = nn.Linear(query_size, shape.hidden, bias=False)

        # MLP. A gated one has a second input layer, whose output is multiplied with the first's.
        self.mlp_norm = norm_class(shape.hidden)
        self.gate = None
        if shape.gated:
            self.gate = nn.Linear(shape.hidden, mlp_size, bias=False)
        self.up = nn.Linear(shape.hidden, mlp_size, bias=False)
        self.down = nn.Linear(mlp_size, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer.

        Args:
            x: (sequences, tokens, hidden), which is also the shape of the output.
        """
        # Variables are reassigned on purpose: a second name would keep the old tensor alive, and it
        # would be measured.

        # Attention: queries and keys carry positions, values do not.
        normalized = self.attention_norm(x)
        query = self._split_heads(self.query(normalized))
        query = _rotate(query)
        key = self._split_heads(self.key(normalized))
        key = _rotate(key)
        value = self._split_heads(self.value(normalized))
        attention = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

        # (sequences, heads, tokens, head size) becomes (sequences, tokens, width).
        x = x + self.output(attention.transpose(1, 2).flatten(2))

        # MLP.
        normalized = self.mlp_norm(x)
        activated = self.up(normalized)
        if self.gate is None:
            activated = gelu(activated)
        else:
            activated = silu(self.gate(normalized)) * activated
        return x + self.down(activated)

    def _split_heads(self, x: Tensor) -> Tensor:
        """Return (sequences, heads, tokens, head size) for (sequences, tokens, width)."""
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


class Decoder(nn.Module):
    """Embedding, layers, norm and head.

    Args:
        shape: the shape of the whole model.
        layers: number of layers to make.
        tp: number of devices that share each layer.
    """

    def __init__(self, shape: ModelShape, layers: int, tp: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(DecoderLayer(shape, tp) for _ in range(layers))
        norm_class = RMSNorm if shape.gated else nn.LayerNorm
        self.norm = norm_class(shape.hidden)

        # Under tensor parallelism each device has a part of the head's vocabulary, so the head
        # cannot share the weight of the embedding.
        self.head = nn.Linear(shape.hidden, shape.vocabulary // tp, bias=False)
        if shape.tied and tp == 1:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor, checkpointing: bool) -> Tensor:
        """Return the loss.

        Args:
            ids: (sequences, tokens).
            checkpointing: keep only the inputs of layers for the backward pass.
        """
        x = self.embedding(ids)
        for layer in self.layers:
            if checkpointing:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        x = self.norm(x)

        # The loss of all tokens in float32, as models compute it: (sequences * tokens, vocabulary).
        logits = self.head(x).float().flatten(0, 1)
        return cross_entropy(logits, ids.flatten())


def _rotate(x: Tensor) -> Tensor:
    """Apply the operations of a rotary position embedding, on dummy values, to queries or keys."""
    cosine = x.new_ones(x.shape[-2:])
    rotated_half = x.roll(x.shape[-1] // 2, -1)
    return x * cosine + rotated_half * cosine
