"""Read all fields of the training arguments in one pass: convert each value, and check its type
and range.
"""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from .fields import ARGUMENTS, ArgumentFields


def read_fields(
    args: ArgumentFields, names: Collection[str] | None = None
) -> tuple[dict[str, Any], dict[str, Exception]]:
    """Read the fields of training arguments, which are not changed.

    Args:
        args: Also a subclass with more fields, of which only texts are converted.
        names: Read only these fields.

    Returns:
        The values by name, in the form that all other code expects, and the errors by name. A field
        with an error has its default as its value.

    Raises:
        JSONDecodeError: Text that begins as JSON, or a file, is not JSON.
        FileNotFoundError: A configuration file does not exist.
    """
    values: dict[str, Any] = {}
    errors: dict[str, Exception] = {}
    json_fields: Collection[str] = getattr(args, "_VALID_DICT_FIELDS", ())
    for item in fields(args):
        name = item.name
        if names is not None and name not in names:
            continue

        # Forms that fields of any kind may have.
        value = getattr(args, name)
        if isinstance(value, os.PathLike) and (
            name != "generation_config" or os.fspath(value).startswith("{")
        ):
            value = os.fspath(value)  # a command line makes a path of JSON too
        if name.endswith("_token") and value == f"<{name.upper()}>":
            value = None  # the placeholder that `to_dict` writes
        if name in json_fields and isinstance(value, str) and value.startswith("{"):
            value = _from_json(name, value)

        # What the field itself declares.
        argument = ARGUMENTS.get(name)
        if argument is not None:
            try:
                value = argument.convert(name, value)
            except json.JSONDecodeError:
                raise
            except (TypeError, ValueError, NotImplementedError) as error:
                errors[name] = error
                value = argument.convert(name, argument.default)
        values[name] = value
    return values, errors


def _from_json(name: str, text: str) -> Any:
    try:
        return typed(json.loads(text))
    except json.JSONDecodeError as error:
        wrong = f"{name}={text!r} is not JSON ({error.msg}), keys and texts need double quotes"
        raise json.JSONDecodeError(wrong, error.doc, error.pos) from None


def typed(value: Any) -> Any:
    """Parse numbers and truth values that are text in JSON of a command line, and in environment
    variables.
    """
    if isinstance(value, Mapping):
        return {key: typed(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.isdigit():
        return int(value)
    return float(value) if value.replace(".", "", 1).isdigit() else value
