"""Call a model's `generate`, and pad sequences to one length."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from .generation_config import generate_parameters, require_accepted, setting
from .signatures import accepted_arguments

if TYPE_CHECKING:
    from torch import nn


def generate(
    model: Any, inputs: Mapping[str, Any], options: Mapping[str, Any], *, synced_gpus: bool
) -> torch.Tensor:
    """Call the model's `generate` with the inputs that it accepts.

    Args:
        model: a model whose method `generate` returns token ids.
        inputs: the batch; columns that are not parameters of `generate`, such as labels, are
            dropped.
        options: settings that override those of the model.
        synced_gpus: whether to continue until the last process has finished its sequences. It is
            passed only if it is True, or if `generate` has a parameter of this name.

    Returns:
        Token ids, (samples, length).

    Raises:
        TypeError: the model does not generate, or does not return token ids.
        ValueError: `generate` does not accept an option.
    """
    require_generate(model)

    # `generate` reads a config object itself. Settings in a dict are passed as arguments.
    settings = getattr(model, "generation_config", None)
    if isinstance(settings, Mapping):
        options = {**settings, **options}
    options = dict(options)
    if synced_gpus or "synced_gpus" in generate_parameters(model):
        options.setdefault("synced_gpus", synced_gpus)
    require_accepted(model, options, "options of the generation")

    inputs = {name: value for name, value in inputs.items() if name not in options}
    accepted_inputs = accepted_arguments(model.generate, **inputs)
    _gather_weights_for_generate(model)
    output = model.generate(**accepted_inputs, **options)
    return _require_tokens(model, getattr(output, "sequences", output))


def require_generate(model: nn.Module) -> None:
    """Check that the model has a method `generate`.

    Raises:
        TypeError: the model has no method `generate`.
    """
    if not callable(getattr(model, "generate", None)):
        raise TypeError(
            f"{type(model).__name__} has no method generate. Set predict_with_generate=False, or "
            "add the method."
        )


def fill_defaults(config: Any) -> None:
    """Fill unset values of a generation config with the defaults of `transformers`.

    The reference does so after each generation, which changes results: without a `max_length` the
    first batch may have 20 tokens after the start token, and all later ones 20 including it.
    """
    if getattr(config, "_from_model_config", False):
        config._from_model_config = False
    if callable(getattr(config, "_get_default_generation_params", None)):
        config.update(**config._get_default_generation_params(), defaults_only=True)


def padded_length(config: Any, length: int) -> int:
    """Return the length to pad the sequences of a batch to, so that all batches are equally long.

    It is `max_length`, or `max_new_tokens` and the start token.

    Args:
        config: generation config of the model.
        length: current length of the sequences; the result is not smaller.
    """
    max_length = setting(config, "max_length")
    if max_length is not None and length < max_length:
        return max_length
    max_new_tokens = setting(config, "max_new_tokens")
    if max_new_tokens is None:
        return length
    return max(length, max_new_tokens + 1)


def padding_token(processing_class: Any, model: nn.Module) -> int:
    """Return the token to pad sequences with.

    It is the first token that is set in this order: processing class (padding, then end-of-sequence
    token), config of the model (padding), tokenizer of a processor, generation config, config of
    the model (end-of-sequence token).

    Raises:
        ValueError: no token is set.
    """
    config = getattr(model, "config", None)
    generation_config = getattr(model, "generation_config", None)
    tokenizer = getattr(processing_class, "tokenizer", None)
    sources = [
        (processing_class, "pad_token_id"),
        (processing_class, "eos_token_id"),
        (config, "pad_token_id"),
        (tokenizer, "pad_token_id"),
        (tokenizer, "eos_token_id"),
        (generation_config, "pad_token_id"),
        (generation_config, "eos_token_id"),
        (config, "eos_token_id"),
    ]
    for source, name in sources:
        tokens = setting(source, name)
        if tokens is None:
            continue
        if not isinstance(tokens, (list, tuple)):
            return int(tokens)
        # A generation may end at any of several tokens.
        if tokens and tokens[0] is not None:
            return int(tokens[0])
    raise ValueError(
        f"No token to pad with: neither {type(processing_class).__name__} (processing_class) nor "
        f"the config of {type(model).__name__} has a pad_token_id or eos_token_id. Set one of them."
    )


def without_answers(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs without decoder inputs that were made from the labels.

    `generate` would continue after them, instead of generating the answers.
    """
    inputs = dict(inputs)
    labels = inputs.get("labels")
    decoder_inputs = inputs.get("decoder_input_ids")
    if labels is not None and decoder_inputs is not None and labels.shape == decoder_inputs.shape:
        del inputs["decoder_input_ids"]
        inputs.pop("decoder_attention_mask", None)
    return inputs


def _gather_weights_for_generate(model: nn.Module) -> None:
    """Let `fully_shard` gather the weights in `generate`, which calls submodules directly."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(model, fsdp.FSDPModule) and "generate" not in vars(model):
        fsdp.register_fsdp_forward_method(model, "generate")


def _require_tokens(model: nn.Module, output: object) -> torch.Tensor:
    """Return token ids, and raise for any other output of `generate`."""
    shape = ""
    if isinstance(output, torch.Tensor):
        if output.dim() == 2:
            return output
        shape = f" of shape {tuple(output.shape)}"
    raise TypeError(
        f"{type(model).__name__}.generate returned a {type(output).__name__}{shape}: it has to "
        "return a tensor (samples, length)."
    )
