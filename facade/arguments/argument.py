"""Declare one training argument: its default, its help, its counterpart, and the values that it
takes.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field
from enum import Enum
from numbers import Real
from types import NoneType
from typing import Any, get_args, get_origin

from ...lightning_modules.common.redaction import is_secret_name, secret
from ...lightning_modules.common.suggestions import did_you_mean

Reader = Callable[[str, Any], Any]
"""Takes the name of a field and a value, and returns the value in the form that all other code
expects.

It raises `TypeError` (see `wrong_type`), `ValueError` with one sentence for each error, or
`NotImplementedError` with a sentence about a value that is not supported.
"""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """What a field of the training arguments holds, and what becomes of it."""

    becomes: str
    """The counterpart in Lightning or lightrainer, for the documentation."""
    default: Any
    read: Reader
    optional: bool
    """None is a value that needs no reading."""
    unset: Callable[[], Any] | None
    """Makes the value that None stands for; without it None stays None."""

    def convert(self, name: str, value: Any) -> Any:
        """Return a value in the form that all other code expects; see `Reader`."""
        if value is None and self.unset is not None:
            return self.unset()
        if value is None and self.optional:
            return None
        return self.read(name, value)


_DECLARED: dict[Field[Any], tuple[str, Reader | None, bool, Callable[[], Any] | None]] = {}
"""Kept apart from the metadata of the fields, which libraries pass on to argparse."""


def argument(
    default: Any,
    help: str,
    becomes: str,
    *,
    read: Reader | None = None,
    optional: bool = False,
    unset: Callable[[], Any] | None = None,
    repr: bool = True,
    **metadata: Any,
) -> Any:
    """Return the field of a training argument.

    Args:
        default: the default; `list` stands for a new list.
        help: a sentence for `--help` and the documentation.
        becomes: the counterpart in Lightning or lightrainer, for the documentation.
        read: converts and checks a value, such as `number(low=0)`; by default it follows from the
            type of the field.
        optional: accept None although the type of the field does not have it.
        unset: makes the value that None stands for.
        repr: as in `dataclasses.field`.
        **metadata: for argparse, such as `metavar` and `choices`; only one of `choices` is then
            accepted.
    """
    choice: dict[str, Any] = {"default_factory": list} if default is list else {"default": default}
    made = field(**choice, repr=repr, metadata={"help": help, **metadata})
    _DECLARED[made] = (becomes, read, optional, unset)
    return made


def declared(item: Field[Any]) -> Argument:
    """Return what was declared for a field; where that leaves something open, the type of the
    field decides.
    """
    becomes, read, optional, unset = _DECLARED[item]
    kinds = [get_origin(kind) or kind for kind in get_args(item.type) or (item.type,)]
    if read is None:
        read = _reader_of(kinds, item.metadata.get("choices"))
    optional = optional or NoneType in kinds or bool in kinds
    default = [] if item.default is MISSING else item.default
    return Argument(becomes=becomes, default=default, read=read, optional=optional, unset=unset)


def _reader_of(kinds: list[Any], choices: Sequence[str] | None) -> Reader:
    """Return the reader of a field with these types."""
    if choices is not None:
        return one_of(choices)
    for kind in kinds:
        if issubclass(kind, Enum):
            return member_of(kind)
    return next(read for kind, read in _READERS.items() if kind in kinds)


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
        if not isinstance(value, Real):
            raise wrong_type(name, value, f"a number{_as_number(value)}")
        size = float(value)
        is_in_range = low <= size <= high and (below is None or size < below)
        if not is_in_range and low > -math.inf:
            raise ValueError(f"{name}={value!r} must be {_range(low, high, below)}.{remedy}")
        return value

    return read_number


def whole_number(low: float = -math.inf, high: float = math.inf, remedy: str = "") -> Reader:
    """Return a reader of whole numbers; floats such as 1e3 become whole numbers. See `number`."""
    read_number = number(low, high, remedy=remedy)

    def read_whole_number(name: str, value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not hasattr(type(value), "__index__"):
            raise wrong_type(name, value, f"a whole number{_as_number(value, whole=True)}")
        return read_number(name, value)

    return read_whole_number


def _range(low: float, high: float, below: float | None) -> str:
    bounds = [f"at least {low:g}"]
    if high < math.inf:
        bounds.append(f"at most {high:g}")
    if below is not None:
        bounds.append("finite" if below == math.inf else f"below {below:g}")
    return " and ".join(bounds)


def _as_number(value: Any, whole: bool = False) -> str:
    """Return a hint for text that reads as a number, such as YAML's 1e-4."""
    try:
        number = float(value) if isinstance(value, str) else None
    except ValueError:
        number = None
    if number is None or (whole and not number.is_integer()):
        return ""
    return (
        f", {int(number) if whole else number!r} without quotes (in YAML, 1e-4 is text and 1.0e-4 "
        "a number)"
    )


def one_of(choices: Sequence[str]) -> Reader:
    """Return a reader of one of these texts."""

    def read_choice(name: str, value: Any) -> Any:
        if value not in choices:
            raise ValueError(unknown_choice(name, value, choices))
        return value

    return read_choice


def member_of(kind: type[Enum]) -> Reader:
    """Return a reader of the members of an enumeration, and of their text."""

    def read_member(name: str, value: Any) -> Enum:
        try:
            return kind(value)
        except ValueError as error:
            yaml = " YAML reads a bare no as False; write 'no'." if value is False else ""
            raise ValueError(f"{name}={value!r}: {error}{yaml}") from None

    return read_member


def read_members(name: str, words: Iterable[Any], kind: type[Enum]) -> list[Enum]:
    """Read several members of an enumeration.

    Raises:
        ValueError: there is no such member; one sentence for each.
    """
    read = member_of(kind)
    members: list[Enum] = []
    faults: list[str] = []
    for word in words:
        try:
            members.append(read(name, word))
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ValueError(*faults)
    return members


def wrong_type(name: str, value: Any, expected: str) -> TypeError:
    """Return the error for a value of the wrong type; a secret is not shown."""
    kind = type(value).__name__
    shown = secret(value) if is_secret_name(name) else value
    return TypeError(f"{name}={shown!r} is {with_article(kind)}; pass {expected}.")


def with_article(noun: str) -> str:
    """Return "an int" for "int"."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def existing_file(name: str, path: str) -> str:
    """Return the path of a file.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if not os.path.isfile(path):
        kind = "is a folder" if os.path.isdir(path) else "there is no such file"
        raise FileNotFoundError(
            f"{name}={path!r}: {kind}. Pass a dict, or the path of a JSON file."
        )
    return path


def unknown_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return the error for a value that is not one of the choices."""
    return (
        f"{name}={value!r} is not known.{did_you_mean(value, choices)} Choose from: "
        f"{', '.join(choices)}."
    )


def anything(name: str, value: Any) -> Any:
    """Accept a value of any type: older scripts and libraries put values of other types there."""
    return value


def read_dict(name: str, value: Any) -> Any:
    """Accept a mapping."""
    if not isinstance(value, Mapping):
        raise wrong_type(name, value, "a dict, or one written as JSON")
    return value


def _read_flag(name: str, value: Any) -> Any:
    if isinstance(value, (str, bytes, Mapping, list, tuple, set)):
        raise wrong_type(name, value, "True or False")
    return value


def _read_text(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        raise wrong_type(name, value, "text")
    return value


_READERS: dict[type, Reader] = {
    dict: read_dict,
    bool: _read_flag,
    float: number(),
    int: whole_number(),
    str: _read_text,
}
"""The reader of a field by a type that its annotation contains; the first one counts."""
