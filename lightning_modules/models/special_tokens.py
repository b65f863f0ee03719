"""Align a model's special tokens with its tokenizer."""

from __future__ import annotations

import logging
from typing import Any

from ..common.followed import followed

logger = logging.getLogger(__name__)

_NAMES = ("eos_token_id", "bos_token_id", "pad_token_id")


def align_special_tokens(model: Any, processing_class: Any) -> dict[str, int]:
    """As `transformers.trainer_utils.align_special_tokens` of 5.23: model and generation config
    follow the tokenizer.

    Tokens that the tokenizer lacks are not changed. A generation may end at any of several tokens:
    the tokenizer's end token is put before the existing ones, in the model's config if it holds a
    list.

    Args:
        model: a model with a `config`; others are left alone.
        processing_class: a tokenizer (a `PreTrainedTokenizerBase`), or a `ProcessorMixin` that
            holds one as `tokenizer`; objects of other classes are left alone, whatever tokens they
            have.

    Returns:
        What was changed.
    """
    tokenizer = _tokenizer_of(processing_class)
    config = getattr(model, "config", None)
    if config is None or tokenizer is None:
        return {}
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    generation: Any = getattr(model, "generation_config", None)
    places = [text_config] if generation is None else [text_config, generation]
    changed: dict[str, int] = {}
    for name in _NAMES:
        token = getattr(tokenizer, name)
        if token is None or all(token in _as_list(getattr(place, name, None)) for place in places):
            continue
        changed[name] = token
        for place in places:
            known = getattr(place, name, None)
            several = name == "eos_token_id" and (place is generation or isinstance(known, list))
            others = [other for other in _as_list(known) if other != token]
            setattr(place, name, [token, *others] if several else token)
    if generation is not None and not followed().keeps_single_end_token:
        single_end = getattr(generation, "eos_token_id", None)
        if isinstance(single_end, int):
            generation.eos_token_id = [single_end]
    if changed:
        logger.warning(
            "Model and generation config now have the special tokens of the tokenizer: %s", changed
        )
    return changed


def _tokenizer_of(processing_class: Any) -> Any:
    """Return the tokenizer of a processing class that is one, or that holds one; None for
    objects of other classes.
    """
    bases = {base.__name__ for base in type(processing_class).__mro__}
    if "ProcessorMixin" in bases:
        return getattr(processing_class, "tokenizer", None)
    return processing_class if "PreTrainedTokenizerBase" in bases else None


def _as_list(tokens: Any) -> list[Any]:
    if tokens is None:
        return []
    return list(tokens) if isinstance(tokens, (list, tuple)) else [tokens]
