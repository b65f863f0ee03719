"""Make the shape of a model: by its size, or from the configuration and the files of a saved
one.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
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
_IN_LAYERS = re.compile(r"(?:^|\.)(?:layers?|h|blocks?|block)\.\d+\.")


def model_from_folder(folder: str | os.PathLike[str]) -> ModelShape:
    """Return the shape of a saved model.

    Args:
        folder: has `config.json`; weights beside it in `*.safetensors` are counted, without being
            read. Otherwise they follow from the configuration.

    Raises:
        FileNotFoundError: there is no configuration.
        ValueError: the configuration has no width or no depth, or is that of another kind of model.
    """
    path = Path(folder)
    if path.suffix != ".json":
        path = path / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"model={str(folder)!r}: there is no config.json. Give a folder with a saved model."
        )
    config = read_object(path, "model", "a model's settings")
    files = sorted(path.parent.glob("*.safetensors"))
    return model_from_config(config, tensors=_tensors(chain.from_iterable(map(_shapes_in, files))))


def model_from_config(
    config: Mapping[str, Any], *, tensors: tuple[TensorShape, ...] = ()
) -> ModelShape:
    """Return the shape that a configuration describes.

    Args:
        config: the contents of `config.json`.
        tensors: the weights, where they are known.

    Raises:
        ValueError: a number is missing, or the model is no decoder; names the key.
    """
    config = {**config, **config.get("text_config", {})}
    experts = config.get("num_local_experts") or config.get("num_experts") or 1
    is_encoder_decoder = bool(config.get("is_encoder_decoder"))
    if experts > 1 or is_encoder_decoder:
        raise ValueError(
            f"model: config.json has {experts=} and {is_encoder_decoder=}, but only decoders "
            "without experts are estimated. Give --params, --layers and --hidden of a decoder of "
            "that size instead."
        )
    hidden = _number(config, "hidden")
    heads = _number(config, "heads")
    activation = str(config.get("hidden_act") or config.get("activation_function"))
    gated = "silu" in activation or "rms_norm_eps" in config
    intermediate = next((config[key] for key in _INTERMEDIATE_KEYS if config.get(key)), 4 * hidden)
    architectures = config.get("architectures") or ["ForCausalLM"]
    assumed = (
        "assumed: the weights of a decoder without biases; with *.safetensors in the folder they "
        "are counted"
    )
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
        assumed="" if tensors else assumed,
    )
    return model if tensors else _with_tensors(model)


def _number(config: Mapping[str, Any], dimension: str) -> int:
    for key in _KEYS[dimension]:
        if isinstance(config.get(key), int):
            return config[key]
    raise ValueError(
        f"model: config.json has none of {', '.join(_KEYS[dimension])}, so the {dimension} are not "
        "known. Give --params, --layers, --hidden and --heads instead."
    )


def _shapes_in(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of the tensors of a safetensors file, of which only the header
    is read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - it is not a mapping
                yield name, tuple(file.get_slice(name).get_shape())
    except SafetensorError as error:
        raise ValueError(f"model: {path.name} is not a safetensors file: {error}") from None


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
    """Return a decoder as those of today are built (no biases, SwiGLU), with as many parameters as
    asked for.

    What is not given: layers and width so that the width is 128 times the depth, as it is for
    models around 7 billion parameters, with 12 width^2 parameters a layer (Kaplan et al., "Scaling
    Laws for Neural Language Models", arXiv:2001.08361); heads of 64 or 128 so that
    their number divides by 8; an MLP that makes up the rest.

    Args:
        parameters: how many; None where `layers` and `hidden` say it.
        layers: depth.
        hidden: width.
        heads: attention heads.
        kv_heads: heads of keys and values; by default `heads`.
        intermediate: width of the MLP.
        vocabulary: tokens; 32,000 by default, fewer where that would be more than half of a small
            model.

    Raises:
        ValueError: neither the number of parameters nor depth and width are given, or they
            contradict each other.
    """
    if parameters is None and (layers is None or hidden is None):
        raise ValueError(
            "params: give the number of parameters (--params 7e9), or --layers and --hidden."
        )
    depth, width = _proportions(parameters or 0, layers, hidden)
    tokens = _vocabulary(vocabulary, parameters, width)
    number_of_heads = heads or _usual_heads(width)
    if width % number_of_heads:
        raise ValueError(f"heads={number_of_heads} does not divide hidden={width}.")
    model = ModelShape(
        layers=depth,
        hidden=width,
        heads=number_of_heads,
        kv_heads=kv_heads or number_of_heads,
        head_size=width // number_of_heads,
        intermediate=intermediate or 8 * width // 3,
        vocabulary=tokens,
    )
    if number_of_heads % model.kv_heads:
        raise ValueError(f"kv_heads={kv_heads} does not divide heads={number_of_heads}.")
    model = _with_tensors(model)
    given = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "intermediate": intermediate,
        "vocabulary": vocabulary,
    }
    if parameters is not None:
        model = _filled_up(model, parameters, intermediate is None)
    assumed = [f"{name} {getattr(model, name):,}" for name, value in given.items() if value is None]
    return replace(model, assumed=f"assumed: {', '.join(assumed)}" if assumed else "")


def _proportions(parameters: int, layers: int | None, hidden: int | None) -> tuple[int, int]:
    if hidden is None:
        depth = layers or (parameters / (12 * 128**2)) ** (1 / 3)
        hidden = _to_multiple(math.sqrt(parameters / (12 * max(1, depth))))
    if layers is None:
        layers = max(1, int(parameters / (12 * hidden**2)))
    return layers, hidden


def _to_multiple(width: float) -> int:
    step = next(
        step for least, step in ((4000, 1024), (512, 512), (64, 64), (0, 2)) if width >= least
    )
    return max(1, round(width / step)) * step


def _vocabulary(given: int | None, parameters: int | None, hidden: int) -> int:
    if given is not None:
        return given
    return 32_000 if parameters is None else max(2, min(32_000, parameters // (2 * hidden)))


def _usual_heads(hidden: int) -> int:
    sizes = (128, 64, 32, 16, 8, 4, 2, 1) if hidden >= 4096 else (64, 32, 16, 8, 4, 2, 1)
    heads = 8 if hidden % 8 == 0 else 1
    return hidden // next(size for size in sizes if hidden % (heads * size) == 0)


def _filled_up(model: ModelShape, parameters: int, may_widen: bool) -> ModelShape:
    """Return the model with exactly so many parameters: the MLP is as wide as they allow, the
    root has the rest.
    """
    # Widen the MLP, to a width that divides by the usual sizes of `tp`.
    if may_widen:
        parameters_of_width = 3 * model.hidden * model.layers
        without_mlp = model.parameters - parameters_of_width * model.intermediate
        width = (parameters - without_mlp) // parameters_of_width
        for step in (64, 8):
            if width >= 8 * step:
                width -= width % step
                break
        model = _with_tensors(replace(model, intermediate=max(1, width)))

    # Few parameters may be left.
    rest = parameters - model.parameters
    if rest < 0 or (not may_widen and rest > 0.02 * parameters):
        raise ValueError(
            f"params={parameters:,}, but layers={model.layers}, hidden={model.hidden}, "
            f"intermediate={model.intermediate} and vocabulary={model.vocabulary:,} are "
            f"{model.parameters:,}. Leave out one of them."
        )
    rows, left = divmod(rest, model.hidden)
    more = (TensorShape((rows, model.hidden), MATRIX, False), TensorShape((left,), OTHER, False))
    return replace(model, tensors=(*model.tensors, *(tensor for tensor in more if tensor.size)))


def _with_tensors(model: ModelShape) -> ModelShape:
    """Return a model with the weights of a `Decoder`."""
    with torch.device("meta"):
        decoder = Decoder(model, layers=1)
    tensors = _tensors((name, tuple(weight.shape)) for name, weight in decoder.named_parameters())
    in_layers = [
        replace(tensor, count=tensor.count * model.layers) for tensor in tensors if tensor.in_layers
    ]
    others = [tensor for tensor in tensors if not tensor.in_layers]
    return replace(model, tensors=(*others, *in_layers))


def _tensors(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[TensorShape, ...]:
    """Count named weights by shape and role."""
    counts: Counter[tuple[tuple[int, ...], str, bool]] = Counter()
    for name, shape in shapes:
        in_layers = _IN_LAYERS.search(name) is not None
        role = OTHER
        if len(shape) > 1:
            is_embedding = not in_layers and re.search(r"embed|wte|wpe", name)
            role = EMBEDDING if is_embedding else MATRIX
        if math.prod(shape):
            counts[shape, role, in_layers] += 1
    return tuple(TensorShape(*key, count) for key, count in counts.items())
