"""Align a model's special tokens with those of its tokenizer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..common.version_behavior import version_behavior
from .pretrained import set_in_config

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

_NAMES = ("eos_token_id", "bos_token_id", "pad_token_id")


def align_special_tokens(model: nn.Module, processing_class: object) -> dict[str, int]:
    """Copy the special tokens of a tokenizer to the configs of a model.

    Works like `transformers.trainer_utils.align_special_tokens` of 5.23.

    Model config and generation config get the special tokens of the tokenizer. Tokens that the
    tokenizer lacks are not changed. The tokenizer's EOS token is inserted before the existing ones
    of the generation config, which may be several. In the model config it replaces a single token,
    or is inserted before those of a list.

    Args:
        model: a model with a `config`; other models are not changed.
        processing_class: a tokenizer (a `PreTrainedTokenizerBase`), or a `ProcessorMixin` with one
            as `tokenizer`. Objects of other classes change nothing.

    Returns:
        The tokens that were changed, by name.
    """
    tokenizer = _tokenizer_of(processing_class)
    config = getattr(model, "config", None)
    if config is None or tokenizer is None:
        return {}
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    generation_config: Any = getattr(model, "generation_config", None)
    configs = [config]
    if generation_config is not None:
        configs.append(generation_config)

    changed: dict[str, int] = {}
    for name in _NAMES:
        token = getattr(tokenizer, name)
        if token is None or all(token in _tokens_of(holder, name) for holder in configs):
            continue
        for holder in configs:
            other_tokens = [other for other in _tokens_of(holder, name) if other != token]
            is_list = isinstance(getattr(holder, name, None), list)
            accepts_list = holder is generation_config or is_list
            tokens = token
            if name == "eos_token_id" and accepts_list:
                tokens = [token, *other_tokens]
            if set_in_config(holder, name, tokens):
                changed[name] = token

    # transformers before 5.18 puts a single EOS token of a generation config into a list.
    if generation_config is not None and not version_behavior().keeps_single_end_token:
        end_token = getattr(generation_config, "eos_token_id", None)
        if isinstance(end_token, int):
            generation_config.eos_token_id = [end_token]

    if changed:
        logger.warning(
            "Model and generation config now have the special tokens of the tokenizer: %s", changed
        )
    return changed


def _tokenizer_of(processing_class: object) -> object:
    """Return the tokenizer that a processing class is or has; None for other objects."""
    bases = {base.__name__ for base in type(processing_class).__mro__}
    if "ProcessorMixin" in bases:
        return getattr(processing_class, "tokenizer", None)
    if "PreTrainedTokenizerBase" in bases:
        return processing_class
    return None


def _tokens_of(config: object, name: str) -> list[int]:
    """Return the tokens that a config has under a name as a list."""
    tokens = getattr(config, name, None)
    if tokens is None:
        return []
    if isinstance(tokens, (list, tuple)):
        return list(tokens)
    return [tokens]
