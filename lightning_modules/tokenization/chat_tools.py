"""Functions that a model can call, described in JSON schema: read from their type hints and docstrings."""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_SECTION = re.compile(r"^\s*(Args|Returns|Raises):\s*$")
_ARGUMENT = re.compile(r"^(\s*)(\w+):\s*(.*)$")
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)
_KINDS: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def schemas_of(tools: Any) -> list[dict[str, Any]] | None:
    """The tools of a chat, all as JSON schema.

    Args:
        tools: schemas, or functions with type hints and a docstring; or None.

    Raises:
        TypeError: neither the one nor the other.
        ValueError: a function whose hints or docstring say too little.
    """
    if tools is None:
        return None
    return [tool if isinstance(tool, dict) else _of(tool) for tool in tools]


def _of(tool: Any) -> dict[str, Any]:
    if inspect.isfunction(tool) or inspect.ismethod(tool):
        return schema_of(tool)
    raise ValueError(
        f"A tool is a {type(tool).__name__}; expected a JSON schema (a dict), or a function with type hints and a "
        "docstring to make one of."
    )


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """As `transformers.utils.get_json_schema`: name, description and parameters of a function.

    Args:
        function: with a type hint for each parameter, and a docstring with a line for each below "Args:". A line may
            end with the values that are allowed: `(choices: ["a", "b"])`.

    Raises:
        ValueError: a hint or a line is missing, or a hint has no counterpart in JSON.
    """
    name = function.__name__
    doc = inspect.getdoc(function)
    if not doc:
        raise ValueError(f"The tool {name!r} has no docstring, so there is nothing to tell a model about it.")
    description, arguments, returns = _read(doc.strip())
    parameters = _parameters(function)
    returned = parameters["properties"].pop("return", None)
    for argument, schema in parameters["properties"].items():
        if argument not in arguments:
            raise ValueError(f"The docstring of the tool {name!r} says nothing about the argument {argument!r}.")
        _describe(schema, arguments[argument])
    schema = {"name": name, "description": description, "parameters": parameters}
    if returned is not None:
        schema["return"] = returned if returns is None else {**returned, "description": returns}
    return {"type": "function", "function": schema}


def _describe(schema: dict[str, Any], text: str) -> None:
    if choices := _CHOICES.search(text):
        schema["enum"] = [each.strip() for each in json.loads(choices.group(1))]
        text = text[: choices.start()].strip()
    schema["description"] = text


def _parameters(function: Callable[..., Any]) -> dict[str, Any]:
    hints = get_type_hints(function)
    own = list(inspect.signature(function).parameters.values())
    if own and own[0].name in ("self", "cls") and own[0].name not in hints:
        own = own[1:]
    for parameter in own:
        if parameter.annotation is inspect.Parameter.empty:
            raise ValueError(f"The argument {parameter.name!r} of the tool {function.__name__!r} has no type hint.")
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _type_schema(hint) for name, hint in hints.items()},
    }
    if required := [parameter.name for parameter in own if parameter.default is inspect.Parameter.empty]:
        schema["required"] = required
    return schema


def _type_schema(hint: Any) -> dict[str, Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is list or origin is list:
        return {"type": "array", "items": _type_schema(inner[0])} if inner else _plain(hint, "array")
    if hint is tuple or origin is tuple:
        return _tuple_schema(hint, inner)
    if origin is dict:
        return {"type": "object"} | ({"additionalProperties": _type_schema(inner[1])} if len(inner) == 2 else {})
    if origin in (Union, types.UnionType):
        return _union_schema(inner)
    if origin is Literal:
        return _literal_schema(inner)
    if origin is not None:
        raise ValueError(f"The type hint {hint} has no counterpart in JSON schema.")
    if hint is Any:
        return {}
    return {"type": _KINDS.get(hint) or _medium(hint)}


def _plain(hint: Any, kind: str) -> dict[str, Any]:
    # A bare `list` or `tuple` is an object to the reference, one from `typing` an array.
    return {"type": "object" if isinstance(hint, type) else kind}


def _medium(hint: Any) -> str:
    """Pictures and sounds, by the classes that stand for them."""
    where = f"{getattr(hint, '__module__', '')}.{getattr(hint, '__qualname__', '')}"
    return {"PIL.Image.Image": "image", "torch.Tensor": "audio"}.get(where, "object")


def _tuple_schema(hint: Any, inner: tuple[Any, ...]) -> dict[str, Any]:
    if not inner:
        return _plain(hint, "array")
    if len(inner) == 1:
        raise ValueError(
            f"{hint} is a tuple of one: write the element's own type, or list[...] for any number of them."
        )
    if ... in inner:
        raise ValueError(f"{hint} has any number of elements: write list[...] instead.")
    return {"type": "array", "prefixItems": [_type_schema(each) for each in inner]}


def _union_schema(inner: tuple[Any, ...]) -> dict[str, Any]:
    parts = [_type_schema(each) for each in inner if each is not type(None)]
    if len(parts) == 1:
        schema = parts[0]
    elif all(isinstance(part.get("type"), str) for part in parts):
        schema = {"type": sorted(part["type"] for part in parts)}
    else:
        schema = {"anyOf": parts}
    return schema | ({"nullable": True} if type(None) in inner else {})


def _literal_schema(values: tuple[Any, ...]) -> dict[str, Any]:
    kinds = list(dict.fromkeys(_KINDS.get(type(value), "") for value in values))
    if "" in kinds:
        raise ValueError(f"Literal{list(values)} holds more than texts, numbers, True, False and None.")
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}


def _read(doc: str) -> tuple[str, dict[str, str], str | None]:
    """The description, what is said about each argument, and about the result."""
    sections: dict[str, list[str]] = {"": []}
    section = ""
    for line in doc.splitlines():
        if found := _SECTION.match(line):
            section = found.group(1)
            sections.setdefault(section, [])
        else:
            sections[section].append(line)
    returns = "\n".join(sections["Returns"]).strip() if "Returns" in sections else None
    return "\n".join(sections[""]).strip(), _arguments(sections.get("Args", [])), returns


def _arguments(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    name = None
    for line in filter(str.strip, lines):
        if argument := _ARGUMENT.match(line):
            name = argument.group(2)
            found[name] = [argument.group(3)]
        elif name is not None:
            found[name].append(line)
    return {name: " ".join(part.strip() for part in parts if part.strip()) for name, parts in found.items()}
