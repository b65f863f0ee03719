"""Read the shape of a saved model from `config.json` and the headers of `*.safetensors`."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
import os
import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...lightning_modules.common.json_files import read_object
from .shapes import EMBEDDING, MATRIX, OTHER, ModelShape, TensorShape

_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads"),
}
"""Names of each dimension in the configurations of different model families."""

_INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim", "encoder_ffn_dim", "ffn_hidden_size")
_UNGATED = ("gpt2", "gpt_neox", "gpt_neo", "gptj", "opt", "bloom", "phi", "falcon", "bert", "roberta", "distilbert")
_LAYER_NORM = (*_UNGATED, "electra", "vit", "stablelm", "cohere", "starcoder2", "deberta-v2", "xlm-roberta")
_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?|block)\.\d+\.")


def model_from_folder(folder: str | os.PathLike[str]) -> ModelShape:
    """Return the shape of a saved model.

    Args:
        folder: has `config.json`; weights beside it in `*.safetensors` are counted, without being read. Otherwise they
            follow from the configuration.

    Raises:
        FileNotFoundError: there is no configuration.
        ValueError: the configuration has no width or no depth.
    """
    place = Path(folder)
    path = place if place.suffix == ".json" else place / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"model={str(folder)!r}: there is no config.json. Give a folder with a saved model.")
    config = read_object(path, "model", "a model's settings")
    weights = tuple(sorted(path.parent.glob("*.safetensors")))
    return model_from_config(config, tensors=_counted(weights) if weights else ())


def model_from_config(config: Mapping[str, Any], *, tensors: tuple[TensorShape, ...] = ()) -> ModelShape:
    """Return the shape that a configuration describes.

    Args:
        config: the contents of `config.json`.
        tensors: the weights, where they are known.

    Raises:
        ValueError: a number is missing; names it.
    """
    config = {**config, **config.get("text_config", {})}
    hidden, layers, heads = (_number(config, what) for what in ("hidden", "layers", "heads"))
    family = str(config.get("model_type", ""))
    activation = str(config.get("hidden_act") or config.get("activation_function") or config.get("hidden_activation"))
    gated = family not in _UNGATED and not activation.startswith(("gelu_new", "relu")) and family != "t5"
    gated = gated and (
        "silu" in activation or "rms_norm_eps" in config or "gated" in str(config.get("feed_forward_proj"))
    )
    if config.get("is_encoder_decoder"):
        layers += _decoder_layers(config, tensors)
    given = [config[key] for key in ("moe_intermediate_size", *_INTERMEDIATE) if config.get(key)]
    kv_heads = config.get("num_key_value_heads") or (1 if config.get("multi_query") else heads)
    experts = config.get("num_local_experts") or config.get("num_experts") or 1
    model = ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=config.get("head_dim") or config.get("d_kv") or hidden // heads,
        intermediate=given[0] if given else 4 * hidden,
        vocabulary=config.get("vocab_size") or 0,
        gated=gated,
        norm="layer" if family in _LAYER_NORM or "layer_norm_epsilon" in config else "rms",
        activation=activation,
        fused_projection=family in ("gpt2", "gpt_neox", "bloom", "falcon"),
        head=not _is_without_head(config),
        tied=bool(config.get("tie_word_embeddings", family not in _UNTIED)),
        experts=experts,
        active_experts=min(experts, config.get("num_experts_per_tok") or 1),
        tensors=tensors,
    )
    assumed = "assumed: the weights of a decoder without biases; with *.safetensors in the folder they are counted"
    return model if tensors else replace(model, assumed=assumed)


def _decoder_layers(config: Mapping[str, Any], tensors: tuple[TensorShape, ...]) -> int:
    """Return the number of layers of the decoder of an encoder-decoder model.

    Raises:
        ValueError: there are no weights: they do not follow from the configuration here.
    """
    if not tensors:
        said = f"model: the weights of {config.get('model_type')!r} do not follow from config.json"
        raise ValueError(f"{said}. Put its *.safetensors beside it, or give --params, --layers and --hidden.")
    return config.get("num_decoder_layers") or config.get("decoder_layers") or _number(config, "layers")


_UNTIED = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "phi3", "olmo", "gpt_neox", "phi", "stablelm")


def _number(config: Mapping[str, Any], what: str) -> int:
    for key in _NAMES[what]:
        if isinstance(config.get(key), int):
            return config[key]
    said = f"model: config.json has none of {', '.join(_NAMES[what])}, so the {what} are not known"
    raise ValueError(f"{said}. Give --params, --layers, --hidden and --heads instead.")


def _is_without_head(config: Mapping[str, Any]) -> bool:
    (architecture,) = config.get("architectures") or ["ForCausalLM"]
    return "LM" not in architecture and "ConditionalGeneration" not in architecture


def _counted(files: tuple[Path, ...]) -> tuple[TensorShape, ...]:
    """Return the tensors of files, by shape and role."""
    found: Counter[tuple[tuple[int, ...], str, bool]] = Counter()
    for path in files:
        for name, entry in _header(path).items():
            shape = tuple(entry["shape"])
            in_layers = _LAYER.search(f"{name}.") is not None
            embedding = bool(re.search(r"embed|wte|wpe", name))
            role = OTHER if len(shape) < 2 else EMBEDDING if embedding and not in_layers else MATRIX
            found[shape, role, in_layers] += 1
    return tuple(TensorShape(shape, role, inside, count) for (shape, role, inside), count in found.items())


def _header(path: Path) -> dict[str, Any]:
    """Read the header of a safetensors file: 8 bytes with its length, then JSON."""
    try:
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(stream.read(length))
    except (ValueError, struct.error) as error:
        raise ValueError(f"model: {path.name} is no safetensors file: {error}") from None
    return {name: entry for name, entry in header.items() if name != "__metadata__"}
