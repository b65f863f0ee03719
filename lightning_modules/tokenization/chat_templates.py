"""Jinja templates of chats: compiled in a sandbox, rendered, and where in the text the assistant
speaks.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

logger = logging.getLogger(__name__)

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

Span = tuple[int, int]


def render(
    template: str,
    chats: Sequence[Any],
    variables: dict[str, Any],
    *,
    return_spans: bool = False,
) -> tuple[list[str], list[list[Span]]]:
    """Return the text of each chat.

    Args:
        template: in Jinja's language.
        chats: lists of messages.
        variables: what the template can use beside `messages`.
        return_spans: find the parts in `{% generation %}` blocks.

    Returns:
        the texts; and for each, if they are asked for, from and to which character the assistant
        speaks.

    Raises:
        jinja2.TemplateError: the template is wrong, raises, or does what the sandbox forbids.
    """
    if return_spans and not _GENERATION.search(template):
        logger.warning(
            "`return_assistant_tokens_mask=True` finds what stands between {%% generation %%} and "
            "{%% endgeneration %%}, but the chat template has no such block: the mask is 0 "
            "everywhere."
        )
    compiled = compile_template(template)
    texts = []
    spans = []
    for chat in chats:
        messages = getattr(chat, "messages", chat)
        if return_spans:
            text, spans_of_chat = _with_spans(compiled, messages, variables)
            texts.append(text)
            spans.append(spans_of_chat)
        else:
            texts.append(compiled.render(messages=messages, **variables))
    return texts, spans


def _with_spans(template: Any, messages: Any, variables: dict[str, Any]) -> tuple[str, list[Span]]:
    parts: list[str] = []
    spans: list[Span] = []

    def spoken(text: str) -> None:
        # The template has yielded all text before the block.
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

    They have the functions `raise_exception` and `strftime_now`, the filter `tojson` (which leaves
    HTML alone), `break` and `continue`, and the block `generation`; blocks leave no empty lines.
    """
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_generation_block(), jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


@lru_cache
def _generation_block() -> type:
    from jinja2 import nodes, pass_context
    from jinja2.ext import Extension

    class GenerationBlock(Extension):
        """`{% generation %}...{% endgeneration %}`: what stands in it is told to the listener,
        if there is one.
        """

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            """Return the block as a call of `spoken` with what stands in it."""
            # The first token is the name of the block.
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
