"""What a tokenizer can be called on."""

from __future__ import annotations

from typing import Any

_EXPECTED = (
    "Expected a text, a list of texts, or with `is_split_into_words=True` a list of words or a list of such lists; "
    "pairs as a second argument, or as tuples of two."
)


def check_text(name: str, value: Any) -> None:
    """Say what is wrong with an input that is no text, as far as its first element tells.

    Raises:
        ValueError: it is no text, nor a list of texts, and so on.
    """
    inner = value
    for depth in range(4):
        if isinstance(inner, str):
            return
        if not isinstance(inner, (list, tuple)):
            raise ValueError(f"`{name}` {_where(depth)}is {inner!r}, a {type(inner).__name__}. {_EXPECTED}")
        if not inner:
            return
        inner = inner[0]
    raise ValueError(f"`{name}` is nested too deeply. {_EXPECTED}")


def _where(depth: int) -> str:
    return f"has a first element that {'in turn has one that ' * (depth - 1)}" if depth else ""


def rows_of(text: Any, pair: Any, words: bool) -> tuple[list[Any], bool]:
    """The rows to encode, and whether they are a batch.

    Args:
        text: one or several.
        pair: the second texts, or None.
        words: texts are lists of words.

    Raises:
        TypeError: one second text for a batch.
        ValueError: there are not as many second texts as first ones.
    """
    batched = isinstance(text, (list, tuple)) and (not words or (bool(text) and isinstance(text[0], (list, tuple))))
    if not batched:
        return [(text, pair)] if pair else [text], False
    if pair is None:
        return list(text), True
    if isinstance(pair, str):
        raise TypeError(
            "`text_pair` is one text, but `text` a list: pass a list of as many texts, the second of each pair."
        )
    if len(text) != len(pair):
        raise ValueError(f"`text` has {len(text)} texts and `text_pair` {len(pair)}: they cannot be paired.")
    return list(zip(text, pair, strict=True)), True


def rows_error(rows: list[Any], words: bool, error: Exception) -> TypeError:
    """Which of the rows the library could not read.

    Args:
        rows: those that it was given.
        words: they are lists of words.
        error: what it raised.
    """
    for index, row in enumerate(rows):
        if not _is_row(row, words):
            return TypeError(f"Text {index} is {row!r}, a {type(row).__name__}. {_EXPECTED}")
    return TypeError(f"`tokenizers` could not read the texts: {error}. {_EXPECTED}")


def _is_row(row: Any, words: bool) -> bool:
    if _is_text(row, words):
        return True
    return isinstance(row, (list, tuple)) and len(row) == 2 and all(_is_text(part, words) for part in row)


def _is_text(part: Any, words: bool) -> bool:
    if not words:
        return isinstance(part, str)
    return isinstance(part, (list, tuple)) and all(isinstance(word, str) for word in part)
