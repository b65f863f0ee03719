"""Cast the values of a trial to the types of training arguments, and set them."""

from __future__ import annotations

import json
import logging
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_args

from ...lightning_modules.common.suggestions import did_you_mean
from .fields import ARGUMENTS, ArgumentFields
from .reading import read_fields

logger = logging.getLogger(__name__)

_IN_OTHER_FORMS = {
    "debug",
    "fsdp",
    "fsdp_config",
    "accelerator_config",
    "parallelism_config",
    "report_to",
}
"""Arguments that may be written in ways that only their construction understands."""
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


def apply(args: Any, values: Any) -> list[str]:
    """Set the values of a trial, each cast to what its field is declared to hold.

    A name that the arguments do not have is skipped with a warning: `model_init` may use it.

    Args:
        args: the training arguments, changed in place; left as they are where something cannot be.
        values: by name.

    Returns:
        The names that were set.

    Raises:
        TypeError: `values` is no mapping.
        ValueError: a name is nested, or a value cannot be cast.
    """
    if not isinstance(values, Mapping):
        raise TypeError(
            f"hp_space returned {values!r:.80}. It has to return a dict of training arguments."
        )
    declared, cast_values = declared_types(args), {}
    for name, value in values.items():
        if _is_known(args, name):
            cast_values[name] = cast(name, value, declared.get(name), getattr(args, name, None))
    for name, value in cast_values.items():
        setattr(args, name, value)
    if _IN_OTHER_FORMS & set(cast_values) and isinstance(args, ArgumentFields):
        read, errors = read_fields(args, cast_values)
        for name in read.keys() - errors.keys():  # errors are reported when the training begins
            setattr(args, name, read[name])
    return list(cast_values)


def cast(name: str, value: Any, declared: Any, present: Any) -> Any:
    """Cast a value to the type of a field, such as text to a truth value.

    Args:
        name: the field.
        value: of the trial.
        declared: the field's type, None if not known.
        present: the current value, whose type counts if none is declared.

    Raises:
        ValueError: it cannot be cast.
    """
    value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if value is None:
        return None
    try:
        if isinstance(present, Enum) and name not in ARGUMENTS:
            return type(present)(value)
        kinds = set(get_args(declared)) or {
            declared if isinstance(declared, type) else type(present)
        }
        kinds = {typing.get_origin(kind) or kind for kind in kinds} - {type(None)}
        classes = {kind for kind in kinds if isinstance(kind, type)}
        if name in ARGUMENTS and any(issubclass(kind, Enum) for kind in classes):
            return ARGUMENTS[name].read(name, value)
        return _cast(value, classes)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"The search has {name}={value!r}, which the training argument cannot hold: {error}"
        ) from None


def _cast(value: Any, kinds: set[type]) -> Any:
    if dict in kinds and isinstance(value, str) and value.startswith("{"):
        return json.loads(value)
    numbers = kinds & {bool, int, float}
    if (
        not numbers
        or (type(value) in kinds and type(value) is not str)
        or (str in kinds and isinstance(value, str))
    ):
        return value
    if numbers == {bool}:
        return _truth(value)
    if isinstance(value, (str, bool, int, float)):
        # Ray samples integers as floats
        return float(value) if float in numbers else int(float(value))
    return value


def _truth(value: Any) -> bool:
    word = str(value).lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    raise ValueError("it takes True or False.")


def _is_known(args: Any, name: Any) -> bool:
    if hasattr(args, name):
        return True
    if "." in name:
        raise ValueError(
            f"hp_space has the nested name {name!r}: return the whole argument, which is a dict."
        )
    near = did_you_mean(
        name, [item.name for item in fields(args)] if is_dataclass(args) else vars(args)
    )
    logger.warning(
        "The search has %r, which is no training argument.%s model_init may read trial.params.",
        name,
        near,
    )
    return False


def declared_types(args: Any) -> dict[str, Any]:
    """Return the types of the fields of training arguments, or of their class, by name."""
    if not is_dataclass(args):
        return {}
    try:
        return typing.get_type_hints(args if isinstance(args, type) else type(args))
    except Exception:  # names that only type checkers see
        return {item.name: item.type for item in fields(args)}
