"""Turn a field of a dataclass into command line options."""

from __future__ import annotations

import functools
import json
import types
from argparse import Action, ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol, Union, get_args, get_origin

from ...lightning_modules.common.suggestions import did_you_mean

TRUTH_WORDS = {
    "yes": True,
    "true": True,
    "t": True,
    "y": True,
    "1": True,
    "no": False,
    "false": False,
    "f": False,
    "n": False,
    "0": False,
}
"""Lower-case words for True and False on a command line."""

ARGPARSE_KEYS = ("help", "choices", "metavar", "nargs", "const", "action", "required")
"""The keys of a field's metadata that are passed to argparse."""


class AcceptsOptions(Protocol):
    """A parser, or a group of options in its help."""

    def add_argument(self, *name_or_flags: str, **kwargs: Any) -> Action:
        """Add an option, as `argparse.ArgumentParser.add_argument` does."""
        ...


def add_field(container: AcceptsOptions, item: Field[Any], declared_type: object) -> None:
    """Add the options of a field to a parser or to a group of a parser.

    Args:
        container: A parser or group.
        item: The field; it is not changed.
        declared_type: The resolved type of the field: a class, a union, a Literal or a generic.

    Raises:
        ValueError: The type cannot be read from a command line.
    """
    aliases = item.metadata.get("aliases", [])
    if isinstance(aliases, str):
        aliases = [aliases]
    settings = add_argument_settings(item, declared_type)
    container.add_argument(*flags_of(item.name), *aliases, **settings)

    # A flag that is on by default also has the option that turns it off.
    if item.default is True and settings.get("const") is True:
        container.add_argument(
            *flags_of(f"no_{item.name}"),
            action="store_false",
            default=False,
            dest=item.name,
            help=settings.get("help"),
        )


def flags_of(name: str) -> Iterable[str]:
    """Return the spellings of an option: with underscores and, if different, with dashes."""
    with_underscores = f"--{name}"
    with_dashes = f"--{name.replace('_', '-')}"
    if with_underscores == with_dashes:
        return (with_underscores,)
    return (with_underscores, with_dashes)


def add_argument_settings(item: Field[Any], declared_type: object) -> dict[str, object]:
    """Return the keyword arguments of `add_argument` for a field.

    Settings derived from the field's type override those in its metadata.
    """
    settings = {key: item.metadata[key] for key in ARGPARSE_KEYS if key in item.metadata}

    # For a list of choices, `choices_of` returns nothing: the list itself is not a choice.
    value_type, keeps_text = option_type(item.name, declared_type)
    choices = choices_of(value_type)
    if value_type is bool:
        settings |= _flag_settings(item, declared_type, keeps_text)
    elif choices:
        settings |= {"choices": choices, "type": _choice_converter(choices)}
        settings |= _default_settings(item)
    elif value_type is list or get_origin(value_type) is list:
        settings |= _list_settings(item, value_type)
    else:
        settings["type"] = converter(value_type, keeps_text)
        settings |= _default_settings(item)
    return settings


class OptionType(NamedTuple):
    """The type that the text of an option is converted to."""

    value_type: Any
    keeps_text: bool
    """Whether text that cannot be converted is kept as text."""


def option_type(field_name: str, declared_type: object) -> OptionType:
    """Return the member of a union that text is converted to.

    For a union of `str` and another type, this is the other type. For three or more members that
    include None, it is the second member, or the first if the second is None. These are the rules
    of the reference. In addition, two unions are accepted for which the reference fails:
    `str | list[str] | None` is read as text, and `str | bool | None` as a bool.

    Args:
        field_name: The name of the field, for the error.
        declared_type: The type of the field; a type that is not a union is returned unchanged.

    Raises:
        ValueError: The union has several types, none of which is `str`.
    """
    members: tuple[Any, ...] = ()
    if get_origin(declared_type) in (Union, types.UnionType):
        members = get_args(declared_type)
    members_but_none = [member for member in members if member is not types.NoneType]

    # Handle a single type, and one type with None.
    if not members_but_none:
        return OptionType(declared_type, keeps_text=False)
    if len(members_but_none) == 1:
        return OptionType(members_but_none[0], keeps_text=False)

    if str not in members_but_none:
        raise ValueError(
            f"The field {field_name!r} is declared as {declared_type}, and a command line cannot "
            "tell which of these types is meant. Declare one type, alone or with None, or add str."
        )

    # Handle the two unions for which the reference fails.
    is_optional = len(members_but_none) < len(members)
    first_member = members[0]
    second_member = members[1]
    if is_optional and bool in members_but_none:
        return OptionType(bool, keeps_text=True)
    if is_optional and get_origin(second_member) is list:
        return OptionType(str, keeps_text=False)

    # Otherwise the order of the members decides, as in the reference.
    chosen = second_member
    is_text_second = second_member is str and not is_optional
    if second_member is types.NoneType or is_text_second:
        chosen = first_member
    return OptionType(chosen, keeps_text=chosen is not str)


def choices_of(value_type: object) -> Sequence[Any]:
    """Return the values of a Literal or of an enumeration's members; empty for other types."""
    if get_origin(value_type) is Literal:
        return get_args(value_type)
    if isinstance(value_type, type) and issubclass(value_type, Enum):
        return [member.value for member in value_type]
    return []


def converter(value_type: Any, keeps_text: bool = False) -> Callable[[str], Any]:
    """Return the function that converts text to a type.

    Args:
        value_type: A type that is neither a choice nor a list.
        keeps_text: Return text that cannot be converted, instead of raising.
    """
    if value_type is Any or value_type is object:
        return str

    # `bool` and `dict` themselves do not parse text: bool("false") is True.
    convert: Callable[[str], Any]
    if value_type is bool:
        convert = to_bool
    elif value_type is dict or get_origin(value_type) is dict:
        convert = to_dict
    else:
        convert = value_type

    if keeps_text:
        return _or_text(convert)
    return convert


def to_bool(v: str | bool) -> bool:
    """Parse one of `TRUTH_WORDS`, in upper or lower case."""
    if isinstance(v, bool):
        return v
    if v.lower() not in TRUTH_WORDS:
        raise ArgumentTypeError(
            f"{v!r} is neither true nor false. Write one of: {', '.join(TRUTH_WORDS)}."
        )
    return TRUTH_WORDS[v.lower()]


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


def _or_text(convert: Callable[[str], object]) -> Callable[[str], object]:
    """Return a function that converts text, or returns it unchanged if that fails."""

    @functools.wraps(convert)
    def convert_or_keep(text: str) -> object:
        try:
            return convert(text)
        except (ArgumentTypeError, TypeError, ValueError):
            return text

    return convert_or_keep


def _choice_converter(choices: Iterable[object]) -> Callable[[str], Any]:
    """Return a function that converts text to the choice with that text.

    Other text is returned unchanged, and argparse then rejects it.
    """
    choices_by_text = {str(choice): choice for choice in choices}
    return lambda text: choices_by_text.get(text, text)


def _member_converter(enumeration: type[Enum]) -> Callable[[str], Enum]:
    """Return a function that converts text to a member of an enumeration."""
    values_by_text = {str(member.value): member.value for member in enumeration}

    def pick(text: str) -> Enum:
        try:
            return enumeration(values_by_text.get(text, text))
        except ValueError:
            valid = ", ".join(values_by_text)
            suggestion = did_you_mean(text, values_by_text)
            raise ArgumentTypeError(f"{text!r} is not one of: {valid}.{suggestion}") from None

    return pick


def _default_settings(item: Field[Any]) -> dict[str, Any]:
    """Return the setting for the default of a field; a field without a default is required."""
    if item.default is not MISSING:
        return {"default": item.default}
    if item.default_factory is not MISSING:
        return {"default": item.default_factory()}
    return {"required": True}


def _flag_settings(item: Field[Any], declared_type: object, keeps_text: bool) -> dict[str, object]:
    """Return the settings of a bool: `--x` alone means True.

    If the default is None, a value has to follow `--x`. A field without a default is False.
    """
    settings: dict[str, Any] = {"type": converter(bool, keeps_text)}

    default = _default_settings(item).get("default")
    is_optional = types.NoneType in get_args(declared_type)
    if default is None and is_optional:
        return settings

    if item.default is MISSING and item.default_factory is MISSING:
        default = False
    settings |= {"default": default, "nargs": "?", "const": True}
    return settings


def _list_settings(item: Field[Any], list_type: object) -> dict[str, Any]:
    """Return the settings of a list: the words after `--x` are its elements."""
    element_types = get_args(list_type) or (str,)
    element_type, keeps_text = option_type(item.name, element_types[0])
    choices = choices_of(element_type)

    settings: dict[str, Any] = {"nargs": "+"}
    if get_origin(element_type) is Literal:
        settings |= {"choices": choices, "type": _choice_converter(choices)}
    elif choices:
        settings["type"] = _member_converter(element_type)
    else:
        settings["type"] = converter(element_type, keeps_text)

    # Leave out a default that is a string, because argparse would parse it as the only element.
    if not isinstance(item.default, str):
        settings |= _default_settings(item)
    return settings
