"""Cast the values of a trial to the types of training arguments, and set them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from configparser import ConfigParser
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from ...lightning_modules.common.suggestions import did_you_mean
from .fields import ARGUMENTS, ArgumentFields
from .reading import read_fields

logger = logging.getLogger(__name__)


def apply(args: object, values: object) -> list[str]:
    """Set the values of a trial, each cast to the type that its field is declared with.

    A name that is not an argument is skipped with a warning: `model_init` may use it.

    Args:
        args: The training arguments, changed in place; not changed if there is an error.
        values: The values by name.

    Returns:
        The names that were set.

    Raises:
        TypeError: `values` is not a mapping.
        ValueError: A name is nested, or a value cannot be cast.
    """
    if not isinstance(values, Mapping):
        raise TypeError(
            f"hp_space returned {values!r:.80}. It has to return a dict of training arguments."
        )

    # Cast all values before any is set.
    declared = declared_types(args)
    cast_values: dict[str, Any] = {}
    for name, value in cast("Mapping[str, Any]", values).items():
        if _is_argument(args, name):
            declared_type = declared.get(name)
            present_value = getattr(args, name, None)
            cast_values[name] = cast_to_field(name, value, declared_type, present_value)
    for name, value in cast_values.items():
        setattr(args, name, value)

    # Convert the values that construction would convert, such as "steps" to an enum member. The
    # checks when the training begins report what is invalid.
    if isinstance(args, ArgumentFields):
        converted_values, errors = read_fields(args, cast_values)
        for name, value in converted_values.items():
            if name not in errors:
                setattr(args, name, value)
    return list(cast_values)


def cast_to_field(name: str, value: Any, declared: object, present_value: object) -> object:
    """Cast a value to the type of a field, such as text to a truth value.

    Args:
        name: The name of the field.
        value: The value of the trial.
        declared: The field's type, None if unknown.
        present_value: The current value, whose type counts if none is declared.

    Raises:
        ValueError: It cannot be cast.
    """
    # NumPy and torch scalars become plain numbers.
    if hasattr(value, "item"):
        dimensions = getattr(value, "ndim", 0)
        if dimensions == 0:
            value = value.item()
    if value is None:
        return None

    try:
        # A field of a user's subclass has no reader.
        if isinstance(present_value, Enum) and name not in ARGUMENTS:
            return type(present_value)(value)

        types = _types_of(declared, present_value)
        is_enum = any(issubclass(cls, Enum) for cls in types)
        if is_enum and name in ARGUMENTS:
            argument = ARGUMENTS[name]
            return argument.read(name, value)
        return _cast_to_type(value, types)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"The search has {name}={value!r}, which the training argument cannot hold: {error}"
        ) from None


def _types_of(declared: object, present_value: object) -> set[type]:
    """Return the classes that an annotation allows, such as `dict` for `dict[str, int] | None`.

    Without an annotation the class of the current value is returned.
    """
    if declared is None:
        annotations = (type(present_value),)
    elif get_origin(declared) in (Union, UnionType):
        annotations = get_args(declared)
    else:
        annotations = (declared,)

    types: set[type] = set()
    for annotation in annotations:
        cls = get_origin(annotation) or annotation
        if isinstance(cls, type) and cls is not NoneType:
            types.add(cast("type", cls))
    return types


def _cast_to_type(value: object, types: set[type]) -> object:
    if dict in types and isinstance(value, str) and value.startswith("{"):
        return json.loads(value)

    # Values of a declared type stay as they are; text is a number unless text is declared.
    number_types = types & {bool, int, float}
    if not number_types:
        return value
    if isinstance(value, str):
        if str in types:
            return value
    elif type(value) in types:
        return value

    if number_types == {bool}:
        return _truth_value(value)
    if not isinstance(value, (str, bool, int, float)):
        return value
    return _number(value, allows_fractions=float in number_types)


def _number(value: str | float, *, allows_fractions: bool) -> int | float:
    """Return a value as a float, or as an int where fractions are not allowed.

    Fractions of numbers are cut off, as in the reference: the default space of Ray draws seeds as
    floats. Integers in text are not read as floats, which cannot hold all digits of a large one.

    Raises:
        ValueError: it is not a number, or text with a fraction that is not allowed.
    """
    if allows_fractions:
        return float(value)
    try:
        return int(value)
    except (ValueError, OverflowError):  # text such as 1e3 or 2.5; NaN and infinity
        number = float(value)
    if not number.is_integer():
        raise ValueError("it must be a whole number.")
    return int(number)


def _truth_value(value: object) -> bool:
    word = str(value).lower().removesuffix(".0")
    if word not in ConfigParser.BOOLEAN_STATES:
        raise ValueError("it must be True or False.")
    return ConfigParser.BOOLEAN_STATES[word]


def _is_argument(args: object, name: str) -> bool:
    if hasattr(args, name):
        return True
    if "." in name:
        raise ValueError(
            f"hp_space has the nested name {name!r}: return the whole argument, which is a dict."
        )
    logger.warning(
        "The search has %r, which is not a training argument.%s model_init may read trial.params.",
        name,
        did_you_mean(name, vars(args)),
    )
    return False


def declared_types(args: object) -> dict[str, object]:
    """Return the types of the fields of training arguments, or of their class, by name."""
    if not is_dataclass(args):
        return {}
    cls = args if isinstance(args, type) else type(args)
    try:
        types = get_type_hints(cls)
    except Exception:  # names that only type checkers know
        types = {}
    return {item.name: types.get(item.name, item.type) for item in fields(args)}
