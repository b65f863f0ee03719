"""Keeps a model's idea of its special tokens in step with the tokenizer it is trained with."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

_NAMES = ("eos_token_id", "bos_token_id", "pad_token_id")


def align_special_tokens(model: Any, processing_class: Any) -> dict[str, int | None]:
    """As `transformers.trainer_utils.align_special_tokens`: model and generation config follow the tokenizer.

    A generation may end at any of several tokens: the tokenizer's end token is put before those that are there.

    Args:
        model: a model with a `config`; others are left alone.
        processing_class: a tokenizer, or something that holds one as `tokenizer`; others are left alone.

    Returns:
        What was changed.
    """
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    config = getattr(model, "config", None)
    if config is None or not all(hasattr(tokenizer, name) for name in _NAMES):
        return {}
    generation = getattr(model, "generation_config", None)
    changed = {name: getattr(tokenizer, name) for name in _NAMES if _differs(name, tokenizer, config, generation)}
    for name, token in changed.items():
        setattr(config, name, token)
        if generation is not None:
            setattr(generation, name, token if name != "eos_token_id" else _end_tokens(token, generation))
    if changed:
        logger.warning("Model and generation config now have the special tokens of the tokenizer: %s", changed)
    return changed


def _differs(name: str, tokenizer: Any, config: Any, generation: Any) -> bool:
    token = getattr(tokenizer, name)
    if token != getattr(config, name, None):
        return True
    if generation is None:
        return False
    if name != "eos_token_id":
        return token != getattr(generation, name)
    known = _as_list(generation.eos_token_id)
    if generation.eos_token_id is not None:
        generation.eos_token_id = known
    return token not in known if known else token is not None


def _end_tokens(token: int | None, generation: Any) -> list[int]:
    return [end for end in [token, *_as_list(generation.eos_token_id)] if end is not None]


def _as_list(tokens: Any) -> list[Any]:
    if tokens is None:
        return []
    return [tokens] if isinstance(tokens, int) else list(tokens)
