"""Keep secrets, such as Hub tokens, out of messages and of local variables in tracebacks.

Tools that show local variables (`pytest --showlocals`, rich, `cgitb`, sentry) show their `repr`. A
function that accepts a token therefore wraps it first, and keeps no variable with the plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HIDDEN = "<hidden>"
_NAMES = ("token", "hub_token", "hf_token", "push_to_hub_token", "auth_token", "use_auth_token")
_HUB_NAMES = ("hub_token", "push_to_hub_token")
_HUB_TOKEN = re.compile(r"\b(?:hf_|api_org_)[A-Za-z0-9]{20,}")


class Secret(str):
    """String whose `repr` does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{HIDDEN}'"

    def __str__(self) -> str:
        return self


class RedactedObject:
    """Stand-in for a secret that is not a string, such as bytes or a list.

    Args:
        value: the secret. Only its type is stored.
    """

    def __init__(self, value: Any) -> None:
        self.kind = type(value).__name__

    def __repr__(self) -> str:
        return f"<hidden {self.kind}>"


def secret(value: object) -> Any:
    """Wrap a value so that its `repr` does not show it.

    None, True and False are returned unchanged.
    """
    if value is None or isinstance(value, (bool, Secret, RedactedObject)):
        return value
    if isinstance(value, str):
        return Secret(value)
    return RedactedObject(value)


def is_secret_name(name: str) -> bool:
    """Return whether an argument with this name is a token."""
    return name.lower().replace("-", "_") in _NAMES


def secret_values(arguments: Mapping[str, object]) -> dict[str, object]:
    """Wrap tokens among arguments, which are recognised by name or by format."""
    return {name: _wrap_token(str(name), value) for name, value in arguments.items()}


def secret_words(words: Sequence[str]) -> list[str]:
    """Wrap tokens in the words of a command line: `--hub_token hf_...` and `--hub_token=hf_...`."""
    wrapped: list[str] = []
    is_token_expected = False
    for word in words:
        name, sign, _ = word.partition("=")
        is_option = word.startswith("-")
        is_secret_option = is_option and is_secret_name(name.lstrip("-"))

        # A secret is the value after a secret option, an option with its value, or a word that
        # looks like a token.
        is_secret = (
            (is_token_expected and not is_option)
            or (is_secret_option and sign != "")
            or _HUB_TOKEN.search(word) is not None
        )
        if is_secret:
            word = Secret(word)
        wrapped.append(word)
        is_token_expected = is_secret_option and sign == ""
    return wrapped


def redacted(text: str) -> str:
    """Replace Hub tokens in a text."""
    return _HUB_TOKEN.sub(HIDDEN, text)


def strip_token(error: BaseException, token: object = None) -> None:
    """Remove a token from the messages of an error and its causes, and drop their tracebacks.

    Frames of an HTTP client contain its headers.

    Args:
        error: the error, which is changed in place.
        token: the secret. Other strings that look like a token are removed too.
    """
    for cause in error_chain(error):
        parts: list[Any] = []
        for part in cause.args:
            if isinstance(part, str):
                part = replace_token(part, token)
            parts.append(part)
        cause.args = tuple(parts)
        cause.__traceback__ = None


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def replace_token(text: str, token: object = None) -> str:
    """Replace a token, and strings that look like Hub tokens, in a text."""
    if token and isinstance(token, str):
        text = text.replace(token, HIDDEN)
    return redacted(text)


def redact_argument(word: str) -> str:
    """Return a word of a command line for a message, without the value of a secret."""
    if not isinstance(word, Secret):
        return word
    name, sign, _ = word.partition("=")
    if sign and name.startswith("-"):
        return f"{name}={HIDDEN}"
    return HIDDEN


def option_names(words: Sequence[str]) -> str:
    """Return the options in a command line, without their values.

    A secret may follow a misspelt option.
    """
    names = [word.partition("=")[0] for word in words if word.startswith("-")]
    text = ", ".join(names)
    hidden_count = len(words) - len(names)
    if hidden_count:
        note = f"({hidden_count} values are not shown, because they may be secrets)"
        text = f"{text} {note}".lstrip()
    return text


def _wrap_token(name: str, value: object) -> object:
    if not isinstance(value, str):
        return secret(value) if name in _HUB_NAMES else value
    is_secret = is_secret_name(name) or _HUB_TOKEN.search(value) is not None
    return Secret(value) if is_secret else value
