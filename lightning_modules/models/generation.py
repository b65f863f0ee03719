"""Call a model's `generate`, and pad sequences to one length."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from . import inspection
from .generation_config import generate_parameters, require_accepted, setting


def generate(
    model: Any, inputs: Mapping[str, Any], options: Mapping[str, Any], *, synced_gpus: bool
) -> torch.Tensor:
    """Call the model's `generate` with the inputs that it accepts.

    Args:
        model: has a method `generate` that returns token ids.
        inputs: the batch; columns that `generate` has no parameter for, such as labels, are left
            out.
        options: settings that go before those of the model.
        synced_gpus: go on until the last process has finished its sequences. Said only where it is
            true, or where `generate` has a parameter of this name.

    Returns:
        Token ids, (samples, length).

    Raises:
        TypeError: the model does not generate, or something else than that.
        ValueError: `generate` does not take an option.
    """
    require_generate(model)
    settings = getattr(model, "generation_config", None)
    if not isinstance(settings, Mapping):
        settings = {}  # an object is read by `generate` itself
    options = {**settings, **options}
    if synced_gpus or "synced_gpus" in generate_parameters(model):
        options.setdefault("synced_gpus", synced_gpus)
    require_accepted(model, options, "options of the generation")
    inputs = {name: value for name, value in inputs.items() if name not in options}
    _gather_weights_for_generate(model)
    generated = model.generate(**inspection.accepted_arguments(model.generate, **inputs), **options)
    return _tokens(model, getattr(generated, "sequences", generated))


def require_generate(model: Any) -> None:
    """Check that the model generates.

    Raises:
        TypeError: it has no method `generate`.
    """
    if not callable(getattr(model, "generate", None)):
        raise TypeError(
            f"{type(model).__name__} has no method generate. Set predict_with_generate=False, or "
            "add it."
        )


def settle_defaults(config: Any) -> None:
    """Fill unset values of a generation config with the defaults of `transformers`, as the
    reference does.

    The reference does so after each generation, with a visible effect: without a `max_length` the
    first batch may have 20 tokens after the start token, all others 20 including it.
    """
    if getattr(config, "_from_model_config", False):
        config._from_model_config = False
    if callable(getattr(config, "_get_default_generation_params", None)):
        config.update(**config._get_default_generation_params(), defaults_only=True)


def common_length(config: Any, length: int) -> int:
    """Return the length to pad the sequences of a batch to, so that all batches are equally long.

    Args:
        config: generation config of the model: `max_length`, or `max_new_tokens` and the start
            token.
        length: their present length.
    """
    max_length = setting(config, "max_length")
    if max_length is not None and length < max_length:
        return max_length
    max_new_tokens = setting(config, "max_new_tokens")
    if max_new_tokens is None:
        return length
    return max(length, max_new_tokens + 1)


def padding_token(processing_class: Any, model: Any) -> int:
    """Return the token to pad sequences with: the first of those that are set.

    Searched are the processing class (padding, then end-of-sequence token), the model's config
    (padding), the tokenizer of a processor, the generation config, and the model's config
    (end-of-sequence token).

    Raises:
        ValueError: none is set.
    """
    config = getattr(model, "config", None)
    generation_config = getattr(model, "generation_config", None)
    tokenizer = getattr(processing_class, "tokenizer", None)
    places = [
        (processing_class, "pad_token_id"),
        (processing_class, "eos_token_id"),
        (config, "pad_token_id"),
        (tokenizer, "pad_token_id"),
        (tokenizer, "eos_token_id"),
        (generation_config, "pad_token_id"),
        (generation_config, "eos_token_id"),
        (config, "eos_token_id"),
    ]
    for place, name in places:
        token = setting(place, name)
        if isinstance(token, (list, tuple)):
            token = token[0] if token else None
        if token is not None:
            return int(token)
    raise ValueError(
        f"No token to pad with: neither {type(processing_class).__name__} (processing_class) nor "
        f"the config of {type(model).__name__} has a pad_token_id or eos_token_id. Set one."
    )


def without_answers(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Drop decoder inputs that were made from the labels: `generate` would continue after them."""
    kept = dict(inputs)
    labels = inputs.get("labels")
    decoder_inputs = inputs.get("decoder_input_ids")
    if labels is not None and decoder_inputs is not None and labels.shape == decoder_inputs.shape:
        del kept["decoder_input_ids"]
        kept.pop("decoder_attention_mask", None)
    return kept


def _gather_weights_for_generate(model: Any) -> None:
    """Register `generate` with `fully_shard` as a forward method, since it calls submodules
    directly.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(model, fsdp.FSDPModule) and "generate" not in vars(model):
        fsdp.register_fsdp_forward_method(model, "generate")


def _tokens(model: Any, generated: Any) -> torch.Tensor:
    if isinstance(generated, torch.Tensor) and generated.dim() == 2:
        return generated
    shape = f" of shape {tuple(generated.shape)}" if isinstance(generated, torch.Tensor) else ""
    raise TypeError(
        f"{type(model).__name__}.generate returned a {type(generated).__name__}{shape}, not a "
        "tensor (samples, length)."
    )
