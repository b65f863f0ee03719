"""The shape of a model, by its size, or from the configuration and files of a saved model."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ...lightning_modules.common.json_files import read_object
from .decoder import Decoder
from .shapes import EMBEDDING, MATRIX, OTHER, ModelShape, TensorShape

_KEYS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
}
"""Keys of each dimension in the configurations of different model families."""
_INTERMEDIATE_KEYS = (
    "intermediate_size",
    "n_inner",
    "ffn_dim",
    "d_ff",
    "hidden_dim",
    "ffn_hidden_size",
)
_LAYER_NAME = re.compile(r"(?:^|\.)(?:layers?|h|blocks?|block)\.\d+\.")
"""Part of the name of a weight in one of the repeated layers."""
_DEFAULT_VOCABULARY = 32_000


def model_from_folder(folder: str | os.PathLike[str]) -> ModelShape:
    """Return the shape of a saved model.

    Args:
        folder: contains `config.json`. The weights are those in its `*.safetensors` files, of
            which only the headers are read; without such files they follow from the configuration.

    Raises:
        FileNotFoundError: the configuration does not exist.
        ValueError: the configuration lacks a dimension, or belongs to another kind of model.
    """
    path = Path(folder)
    if path.suffix != ".json":
        path = path / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"model={str(folder)!r}: config.json does not exist. Pass a folder with a saved model."
        )
    config = read_object(path, "model", "a model's settings")

    shapes: list[tuple[str, tuple[int, ...]]] = []
    for file in sorted(path.parent.glob("*.safetensors")):
        shapes.extend(_read_shapes(file))
    return model_from_config(config, tensors=_count_tensors(shapes))


def model_from_config(
    config: Mapping[str, Any], *, tensors: tuple[TensorShape, ...] = ()
) -> ModelShape:
    """Return the shape that a configuration describes.

    Args:
        config: the content of `config.json`.
        tensors: the weights, if they are known.

    Raises:
        ValueError: a dimension is missing, or the model is not a decoder; the message names the
            key.
    """
    config = {**config, **config.get("text_config", {})}
    experts = config.get("num_local_experts") or config.get("num_experts") or 1
    is_encoder_decoder = bool(config.get("is_encoder_decoder"))
    if experts > 1 or is_encoder_decoder:
        raise ValueError(
            f"model: config.json has {experts=} and {is_encoder_decoder=}, but only decoders "
            "without experts can be estimated. Pass --params, --layers and --hidden of a decoder "
            "of that size instead."
        )

    # Each family of models has its own names.
    hidden = _number(config, "hidden")
    heads = _number(config, "heads")

    # No key says that the MLP is gated: it is in families with SiLU or an RMS norm.
    activation = str(config.get("hidden_act") or config.get("activation_function"))
    gated = "silu" in activation or "rms_norm_eps" in config
    intermediate = 4 * hidden
    for key in _INTERMEDIATE_KEYS:
        if config.get(key):
            intermediate = config[key]
            break
    architectures = config.get("architectures") or ["ForCausalLM"]

    model = ModelShape(
        layers=_number(config, "layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or hidden // heads,
        intermediate=intermediate,
        vocabulary=config.get("vocab_size") or 0,
        gated=gated,
        head="LM" in architectures[0],
        tied=config.get("tie_word_embeddings", not gated),
        tensors=tensors,
    )
    if tensors:
        return model
    assumed = (
        "assumed: the weights of a decoder without biases; put *.safetensors files into the folder "
        "to count them"
    )
    return replace(_with_tensors(model), assumed=assumed)


def _number(config: Mapping[str, Any], dimension: str) -> int:
    """Return a dimension of a configuration, see `_KEYS`."""
    for key in _KEYS[dimension]:
        if isinstance(config.get(key), int):
            return config[key]
    raise ValueError(
        f"model: config.json has none of {', '.join(_KEYS[dimension])}, so {dimension} is unknown. "
        "Pass --params, --layers, --hidden and --heads instead."
    )


def _read_shapes(path: Path) -> list[tuple[str, tuple[int, ...]]]:
    """Return the names and shapes of the tensors of a safetensors file, from its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            shapes = []
            for name in file.keys():  # noqa: SIM118 - it is not a mapping
                shape = file.get_slice(name).get_shape()
                shapes.append((name, tuple(shape)))
            return shapes
    except SafetensorError as error:
        raise ValueError(
            f"model: {path.name} is not a safetensors file: {error}. Delete it, or restore it."
        ) from None


def model_of_size(
    parameters: int | None = None,
    *,
    layers: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    intermediate: int | None = None,
    vocabulary: int | None = None,
) -> ModelShape:
    """Return a decoder of a modern architecture (no biases, SwiGLU) with a number of parameters.

    Dimensions that are not passed are derived. The width is 128 times the depth, as in models with
    about 7 billion parameters, and a layer has 12 width^2 parameters (Kaplan et al., "Scaling Laws
    for Neural Language Models", arXiv:2001.08361). Heads have a size of 64 or 128, so that 8
    divides their number. The MLP gets the remaining parameters.

    Args:
        parameters: number of parameters; None if it follows from `layers` and `hidden`.
        layers: depth.
        hidden: width.
        heads: attention heads.
        kv_heads: heads of keys and values; by default `heads`.
        intermediate: width of the MLP.
        vocabulary: number of tokens; by default 32,000, fewer if the embedding would be more than
            half of a small model.

    Raises:
        ValueError: neither the number of parameters nor depth and width were passed, or numbers
            contradict each other.
    """
    passed = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "intermediate": intermediate,
        "vocabulary": vocabulary,
    }
    if parameters is None and (layers is None or hidden is None):
        raise ValueError(
            "params: pass the number of parameters (--params 7e9), or --layers and --hidden."
        )

    # Dimensions that were not passed.
    if hidden is None:
        hidden = _usual_width(parameters or 0, layers)
    if layers is None:
        layers = max(1, int((parameters or 0) / (12 * hidden**2)))
    if vocabulary is None:
        vocabulary = _usual_vocabulary(parameters, hidden)
    heads = heads or _usual_heads(hidden)
    kv_heads = kv_heads or heads
    if hidden % heads:
        raise ValueError(f"heads={heads} does not divide hidden={hidden}.")
    if heads % kv_heads:
        raise ValueError(f"kv_heads={kv_heads} does not divide heads={heads}.")

    model = ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=hidden // heads,
        intermediate=intermediate or 8 * hidden // 3,
        vocabulary=vocabulary,
    )
    model = _with_tensors(model)
    if parameters is not None:
        model = _with_parameters(model, parameters, may_widen=intermediate is None)

    # Name what was assumed.
    assumptions = []
    for name, value in passed.items():
        if value is None:
            assumptions.append(f"{name} {getattr(model, name):,}")
    if assumptions:
        model = replace(model, assumed=f"assumed: {', '.join(assumptions)}")
    return model


def _usual_width(parameters: int, layers: int | None) -> int:
    """Return the width for a number of parameters, and a depth if that is known."""
    depth = layers or (parameters / (12 * 128**2)) ** (1 / 3)
    width = math.sqrt(parameters / (12 * max(1, depth)))
    if width >= 4000:
        step = 1024
    elif width >= 512:
        step = 512
    elif width >= 64:
        step = 64
    else:
        step = 2
    return max(1, round(width / step)) * step


def _usual_vocabulary(parameters: int | None, hidden: int) -> int:
    """Return the usual size of a vocabulary, or a smaller one for a small model."""
    if parameters is None:
        return _DEFAULT_VOCABULARY
    half_of_model = parameters // (2 * hidden)
    return max(2, min(_DEFAULT_VOCABULARY, half_of_model))


def _usual_heads(hidden: int) -> int:
    """Return the number of heads for a width: 8 divides it, if possible."""
    largest_size = 128 if hidden >= 4096 else 64
    divisor = 8 if hidden % 8 == 0 else 1
    head_size = largest_size
    while hidden % (divisor * head_size):
        head_size //= 2
    return hidden // head_size


def _with_parameters(model: ModelShape, parameters: int, *, may_widen: bool) -> ModelShape:
    """Return the model with exactly this number of parameters.

    The MLP is widened as far as they allow, and the root gets the rest.

    Args:
        model: with its weights.
        parameters: number of parameters.
        may_widen: False if the user has passed the width of the MLP.

    Raises:
        ValueError: the dimensions need more parameters, or leave too many.
    """
    # The usual sizes of `tp` have to divide the width.
    if may_widen:
        parameters_of_width = 3 * model.hidden * model.layers
        without_mlp = model.parameters - parameters_of_width * model.intermediate
        width = (parameters - without_mlp) // parameters_of_width
        for step in (64, 8):
            if width >= 8 * step:
                width -= width % step
                break
        model = _with_tensors(replace(model, intermediate=max(1, width)))

    # Only a few parameters may be left.
    rest = parameters - model.parameters
    if rest < 0 or (not may_widen and rest > 0.02 * parameters):
        raise ValueError(
            f"params={parameters:,}, but a model with layers={model.layers}, "
            f"hidden={model.hidden}, intermediate={model.intermediate} and "
            f"vocabulary={model.vocabulary:,} has {model.parameters:,} parameters. Leave out one "
            "of these options."
        )

    # They are added as rows of a matrix, and as a vector.
    rows, elements = divmod(rest, model.hidden)
    tensors = list(model.tensors)
    if rows:
        tensors.append(TensorShape((rows, model.hidden), MATRIX, False))
    if elements:
        tensors.append(TensorShape((elements,), OTHER, False))
    return replace(model, tensors=tuple(tensors))


def _with_tensors(model: ModelShape) -> ModelShape:
    """Return a model with the weights of a `Decoder`."""
    with torch.device("meta"):
        decoder = Decoder(model, layers=1)
    shapes = [(name, tuple(weight.shape)) for name, weight in decoder.named_parameters()]

    # The decoder has one layer, which stands for all.
    root_tensors = []
    layer_tensors = []
    for tensor in _count_tensors(shapes):
        if tensor.in_layers:
            layer_tensors.append(replace(tensor, count=tensor.count * model.layers))
        else:
            root_tensors.append(tensor)
    return replace(model, tensors=(*root_tensors, *layer_tensors))


def _count_tensors(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[TensorShape, ...]:
    """Count weights by shape and role.

    Args:
        shapes: the name and shape of each weight.
    """
    counts: Counter[tuple[tuple[int, ...], str, bool]] = Counter()
    for name, shape in shapes:
        if math.prod(shape) == 0:
            continue
        in_layers = _LAYER_NAME.search(name) is not None
        is_embedding = not in_layers and re.search(r"embed|wte|wpe", name) is not None
        if len(shape) < 2:
            role = OTHER
        elif is_embedding:
            role = EMBEDDING
        else:
            role = MATRIX
        counts[shape, role, in_layers] += 1
    return tuple(TensorShape(*key, count) for key, count in counts.items())
