"""Training a new vocabulary for a tokenizer of the same kind."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers, trainers

from .names import AddedToken

_TRAINERS: dict[str, Any] = {
    "BPE": trainers.BpeTrainer,
    "Unigram": trainers.UnigramTrainer,
    "WordLevel": trainers.WordLevelTrainer,
    "WordPiece": trainers.WordPieceTrainer,
}
_BPE_OPTIONS = ("continuing_subword_prefix", "end_of_word_suffix")

Renamed = dict[str, str]


def trained(
    tokenizer: Tokenizer,
    texts: Iterable[Any],
    vocab_size: int,
    length: int | None,
    new_special_tokens: list[str | AddedToken],
    renamed: Renamed,
    options: dict[str, Any],
) -> Tokenizer:
    """Return a tokenizer that does everything as this one, with a vocabulary of its own.

    Args:
        tokenizer: stays as it is.
        texts: texts, or lists of texts.
        vocab_size: number of tokens.
        length: number of texts, for the progress bar.
        new_special_tokens: beside those it has.
        renamed: special tokens with their new names.
        options: of the trainer in `tokenizers`.

    Raises:
        ValueError: a model of another kind; a special token that gets lost.
    """
    parts = json.loads(tokenizer.to_str())
    kind = parts["model"]["type"]
    if kind not in _TRAINERS:
        raise ValueError(f"A {kind} model cannot be trained; only {', '.join(_TRAINERS)} can.")
    added, processor = parts.pop("added_tokens"), parts.pop("post_processor")
    options = {**options, **_emptied(parts["model"], renamed, options)}
    if _is_byte_level(parts["pre_tokenizer"]):
        options["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    special = [*_special(added, kind, renamed), *new_special_tokens]
    new = Tokenizer.from_str(json.dumps(parts))
    trainer = _TRAINERS[kind](vocab_size=vocab_size, special_tokens=special, **options)
    new.train_from_iterator(texts, length=length, trainer=trainer)
    if processor is None:
        return new
    _renumber(processor, new, renamed)
    return Tokenizer.from_str(json.dumps({**json.loads(new.to_str()), "post_processor": processor}))


def _emptied(model: dict[str, Any], renamed: Renamed, options: dict[str, Any]) -> dict[str, Any]:
    """Empty the vocabulary; returns what the trainer has to know of the model."""
    if model.get("unk_token") in renamed:
        model["unk_token"] = renamed[model["unk_token"]]
    if model["type"] == "BPE":
        model |= {"vocab": {}, "merges": []}
        return {name: model[name] for name in _BPE_OPTIONS if model[name] is not None and name not in options}
    if model["type"] != "Unigram":
        model["vocab"] = {}
        return {}
    if model["unk_id"] is None:
        return {}
    unknown = model["vocab"][model["unk_id"]][0]
    unknown = renamed.get(unknown, unknown)
    model |= {"unk_id": 0, "vocab": [[unknown, 0.0]]}
    return {"unk_token": unknown}


def _special(added: list[dict[str, Any]], kind: str, renamed: Renamed) -> Iterator[AddedToken]:
    """Special tokens, which the trainer puts first; Unigram takes all added ones."""
    for token in added:
        if not token["special"] and kind != "Unigram":
            continue
        flags = {name: value for name, value in token.items() if name not in ("id", "special")}
        flags["content"] = renamed.get(token["content"], token["content"])
        yield AddedToken(**flags)


def _is_byte_level(pre_tokenizer: dict[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return False
    inner = pre_tokenizer.get("pretokenizers", []) if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    return any(each["type"] == "ByteLevel" for each in inner)


def _renumber(processor: dict[str, Any], tokenizer: Tokenizer, renamed: Renamed) -> None:
    """Give the special tokens that the post-processor puts in their new names and ids."""
    for part in processor.get("processors", ()):
        _renumber(part, tokenizer, renamed)
    for token in processor.get("special_tokens", {}).values():
        token["tokens"] = [renamed.get(each, each) for each in token["tokens"]]
        token["ids"] = [_id(each, tokenizer) for each in token["tokens"]]
    for name in ("cls", "sep"):
        if name in processor:
            text = renamed.get(processor[name][0], processor[name][0])
            processor[name] = [text, _id(text, tokenizer)]


def _id(token: str | None, tokenizer: Tokenizer) -> int:
    found = None if token is None else tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(
            f"The post-processor puts {token!r} around texts, but the new vocabulary does not have it: it was no "
            "special token. Pass it in `new_special_tokens`."
        )
    return found
