"""Turn one field of a dataclass into options of a command line."""

from __future__ import annotations

import functools
import json
import types
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from ...lightning_modules.common.suggestions import did_you_mean

WORDS = {
    **dict.fromkeys(("yes", "true", "t", "y", "1"), True),
    **dict.fromkeys(("no", "false", "f", "n", "0"), False),
}
"""Lower-case words for True and False on a command line."""

PASSED_ON = ("help", "choices", "metavar", "nargs", "const", "action", "required")
"""Keys of a field's metadata that are passed to argparse."""


def add_field(container: Any, item: Field[Any], declared: Any) -> None:
    """Add the options of a field to a parser or to a group of one.

    Args:
        container: A parser or group.
        item: The field; it is not changed.
        declared: Its resolved type.

    Raises:
        ValueError: The type cannot be read from a command line.
    """
    aliases = item.metadata.get("aliases", [])
    aliases = [aliases] if isinstance(aliases, str) else aliases
    settings = settings_of(item, declared)
    container.add_argument(*flags_of(item.name), *aliases, **settings)
    if item.default is True and settings.get("const") is True:
        container.add_argument(
            *flags_of(f"no_{item.name}"),
            action="store_false",
            default=False,
            dest=item.name,
            help=settings.get("help"),
        )


def flags_of(name: str) -> Iterable[str]:
    """Return the option with underscores, and the one with dashes."""
    return dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))


def settings_of(item: Field[Any], declared: Any) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for a field."""
    given = {key: item.metadata[key] for key in PASSED_ON if key in item.metadata}
    kind, keep_text = chosen_type(item.name, declared)
    choices = choices_of(kind)
    if kind is bool:
        found = _flag(item, declared, keep_text)
    elif choices:
        found = {"choices": choices, "type": _picker(choices), **_default(item)}
    elif kind is list or get_origin(kind) is list:
        found = _several(item, kind)
    else:
        found = {"type": converter(item.name, kind, keep_text), **_default(item)}
    return {**given, **found}


def chosen_type(name: str, declared: Any) -> tuple[Any, bool]:
    """Return the member of a union that text is converted to, and whether text that does not
    convert is kept.

    Of `str` and another type it is the other one; with None among three or more members it is the
    second, or the first if None is the second. These are the reference's rules; where the reference
    fails (`str | list[str] | None`, `str | bool | None`) the field is read as text or as a truth
    value.

    Raises:
        ValueError: The union has several types, none of which is `str`.
    """
    members: tuple[Any, ...] = (
        get_args(declared) if get_origin(declared) in (Union, types.UnionType) else ()
    )
    others = [member for member in members if member is not types.NoneType]
    if len(others) < 2:
        return (others[0] if others else declared), False
    if str not in others:
        said = (
            f"The field {name!r} is declared as {declared}, and a command line cannot tell which "
            "is meant"
        )
        raise ValueError(f"{said}: declare one type, alone or with None, or add str.")
    optional = len(others) < len(members)
    first = members[0]
    second = members[1]
    if optional and bool in others:
        return bool, True
    if optional and get_origin(second) is list:
        return str, False
    chosen = first if second is types.NoneType or (second is str and not optional) else second
    return chosen, chosen is not str


def choices_of(kind: Any) -> Sequence[Any]:
    """Return the values of a Literal or of an enumeration's members; an empty list for other
    types.
    """
    if get_origin(kind) is Literal:
        return get_args(kind)
    return (
        [member.value for member in kind]
        if isinstance(kind, type) and issubclass(kind, Enum)
        else []
    )


def converter(name: str, kind: Any, keep_text: bool = False) -> Callable[[str], Any]:
    """Return the function that converts text to a type.

    Args:
        name: The field's, for the error.
        kind: A type that is neither a choice nor a list.
        keep_text: Keep text that cannot be converted.
    """
    if kind is Any or kind is object:
        return str
    if kind is bool:
        convert: Callable[[str], Any] = to_bool
    elif kind is dict or get_origin(kind) is dict:
        convert = to_dict
    else:
        convert = kind
    return _or_text(convert) if keep_text else convert


def to_bool(text: str | bool) -> bool:
    """Parse one of `WORDS`, in upper or lower case."""
    if isinstance(text, bool):
        return text
    if text.lower() not in WORDS:
        raise ArgumentTypeError(
            f"{text!r} is neither true nor false. Write one of: {', '.join(WORDS)}."
        )
    return WORDS[text.lower()]


def to_dict(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentTypeError(
            f"{text!r} is not JSON ({error}). Keys and texts need double quotes."
        ) from None
    if not isinstance(value, dict):
        raise ArgumentTypeError(
            f"{text!r} is a JSON {type(value).__name__}; write an object, such as '{{\"a\": 1}}'."
        )
    return value


def _or_text(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    @functools.wraps(convert)
    def convert_or_keep(text: str) -> Any:
        try:
            return convert(text)
        except (ArgumentTypeError, TypeError, ValueError):
            return text

    return convert_or_keep


def _picker(choices: Iterable[Any]) -> Callable[[str], Any]:
    """Return a function from text to the choice of that spelling; argparse refuses text that is
    no choice.
    """
    written = {str(choice): choice for choice in choices}
    return lambda text: written.get(text, text)


def _member(kind: type[Enum]) -> Callable[[str], Enum]:
    values = {str(member.value): member.value for member in kind}

    def pick(text: str) -> Enum:
        try:
            return kind(values.get(text, text))
        except ValueError:
            valid = ", ".join(values)
            raise ArgumentTypeError(
                f"{text!r} is not one of: {valid}.{did_you_mean(text, values)}"
            ) from None

    return pick


def _default(item: Field[Any]) -> dict[str, Any]:
    if item.default is not MISSING:
        return {"default": item.default}
    if item.default_factory is not MISSING:
        return {"default": item.default_factory()}
    return {"required": True}


def _flag(item: Field[Any], declared: Any, keep_text: bool) -> dict[str, Any]:
    """Return settings where `--x` alone means True; with None as "unset" a value is required. No
    default is False.
    """
    found: dict[str, Any] = {"type": _or_text(to_bool) if keep_text else to_bool}
    default = _default(item).get("default")
    optional = types.NoneType in get_args(declared)
    if default is None and optional:
        return found
    missing = item.default is MISSING and item.default_factory is MISSING
    return {**found, "default": False if missing else default, "nargs": "?", "const": True}


def _several(item: Field[Any], kind: Any) -> dict[str, Any]:
    element, keep_text = chosen_type(item.name, (get_args(kind) or (str,))[0])
    choices = choices_of(element)
    found: dict[str, Any] = {"nargs": "+"}
    if get_origin(element) is Literal:
        found |= {"choices": choices, "type": _picker(choices)}
    else:
        found["type"] = _member(element) if choices else converter(item.name, element, keep_text)
    # argparse would parse text as the one element.
    return found if isinstance(item.default, str) else {**found, **_default(item)}
