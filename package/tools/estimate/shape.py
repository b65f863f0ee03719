"""Read the dimensions of a decoder from its configuration, or by the name of a known model."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...lightning_modules.common.json_files import read_object


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Dimensions of a decoder."""

    layers: int
    """Number of layers."""
    hidden: int
    """Width of the layers' inputs and outputs."""
    heads: int
    """Number of attention heads of the queries."""
    kv_heads: int
    """Number of attention heads of keys and values."""
    head_size: int
    """Width of a head."""
    intermediate: int
    """Width of the hidden layer of the MLP."""
    vocabulary: int
    """Number of tokens in the vocabulary."""
    gated: bool = True
    """True for RMSNorm and an MLP that multiplies two projections (SwiGLU); False for LayerNorm
    and an MLP with GELU.
    """
    tied: bool = False
    """True if the head shares its weights with the embedding."""


KNOWN_SHAPES = {
    "1B": ModelShape(
        layers=16,
        hidden=2048,
        heads=32,
        kv_heads=8,
        head_size=64,
        intermediate=8192,
        vocabulary=128256,
        tied=True,
    ),
    "8B": ModelShape(
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_size=128,
        intermediate=14336,
        vocabulary=128256,
    ),
    "70B": ModelShape(
        layers=80,
        hidden=8192,
        heads=64,
        kv_heads=8,
        head_size=128,
        intermediate=28672,
        vocabulary=128256,
    ),
    "405B": ModelShape(
        layers=126,
        hidden=16384,
        heads=128,
        kv_heads=8,
        head_size=128,
        intermediate=53248,
        vocabulary=128256,
    ),
}
"""The models of Llama 3, by their size."""

_KEYS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "intermediate": (
        "intermediate_size",
        "n_inner",
        "ffn_dim",
        "d_ff",
        "hidden_dim",
        "ffn_hidden_size",
    ),
    "vocabulary": ("vocab_size",),
}
"""Keys of each dimension in the configurations of different model families."""


def read_shape(model: str | os.PathLike[str]) -> ModelShape:
    """Return the dimensions of a model.

    Args:
        model: one of `KNOWN_SHAPES`, or the path of a `config.json` or of its folder.

    Raises:
        FileNotFoundError: the configuration does not exist.
        ValueError: the configuration lacks a dimension, or the model is not a decoder; the message
            names the key.
    """
    name = os.fspath(model)
    if name in KNOWN_SHAPES:
        return KNOWN_SHAPES[name]

    path = Path(model)
    if path.suffix != ".json":
        path = path / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"model={name!r}: {path} does not exist. Pass the folder or the config.json of a "
            f"model, or one of {', '.join(KNOWN_SHAPES)}."
        )
    config = read_object(path, "model", "a model's settings")
    return _shape_of_config({**config, **config.get("text_config", {})})


def _shape_of_config(config: Mapping[str, Any]) -> ModelShape:
    """Return the dimensions in the content of a `config.json`."""
    experts = config.get("num_local_experts") or config.get("num_experts") or 1
    is_encoder_decoder = bool(config.get("is_encoder_decoder"))
    if experts > 1 or is_encoder_decoder:
        raise ValueError(
            f"model: config.json has {experts=} and {is_encoder_decoder=}, but only decoders "
            "without experts can be estimated. Pass the config.json of a decoder of that size."
        )
    hidden = _dimension(config, "hidden")
    heads = _dimension(config, "heads")

    # No key tells whether the MLP is gated. Families with SiLU or an RMS norm have a gated one.
    activation = str(config.get("hidden_act") or config.get("activation_function"))
    is_gated = "silu" in activation or "rms_norm_eps" in config
    return ModelShape(
        layers=_dimension(config, "layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or hidden // heads,
        intermediate=_dimension(config, "intermediate", default=4 * hidden),
        vocabulary=_dimension(config, "vocabulary"),
        gated=is_gated,
        tied=config.get("tie_word_embeddings", not is_gated),
    )


def _dimension(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a dimension of a configuration, see `_KEYS`."""
    for key in _KEYS[name]:
        if isinstance(config.get(key), int):
            return config[key]
    if default is not None:
        return default
    raise ValueError(
        f"model: config.json has none of {', '.join(_KEYS[name])}, so {name} is unknown. Add "
        "one of them."
    )
