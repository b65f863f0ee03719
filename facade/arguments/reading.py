"""Read all fields of the training arguments: convert each value, check its type and range."""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, cast

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

        # Fields of any kind may be paths, placeholders or JSON.
        value = getattr(args, name)
        if isinstance(value, os.PathLike):
            text = os.fspath(cast("os.PathLike[str]", value))
            # `generation_config` stays a path, unless a command line made a path of JSON.
            if name != "generation_config" or text.startswith("{"):
                value = text
        if name.endswith("_token") and value == f"<{name.upper()}>":
            value = None  # `to_dict` writes this placeholder
        if name in json_fields and isinstance(value, str) and value.startswith("{"):
            value = _from_json(name, value)

        # Fields of a subclass declare nothing more.
        argument = ARGUMENTS.get(name)
        if argument is None:
            values[name] = value
            continue

        try:
            values[name] = argument.convert(name, cast("object", value))
        except json.JSONDecodeError:
            raise
        except (TypeError, ValueError, NotImplementedError) as error:
            errors[name] = error
            values[name] = argument.convert(name, argument.default)
    return values, errors


def _from_json(name: str, text: str) -> Any:
    try:
        return typed(json.loads(text))
    except json.JSONDecodeError as error:
        message = f"{name}={text!r} is not JSON ({error.msg}); keys and texts need double quotes"
        raise json.JSONDecodeError(message, error.doc, error.pos) from None


def typed(value: Any) -> Any:
    """Parse numbers and truth values that are text, in JSON and in environment variables."""
    if isinstance(value, Mapping):
        settings = cast("Mapping[str, Any]", value)
        return {key: typed(item) for key, item in settings.items()}
    if not isinstance(value, str):
        return cast("object", value)

    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.isdigit():
        return int(value)
    if value.replace(".", "", 1).isdigit():
        return float(value)
    return value
