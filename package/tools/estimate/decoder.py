"""A decoder in plain torch, whose weights and activations are measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from .shapes import ModelShape


class RMSNorm(nn.Module):
    """A norm as most models compute it: in float32, one operation after the other."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, device="cpu"))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized numbers in the format of the input."""
        exact = x.float()
        normalized = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * normalized.to(x.dtype)


class DecoderLayer(nn.Module):
    """Attention and MLP, with a norm before each; on a device of `tp` that share the layer.

    Args:
        shape: of the whole model.
        tp: devices that share heads and MLP.
        is_eager: hold the scores of all pairs of tokens, instead of using a fused kernel.
    """

    def __init__(self, shape: ModelShape, tp: int = 1, is_eager: bool = False) -> None:
        super().__init__()
        self.is_eager = is_eager
        self.head_size = shape.head_size
        query_size = shape.heads * shape.head_size // tp
        key_size = shape.kv_heads * shape.head_size // tp
        norm = RMSNorm if shape.gated else nn.LayerNorm

        self.attention_norm = norm(shape.hidden)
        self.query = nn.Linear(shape.hidden, query_size, bias=False)
        self.key = nn.Linear(shape.hidden, key_size, bias=False)
        self.value = nn.Linear(shape.hidden, key_size, bias=False)
        self.output = nn.Linear(query_size, shape.hidden, bias=False)
        self.mlp_norm = norm(shape.hidden)
        self.gate = (
            nn.Linear(shape.hidden, shape.intermediate // tp, bias=False) if shape.gated else None
        )
        self.up = nn.Linear(shape.hidden, shape.intermediate // tp, bias=False)
        self.down = nn.Linear(shape.intermediate // tp, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, of the shape of its input: (sequences, tokens, hidden)."""
        normalized = self.attention_norm(x)
        query = _rotated(self._heads(self.query(normalized)))
        key = _rotated(self._heads(self.key(normalized)))
        value = self._heads(self.value(normalized))
        attended = self._attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + self.output(attended)

        normalized = self.mlp_norm(x)
        if self.gate is None:
            return x + self.down(gelu(self.up(normalized)))
        return x + self.down(silu(self.gate(normalized)) * self.up(normalized))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)

    def _attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not self.is_eager:
            return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        repeats = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(repeats, dim=1)
        value = value.repeat_interleave(repeats, dim=1)
        scores = query @ key.transpose(2, 3) * self.head_size**-0.5
        return scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ value


class Decoder(nn.Module):
    """Embedding, layers, norm and head.

    Args:
        shape: of the whole model.
        layers: how many of its layers are made.
        tp: devices that share each layer.
        is_eager: see `DecoderLayer`.
    """

    def __init__(self, shape: ModelShape, layers: int, tp: int = 1, is_eager: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(DecoderLayer(shape, tp, is_eager) for _ in range(layers))
        self.norm = RMSNorm(shape.hidden) if shape.gated else nn.LayerNorm(shape.hidden)
        self.head = (
            nn.Linear(shape.hidden, shape.vocabulary // tp, bias=False) if shape.head else None
        )
        if self.head is not None and shape.tied and tp == 1:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor, checkpointing: bool) -> Tensor:
        """Return the loss, or without a head a number."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if checkpointing else layer(x)
        x = self.norm(x)
        if self.head is None:
            return x.sum()
        logits = self.head(x).float().flatten(0, 1)
        return cross_entropy(logits, ids.flatten())


def _rotated(x: Tensor) -> Tensor:
    """Return queries or keys after a rotation by positions."""
    cosine = x.new_ones(x.shape[-2:])
    return x * cosine + x.roll(x.shape[-1] // 2, -1) * cosine
