"""Jinja templates of chats: compiled in a sandbox, rendered, and where in the text the assistant speaks.

Functions that a model can call are described to it in JSON schema, read from their type hints and docstrings.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import types
from collections.abc import Callable, Sequence
from copy import deepcopy
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

logger = logging.getLogger(__name__)

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_GOES_ON = "THE_FINAL_MESSAGE_GOES_ON_HERE "

Span = tuple[int, int]


def render(
    template: str,
    chats: Sequence[Any],
    variables: dict[str, Any],
    *,
    continue_final_message: bool = False,
    return_spans: bool = False,
) -> tuple[list[str], list[list[Span]]]:
    """Return the text of each chat.

    Args:
        template: in Jinja's language.
        chats: lists of messages.
        variables: what the template can use beside `messages`.
        continue_final_message: end with the text of the last message, so that a model goes on with it.
        return_spans: find the parts in `{% generation %}` blocks.

    Returns:
        the texts; and for each, if they are asked for, from and to which character the assistant speaks.

    Raises:
        jinja2.TemplateError: the template is wrong, raises, or does what the sandbox forbids.
        ValueError: the last message does not come out of the template as it went in.
    """
    if return_spans and not _GENERATION.search(template):
        logger.warning(
            "`return_assistant_tokens_mask=True` finds what stands between {%% generation %%} and "
            "{%% endgeneration %%}, but the chat template has no such block: the mask is 0 everywhere."
        )
    compiled = compile_template(template)
    texts, spans = [], []
    for chat in chats:
        messages = getattr(chat, "messages", chat)
        if continue_final_message:
            texts.append(_continued(compiled, messages, variables))
        elif return_spans:
            text, found = _with_spans(compiled, messages, variables)
            texts.append(text)
            spans.append(found)
        else:
            texts.append(compiled.render(messages=messages, **variables))
    return texts, spans


def _continued(template: Any, messages: Any, variables: dict[str, Any]) -> str:
    """Rendered with a sign at the end of the last message, and cut off there."""
    messages = deepcopy(messages)
    final = _sign(messages[-1])
    text = template.render(messages=messages, **variables)
    if final.strip() not in text or _GOES_ON.strip() not in text:
        raise ValueError(
            f"`continue_final_message=True`: the chat template left out or changed the text {final.strip()[:60]!r}."
        )
    end = text.rindex(_GOES_ON.strip())
    # A template that strips its messages takes the sign's space, and leaves those before it.
    return text[:end] if text[end:].startswith(_GOES_ON) else text[:end].rstrip()


def _sign(message: Any) -> str:
    """Put the sign at the end of a message, and return its text as it was."""
    content = message["content"]
    if not isinstance(content, (list, tuple)):
        message["content"] = content + _GOES_ON
        return content
    for block in reversed(content):
        if "text" in block:
            text = block["text"]
            block["text"] = text + _GOES_ON
            return text
    raise ValueError("`continue_final_message=True`, but the last message has no text to go on from.")


def _with_spans(template: Any, messages: Any, variables: dict[str, Any]) -> tuple[str, list[Span]]:
    parts: list[str] = []
    spans: list[Span] = []

    def spoken(text: str) -> None:
        start = sum(map(len, parts))
        spans.append((start, start + len(text)))

    # The listener is a variable of this rendering, so several threads can use one template.
    for part in template.generate(messages=messages, **variables, **{_LISTENER: spoken}):
        parts.append(part)
    return "".join(parts), spans


_LISTENER = "lightrainer_spoken"


@lru_cache
def compile_template(template: str) -> Any:
    """Return a template in an immutable sandbox, with what chat templates count on.

    They have the functions `raise_exception` and `strftime_now`, the filter `tojson` (which leaves HTML alone), `break`
    and `continue`, and the block `generation`; blocks leave no empty lines.
    """
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_block(), jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


@lru_cache
def _generation_block() -> type:
    from jinja2 import nodes, pass_context
    from jinja2.ext import Extension

    class GenerationBlock(Extension):
        """`{% generation %}...{% endgeneration %}`: what stands in it is told to the listener, if there is one."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            """Return the block as a call of `spoken` with what stands in it."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("spoken"), [], [], body).set_lineno(line)

        @pass_context
        def spoken(self, context: Any, caller: Callable[[], str]) -> str:
            """Return the block's text."""
            text = caller()
            listener = context.get(_LISTENER)
            if listener is not None:
                listener(text)
            return text

    return GenerationBlock


_SECTION = re.compile(r"^\s*(Args|Returns|Raises):\s*$")
_ARGUMENT = re.compile(r"^(\s*)(\w+):\s*(.*)$")
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)
_KINDS: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def schemas_of(tools: Any) -> list[dict[str, Any]] | None:
    """Return the tools of a chat, all as JSON schema.

    Args:
        tools: schemas, or functions with type hints and a docstring; or None.

    Raises:
        ValueError: neither the one nor the other; a function whose hints or docstring say too little.
    """
    if tools is None:
        return None
    wrong = [tool for tool in tools if not (isinstance(tool, dict) or inspect.isroutine(tool))]
    if wrong:
        raise ValueError(f"A tool is a {type(wrong[0]).__name__}, neither a JSON schema (a dict) nor a function.")
    return [tool if isinstance(tool, dict) else schema_of(tool) for tool in tools]


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
    properties = {name: _type_schema(hint) for name, hint in hints.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
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
        raise ValueError(f"{hint} is a tuple of one: write the element's own type, or list[...] for any number.")
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
    """Return the description, what is said about each argument, and about the result."""
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
