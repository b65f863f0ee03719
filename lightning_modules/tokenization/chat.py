"""Chats: convert messages to a text with the tokenizer's template, and to tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from .calls import Calls
from .names import INSTALL_TRANSFORMERS, PaddingStrategy, TensorType


class Chat(Calls):
    """The method `apply_chat_template`, and the template that it applies."""

    chat_template: str | None = None

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        tools: list[Any] | None = None,
        documents: list[dict[str, str]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        padding: bool | str | PaddingStrategy = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: str | TensorType | None = None,
        return_dict: bool = True,
        return_assistant_tokens_mask: bool = False,
        tokenizer_kwargs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> Any:
        """Convert a chat to text or token ids, with a jinja template.

        Works like `PreTrainedTokenizerBase.apply_chat_template` of transformers 5.3.0, which
        returns a dict by default.

        Args:
            conversation: messages, dicts with "role" and "content"; or a list of such chats.
            tools: JSON schemas of functions that the model can call.
            documents: dicts with "title" and "text".
            chat_template: a template instead of the tokenizer's.
            add_generation_prompt: append the tokens that open a message of the assistant.
            continue_final_message: not supported.
            tokenize: return token ids instead of text.
            padding: as in a call of the tokenizer.
            truncation: as in a call of the tokenizer.
            max_length: as in a call of the tokenizer.
            return_tensors: as in a call of the tokenizer.
            return_dict: return all columns instead of the ids only.
            return_assistant_tokens_mask: not supported.
            tokenizer_kwargs: further arguments of the call.
            kwargs: further variables of the template.

        Returns:
            a `BatchEncoding`, token ids, or text; a list of ids or texts for several chats.

        Raises:
            ValueError: the template is missing, or the conversation is empty.
            NotImplementedError: `continue_final_message` or `return_assistant_tokens_mask` is True,
                or a tool is not a JSON schema.
            jinja2.TemplateError: the template raises, or does something that its sandbox forbids.
        """
        if len(conversation) == 0:
            raise ValueError("apply_chat_template: the conversation has no messages.")
        unsupported = {
            "continue_final_message": continue_final_message,
            "return_assistant_tokens_mask": return_assistant_tokens_mask,
        }
        for name, is_requested in unsupported.items():
            if is_requested:
                raise NotImplementedError(
                    f"apply_chat_template({name}=True): {INSTALL_TRANSFORMERS}"
                )
        for tool in tools or []:
            if not isinstance(tool, dict):
                raise NotImplementedError(
                    f"apply_chat_template: a tool is a {type(tool).__name__}; pass JSON schemas "
                    f"(dicts). To make them of functions, {INSTALL_TRANSFORMERS}"
                )

        template = compile_template(self.get_chat_template(chat_template))
        variables = {
            **self.special_tokens_map,
            **kwargs,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        texts: list[str] | str
        if isinstance(conversation[0], (list, tuple)):
            texts = [template.render(messages=chat, **variables) for chat in conversation]
        else:
            texts = template.render(messages=conversation, **variables)
        if not tokenize:
            return texts

        # The text already contains the special tokens, which templates write themselves.
        encoded = self(
            texts,
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            add_special_tokens=False,
            return_tensors=return_tensors,
            **(tokenizer_kwargs or {}),
        )
        if return_dict:
            return encoded
        return encoded["input_ids"]

    def get_chat_template(self, chat_template: str | None = None) -> str:
        """Return the template that `apply_chat_template` applies.

        Args:
            chat_template: a template; by default the tokenizer's.

        Raises:
            ValueError: the tokenizer has no template.
        """
        template = chat_template or self.chat_template
        if template is None:
            raise ValueError(
                "This tokenizer has no chat template. Set its `chat_template`, or pass one."
            )
        return template


@lru_cache
def compile_template(template: str) -> Any:
    """Compile a template in an immutable sandbox, with the extensions of transformers' templates.

    These are the functions `raise_exception` and `strftime_now`, the filter `tojson` (which does
    not escape HTML), `break` and `continue`, and the block `generation`, which marks the messages
    of the assistant. The lines of block tags are removed from the output.
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


def _generation_block() -> type:
    from jinja2 import nodes
    from jinja2.ext import Extension

    class GenerationBlock(Extension):
        """Renders `{% generation %}...{% endgeneration %}` as its content."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            """Return the statements of the block, as a scope."""
            # The first token is the name of the block.
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    return GenerationBlock
