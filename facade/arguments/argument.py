"""Declare one training argument: its default, help, counterpart, and accepted values."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field
from enum import Enum
from numbers import Real
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin

from ...lightning_modules.common.redaction import is_secret_name, secret
from ...lightning_modules.common.suggestions import did_you_mean

EnumType = TypeVar("EnumType", bound=Enum)

# `transformers` annotates these fields with a bare dict, and libraries read the annotations.
if TYPE_CHECKING:
    SettingsDict = dict[str, Any]
else:
    SettingsDict = dict

Reader = Callable[[str, Any], Any]
"""Takes a field's name and value, and returns the value in the form that other code expects.

It raises `TypeError` (see `wrong_type`), `ValueError` with one sentence for each error, or
`NotImplementedError` with a sentence about a value that is not supported.
"""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """What a field of the training arguments holds, and its counterpart in Lightning."""

    maps_to: str
    """The counterpart in Lightning or lightrainer, for the documentation."""
    default: Any
    read: Reader
    optional: bool
    """None is a value that needs no reading."""
    none_factory: Callable[[], Any] | None
    """Makes the value that None stands for; without it None stays None."""

    def convert(self, name: str, value: object) -> Any:
        """Return a value in the form that other code expects; see `Reader`."""
        if value is None and self.none_factory is not None:
            return self.none_factory()
        if value is None and self.optional:
            return None
        return self.read(name, value)


_DECLARATIONS: dict[Field[Any], tuple[str, Reader | None, bool, Callable[[], Any] | None]] = {}
"""Parameters of `argument` by field. The metadata of fields cannot have them: libraries pass it to
argparse.
"""


def argument(
    default: Any,
    help: str,
    *,
    maps_to: str,
    read: Reader | None = None,
    optional: bool = False,
    none_factory: Callable[[], Any] | None = None,
    repr: bool = True,
    **metadata: Any,
) -> Any:
    """Return the field of a training argument.

    Args:
        default: the default; `list` stands for a new list.
        help: a sentence for `--help` and the documentation.
        maps_to: the counterpart in Lightning or lightrainer, for the documentation.
        read: converts and checks a value, such as `number(low=0)`; by default it follows from the
            type of the field.
        optional: accept None although the type of the field does not have it.
        none_factory: makes the value that None stands for.
        repr: as in `dataclasses.field`.
        **metadata: for argparse, such as `metavar` and `choices`; only one of `choices` is then
            accepted.
    """
    metadata = {"help": help, **metadata}
    if default is list:
        empty_list = cast("Callable[[], list[str]]", list)
        argument_field: Any = field(default_factory=empty_list, repr=repr, metadata=metadata)
    else:
        argument_field = field(default=default, repr=repr, metadata=metadata)
    _DECLARATIONS[argument_field] = (maps_to, read, optional, none_factory)
    return argument_field


def declared(item: Field[Any]) -> Argument:
    """Return the declaration of a field; the field's type decides what `argument` leaves open."""
    maps_to, read, optional, none_factory = _DECLARATIONS[item]
    annotations = get_args(item.type) or (item.type,)
    types = [get_origin(annotation) or annotation for annotation in annotations]
    if read is None:
        read = _reader_of(types, item.metadata.get("choices"))

    # None stands for False in a flag.
    optional = optional or NoneType in types or bool in types
    default: Any = item.default
    if default is MISSING:
        default = []
    return Argument(
        maps_to=maps_to, default=default, read=read, optional=optional, none_factory=none_factory
    )


def _reader_of(types: list[Any], choices: Sequence[str] | None) -> Reader:
    """Return the reader of a field with these types."""
    if choices is not None:
        return one_of(choices)
    for kind in types:
        if issubclass(kind, Enum):
            return member_of(kind)
    return next(read for kind, read in _READERS.items() if kind in types)


def number(
    low: float = -math.inf, high: float = math.inf, below: float | None = None, remedy: str = ""
) -> Reader:
    """Return a reader of numbers.

    Args:
        low: the least number.
        high: the greatest number.
        below: a number that is greater than all that are accepted; infinity means that they are
            finite.
        remedy: a sentence, after a blank, that says what to do about a number out of range.
    """

    def read_number(name: str, value: Any) -> Any:
        # Python counts True as the number 1.
        if isinstance(value, bool) or not isinstance(value, Real):
            raise wrong_type(name, value, f"a number{_number_hint(value)}")
        size = float(value)
        is_in_range = low <= size <= high and (below is None or size < below)
        if not is_in_range and low > -math.inf:
            bounds = _bounds_text(low, high, below)
            raise ValueError(f"{name}={value!r} must be {bounds}.{remedy}")
        return value

    return read_number


def integer(low: float = -math.inf, high: float = math.inf, remedy: str = "") -> Reader:
    """Return a reader of whole numbers; floats such as 1e3 become whole numbers. See `number`."""
    read_number = number(low, high, remedy=remedy)

    def read_integer(name: str, value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            hint = _number_hint(value, whole=True)
            raise wrong_type(name, value, f"a whole number{hint}")
        return read_number(name, value)

    return read_integer


def _bounds_text(low: float, high: float, below: float | None) -> str:
    bounds = [f"at least {low:g}"]
    if high < math.inf:
        bounds.append(f"at most {high:g}")
    if below == math.inf:
        bounds.append("finite")
    elif below is not None:
        bounds.append(f"below {below:g}")
    return " and ".join(bounds)


def _number_hint(value: object, whole: bool = False) -> str:
    """Return a hint for text that is a number, such as YAML's 1e-4; otherwise an empty text."""
    if not isinstance(value, str):
        return ""
    try:
        number: float = float(value)
    except ValueError:
        return ""
    if whole:
        if not number.is_integer():
            return ""
        number = int(number)
    return f", {number!r} without quotes (in YAML, 1e-4 is text and 1.0e-4 a number)"


def one_of(choices: Sequence[str]) -> Reader:
    """Return a reader of one of these texts."""

    def read_choice(name: str, value: object) -> object:
        if value not in choices:
            raise ValueError(unknown_choice(name, value, choices))
        return value

    return read_choice


def member_of(kind: type[Enum]) -> Reader:
    """Return a reader of the members of an enumeration, and of their text."""

    def read_member(name: str, value: object) -> Enum:
        try:
            return kind(value)
        except ValueError as error:
            message = f"{name}={value!r}: {error}"
            if value is False:
                message += " YAML reads a bare no as False; write 'no'."
            raise ValueError(message) from None

    return read_member


def read_members(name: str, words: Iterable[object], kind: type[EnumType]) -> list[EnumType]:
    """Read several members of an enumeration.

    Raises:
        ValueError: The member does not exist; one sentence for each.
    """
    read = member_of(kind)
    members: list[EnumType] = []
    problems: list[str] = []
    for word in words:
        try:
            members.append(read(name, word))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError(*problems)
    return members


def wrong_type(name: str, value: object, expected: str) -> TypeError:
    """Return the error for a value of the wrong type; a secret is not shown."""
    type_name = with_article(type(value).__name__)
    if is_secret_name(name):
        value = secret(value)
    return TypeError(f"{name}={value!r} is {type_name}; pass {expected}.")


def with_article(noun: str) -> str:
    """Return "an int" for "int"."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def existing_file(name: str, path: str) -> str:
    """Return the path of a file.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    if os.path.isfile(path):
        return path
    reason = "the file does not exist"
    if os.path.isdir(path):
        reason = "it is a folder"
    raise FileNotFoundError(f"{name}={path!r}: {reason}. Pass a dict, or the path of a JSON file.")


def unknown_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return the error for a value that is not one of the choices."""
    return (
        f"{name}={value!r} is not known.{did_you_mean(value, choices)} Choose from: "
        f"{', '.join(choices)}."
    )


def anything(name: str, value: object) -> object:
    """Accept a value of any type: older scripts and libraries pass other types than documented."""
    return value


def read_dict(name: str, value: object) -> Mapping[str, Any]:
    """Accept a mapping."""
    if not isinstance(value, Mapping):
        raise wrong_type(name, value, "a dict, or one written as JSON")
    return cast("Mapping[str, Any]", value)


def _read_flag(name: str, value: object) -> object:
    if isinstance(value, (str, bytes, Mapping, list, tuple, set)):
        raise wrong_type(name, cast("object", value), "True or False")
    return value


def _read_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, value, "text")
    return value


_READERS: dict[type, Reader] = {
    dict: read_dict,
    bool: _read_flag,
    float: number(),
    int: integer(),
    str: _read_text,
}
"""The reader of a field by a type that its annotation contains; the first one counts."""
