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
    """The shape of a saved model.

    Args:
        folder: has `config.json`; where weights lie beside it as `*.safetensors`, they are counted to the last number,
            without being read. Otherwise they follow from the configuration.

    Raises:
        FileNotFoundError: there is no configuration.
        ValueError: the configuration does not tell how wide or how deep the model is.
    """
    place = Path(folder)
    path = place if place.suffix == ".json" else place / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"model={str(folder)!r}: there is no config.json. Give a folder with a saved model.")
    config = read_object(path, "model", "a model's settings")
    weights = tuple(sorted(path.parent.glob("*.safetensors")))
    return model_from_config(config, tensors=_counted(weights) if weights else ())


def model_from_config(config: Mapping[str, Any], *, tensors: tuple[TensorShape, ...] = ()) -> ModelShape:
    """The shape that a configuration describes.

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
    return model if tensors else _assuming(_with_biases(model, config, family), family)


def _decoder_layers(config: Mapping[str, Any], tensors: tuple[TensorShape, ...]) -> int:
    """Layers of the decoder, for models that have one beside an encoder.

    Raises:
        ValueError: the weights are not known: they do not follow from the configuration here.
    """
    if not tensors:
        raise ValueError(
            f"model: {config.get('model_type')!r} has an encoder and a decoder, whose weights do not follow from "
            "config.json here. Put its *.safetensors beside it, or give --params, --layers and --hidden."
        )
    return config.get("num_decoder_layers") or config.get("decoder_layers") or _number(config, "layers")


def _assuming(model: ModelShape, family: str) -> ModelShape:
    """The model; it says so where its family is not one that was counted before."""
    if family in _COUNTED:
        return model
    sentence = f"there is no table of the weights of {family or 'this family'}: those of a usual decoder are taken"
    return replace(model, assumed=f"assumed: {sentence}; with *.safetensors in the folder they are counted")


_COUNTED = (
    *("bert", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "granite", "llama", "mistral", "mixtral"),
    *("opt", "phi", "phi3", "qwen2", "qwen3", "qwen3_moe", "roberta", "smollm3"),
)
"""Families whose weights, by the configuration alone, are right to the last number."""

_BIASED = ("gpt2", "gpt_neox", "opt", "bert", "roberta", "bloom", "phi")
_UNTIED = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "phi3", "olmo", "gpt_neox", "phi", "stablelm")


def _number(config: Mapping[str, Any], what: str) -> int:
    for key in _NAMES[what]:
        if isinstance(config.get(key), int):
            return config[key]
    raise ValueError(
        f"model: config.json has none of {', '.join(_NAMES[what])}, so the {what} are not known. Give --params, "
        "--layers, --hidden and --heads instead."
    )


def _is_without_head(config: Mapping[str, Any]) -> bool:
    (architecture,) = config.get("architectures") or ["ForCausalLM"]
    return "LM" not in architecture and "ConditionalGeneration" not in architecture


def _with_biases(model: ModelShape, config: Mapping[str, Any], family: str) -> ModelShape:
    """The model with the small tensors that its family has and a usual one has not."""
    hidden, layers, one = model.hidden, model.layers, model.query_size + 2 * model.key_size
    vectors: list[tuple[int, bool, int]] = []  # size, in layers, how many
    more: list[TensorShape] = []
    if family in _BIASED:  # all matrices of a layer
        vectors += [(one, True, 1), (hidden, True, 2), (model.intermediate, True, 1)]
    elif family in ("qwen2", "qwen2_moe") or config.get("attention_bias"):
        vectors += [(one, True, 1)] + ([(hidden, True, 1)] if config.get("attention_bias") else [])
    if config.get("mlp_bias"):
        vectors += [(model.intermediate, True, 2), (hidden, True, 1)]
    if model.norm == "layer":  # the usual ones have no bias
        vectors += [(hidden, True, 1 if family == "phi" else 2), (hidden, False, 1)]
    if family == "phi":  # one norm a layer, and a head with a bias
        vectors += [(-hidden, True, 1), (model.vocabulary, False, 1)]
    if family in ("qwen3", "qwen3_moe"):
        vectors += [(model.head_size, True, 2)]
    if family in ("gemma2", "gemma3", "gemma3_text"):
        vectors += [(hidden, True, 2)] + ([(model.head_size, True, 2)] if family != "gemma2" else [])
    positions = {"gpt2": config.get("n_positions"), "opt": (config.get("max_position_embeddings") or 0) + 2}
    if family in ("bert", "roberta"):
        positions[family] = (config.get("max_position_embeddings") or 0) + (config.get("type_vocab_size") or 0)
        pooled = hidden * hidden + hidden if not model.head else 0
        vectors += [(pooled, False, 1)]
        if model.head:  # a layer and a norm before the head, and the head's bias
            vectors += [(hidden * hidden + 3 * hidden + model.vocabulary, False, 1)]
    if positions.get(family):
        more.append(TensorShape((int(positions[family] or 0), hidden), EMBEDDING, False))
    more += [TensorShape((size,), OTHER, inside, (layers if inside else 1) * count) for size, inside, count in vectors]
    return replace(model, tensors=(*model.weights, *(tensor for tensor in more if tensor.size)))


def _counted(files: tuple[Path, ...]) -> tuple[TensorShape, ...]:
    """The tensors of files, by shape and role."""
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
    """The table of contents of a safetensors file: its first 8 bytes say how long it is, JSON follows."""
    try:
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > path.stat().st_size:
                raise ValueError("it says it has more contents than bytes")
            header = json.loads(stream.read(length))
    except (ValueError, struct.error) as error:
        raise ValueError(f"model: {path.name} is no safetensors file: {error}") from None
    return {name: entry for name, entry in header.items() if name != "__metadata__"}
