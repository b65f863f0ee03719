"""Jinja templates of chats: compiled in a sandbox, rendered, and where in the text the assistant speaks."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from datetime import datetime
from functools import lru_cache
from typing import Any

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
    """The text of each chat.

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
            "`continue_final_message=True` needs the text of the last message in the chat, but the chat template left "
            f"it out or changed it. It begins: {final.strip()[:60]!r}."
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
    """A template in an immutable sandbox, with what chat templates count on.

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
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


@lru_cache
def _generation_block() -> type:
    from jinja2 import nodes, pass_context
    from jinja2.ext import Extension

    class GenerationBlock(Extension):
        """`{% generation %}...{% endgeneration %}`: what stands in it is told to the listener, if there is one."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            """The block as a call of `spoken` with what stands in it."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("spoken"), [], [], body).set_lineno(line)

        @pass_context
        def spoken(self, context: Any, caller: Callable[[], str]) -> str:
            """The block's text."""
            text = caller()
            listener = context.get(_LISTENER)
            if listener is not None:
                listener(text)
            return text

    return GenerationBlock
