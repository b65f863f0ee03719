"""Keep secrets, such as tokens of the Hub, out of messages and local variables of tracebacks.

Tools that show local variables (`pytest --showlocals`, rich, `cgitb`, sentry) show their `repr`. So
a function that accepts a token wraps it first, and leaves no variable with the bare text.
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
    """Text with a `repr` that does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{HIDDEN}'"

    def __str__(self) -> str:
        return self


class SecretThing:
    """Stand-in for a secret that is no text, such as bytes or a list.

    Args:
        value: not kept, only its type.
    """

    def __init__(self, value: Any) -> None:
        self.kind = type(value).__name__

    def __repr__(self) -> str:
        return f"<hidden {self.kind}>"


def secret(value: Any) -> Any:
    """Wrap a value so that its `repr` does not show it; None, True and False are returned
    unchanged.
    """
    if value is None or isinstance(value, (bool, Secret, SecretThing)):
        return value
    return Secret(value) if isinstance(value, str) else SecretThing(value)


def is_secret_name(name: str) -> bool:
    """Return whether an argument of this name holds a token."""
    return name.lower().replace("-", "_") in _NAMES


def secret_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with tokens wrapped, found by the argument's name or by their form."""
    return {name: _guarded(str(name), value) for name, value in given.items()}


def secret_words(words: Sequence[str]) -> list[str]:
    """Wrap the tokens in the words of a command line: `--hub_token hf_...` and
    `--hub_token=hf_...`.
    """
    found = []
    expected = False
    for word in words:
        name, sign, _ = word.partition("=")
        is_option = word.startswith("-")
        hides = (expected and not is_option) or _HUB_TOKEN.search(word)
        found.append(
            Secret(word)
            if hides or (is_option and sign and is_secret_name(name.lstrip("-")))
            else word
        )
        expected = is_option and not sign and is_secret_name(word.lstrip("-"))
    return found


def redacted(text: str) -> str:
    """Return the text with tokens of the Hub replaced."""
    return _HUB_TOKEN.sub(HIDDEN, text)


def bare(error: BaseException, token: Any = None) -> None:
    """Remove a token from the texts of an error and of its causes, and drop their frames.

    The frames of an HTTP client hold its headers.

    Args:
        error: is changed.
        token: the secret; whatever looks like one goes too.
    """
    for one in chain(error):
        one.args = tuple(
            without(part, token) if isinstance(part, str) else part for part in one.args
        )
        one.__traceback__ = None


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def without(text: str, token: Any = None) -> str:
    """Return the text without this token, and without what looks like one of the Hub."""
    return redacted(text.replace(token, HIDDEN) if token and isinstance(token, str) else text)


def shown_word(word: str) -> str:
    """Return a word of a command line for a message, with only the name of a secret one."""
    if not isinstance(word, Secret):
        return word
    name, sign, _ = word.partition("=")
    return f"{name}={HIDDEN}" if sign and name.startswith("-") else HIDDEN


def option_names(words: Sequence[str]) -> str:
    """Return the options among words of a command line, without values: a misspelt one may have
    a secret.
    """
    names = [word.partition("=")[0] for word in words if word.startswith("-")]
    text = ", ".join(names)
    hidden = len(words) - len(names)
    if hidden:
        text = f"{text} (values that are not shown, as they may be secrets: {hidden})".lstrip()
    return text


def _guarded(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return Secret(value) if is_secret_name(name) or _HUB_TOKEN.search(value) else value
    return secret(value) if name in _HUB_NAMES else value
