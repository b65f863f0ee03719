"""A decoder in plain torch, whose weights and activations are measured, and its dimensions."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from ...lightning_modules.common.json_files import read_object

_KEYS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "vocabulary": ("vocab_size",),
    "intermediate": (
        "intermediate_size",
        "n_inner",
        "ffn_dim",
        "d_ff",
        "hidden_dim",
        "ffn_hidden_size",
    ),
}
"""Keys of each dimension in the configurations of different model families."""


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
    tied: bool = True
    """True if the head shares its weights with the embedding."""


def read_shape(path: str | os.PathLike[str]) -> ModelShape:
    """Return the dimensions in the configuration of a model.

    Args:
        path: `config.json`, or the folder that contains it.

    Raises:
        FileNotFoundError: the configuration does not exist.
        ValueError: the configuration lacks a dimension, or the model is not a decoder; the message
            names the key.
    """
    file = Path(path)
    if file.suffix != ".json":
        file = file / "config.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"model={str(path)!r}: {file} does not exist. Pass the config.json of a model, or its "
            "folder."
        )
    config = read_object(file, "model", "a model's settings")
    config = {**config, **config.get("text_config", {})}

    experts = config.get("num_local_experts") or config.get("num_experts") or 1
    is_encoder_decoder = bool(config.get("is_encoder_decoder"))
    if experts > 1 or is_encoder_decoder:
        raise ValueError(
            f"model: {file} has {experts=} and {is_encoder_decoder=}, but only decoders without "
            "experts can be estimated. Pass the configuration of a decoder of that size instead."
        )

    # Each family of models has its own names.
    hidden = _dimension(config, "hidden")
    heads = _dimension(config, "heads")
    activation = str(config.get("hidden_act") or config.get("activation_function"))
    gated = "silu" in activation or "rms_norm_eps" in config
    return ModelShape(
        layers=_dimension(config, "layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or hidden // heads,
        intermediate=_dimension(config, "intermediate", 4 * hidden),
        vocabulary=_dimension(config, "vocabulary"),
        gated=gated,
        tied=config.get("tie_word_embeddings", not gated),
    )


def _dimension(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a dimension of a configuration, see `_KEYS`."""
    for key in _KEYS[name]:
        if isinstance(config.get(key), int):
            return config[key]
    if default is not None:
        return default
    raise ValueError(
        f"model: the configuration has none of {', '.join(_KEYS[name])}, so {name} is unknown. Add "
        "one of them."
    )


class RMSNorm(nn.Module):
    """A norm as most models compute it: in float32, without a fused kernel."""

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
    """Attention and MLP, with a norm before each: the part of one device.

    Args:
        shape: of the whole model.
        tp: number of devices that share heads and MLP.
    """

    def __init__(self, shape: ModelShape, tp: int = 1) -> None:
        super().__init__()
        self.head_size = shape.head_size

        # Each device has its part of the heads and of the width of the MLP.
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

        # MLP. A gated one has a second input layer, whose output weighs that of the first.
        self.mlp_norm = norm_class(shape.hidden)
        self.gate = None
        if shape.gated:
            self.gate = nn.Linear(shape.hidden, mlp_size, bias=False)
        self.up = nn.Linear(shape.hidden, mlp_size, bias=False)
        self.down = nn.Linear(mlp_size, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer.

        Args:
            x: (sequences, tokens, hidden), as the output.
        """
        # The names are bound again on purpose: a second name would keep a tensor in memory that
        # is measured.

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
        shape: of the whole model.
        layers: number of layers to make.
        tp: number of devices that share each layer.
    """

    def __init__(self, shape: ModelShape, layers: int, tp: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(DecoderLayer(shape, tp) for _ in range(layers))
        norm_class = RMSNorm if shape.gated else nn.LayerNorm
        self.norm = norm_class(shape.hidden)

        # Several devices split the vocabulary of the head, so it cannot share its weight then.
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
    """Apply operations like those of a rotary position embedding to queries or keys."""
    cosine = x.new_ones(x.shape[-2:])
    rotated_half = x.roll(x.shape[-1] // 2, -1)
    return x * cosine + rotated_half * cosine
