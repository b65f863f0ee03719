"""Chats: messages to a text by the tokenizer's template, and to tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .calls import Calls
from .chat_templates import Span, render
from .encoding import BatchEncoding
from .names import INSTALL_TRANSFORMERS, PaddingStrategy, TensorType


class Chat(Calls):
    """`apply_chat_template` and the template it applies."""

    chat_template: str | dict[str, str] | None = None

    def apply_chat_template(
        self,
        conversation: object,
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
        """Convert a chat to text or token ids, by a template of jinja.

        Works like `PreTrainedTokenizerBase.apply_chat_template` of transformers 5.3.0, which
        returns a dict by default.

        Args:
            conversation: messages, dicts with "role" and "content"; or a list of such chats.
            tools: JSON schemas of functions that the model can call.
            documents: dicts with "title" and "text".
            chat_template: a template, or the name of one of the tokenizer's.
            add_generation_prompt: end with what comes before an answer.
            continue_final_message: not supported.
            tokenize: return token ids rather than text.
            padding: as in a call.
            truncation: as in a call.
            max_length: as in a call.
            return_tensors: as in a call.
            return_dict: return all columns rather than the ids.
            return_assistant_tokens_mask: with the column "assistant_masks", 1 where the template
                says `{% generation %}`.
            tokenizer_kwargs: further arguments of the call.
            kwargs: further variables of the template.

        Returns:
            a `BatchEncoding`, ids, or text; for several chats lists.

        Raises:
            ValueError: the template is missing; options that contradict each other.
            NotImplementedError: `continue_final_message`, or a tool that is not a JSON schema.
            jinja2.TemplateError: the template raises, or does what its sandbox forbids.
        """
        if return_assistant_tokens_mask and not (return_dict and tokenize):
            raise ValueError(
                "`return_assistant_tokens_mask=True` needs `tokenize=True` and `return_dict=True`."
            )
        if continue_final_message:
            raise NotImplementedError(
                f"apply_chat_template(continue_final_message=True): {INSTALL_TRANSFORMERS}"
            )
        for tool in tools or []:
            if not isinstance(tool, dict):
                raise NotImplementedError(
                    f"apply_chat_template: a tool is a {type(tool).__name__}; pass JSON schemas "
                    f"(dicts). To make them of functions, {INSTALL_TRANSFORMERS}"
                )
        chats, is_batch = _chats_of(conversation)
        template = self.get_chat_template(chat_template, tools)
        variables = {
            **self.special_tokens_map,
            **kwargs,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        rendered, spans = render(
            template, chats, variables, return_spans=return_assistant_tokens_mask
        )
        texts: list[str] | str = rendered
        if not is_batch:
            texts = rendered[0]
        if not tokenize:
            return texts

        # Templates write the special tokens themselves.
        encoded = self(
            texts,
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            add_special_tokens=False,
            return_tensors=return_tensors,
            **(tokenizer_kwargs or {}),
        )
        if return_assistant_tokens_mask:
            _add_masks(encoded, spans, nested=is_batch or bool(return_tensors))
            encoded.convert_to_tensors(return_tensors)
        if return_dict:
            return encoded
        return encoded["input_ids"]

    def get_chat_template(
        self, chat_template: str | None = None, tools: list[Any] | None = None
    ) -> str:
        """Return the template that `apply_chat_template` applies.

        Args:
            chat_template: a template, or the name of one of the tokenizer's; by default its only
                one, or of several "tool_use" where there are tools, and "default".
            tools: those of the chat.

        Raises:
            ValueError: the tokenizer has no template, or several without a default.
        """
        templates = self.chat_template
        if not isinstance(templates, dict):
            template = chat_template
            if template is None:
                template = templates
            if template is None:
                raise ValueError(
                    "This tokenizer has no chat template. Set its `chat_template`, or pass one."
                )
            return template

        # One of several: by its name, or the default. An unknown name is a template itself.
        if chat_template is not None:
            return templates.get(chat_template, chat_template)
        if tools is not None and "tool_use" in templates:
            return templates["tool_use"]
        if "default" not in templates:
            raise ValueError(
                f"The tokenizer has no default chat template. Pass `chat_template`, one of "
                f"{', '.join(sorted(templates))}."
            )
        return templates["default"]


def _chats_of(conversation: object) -> tuple[Sequence[object], bool]:
    """Return several chats, and whether the conversation is a batch of them."""
    if not isinstance(conversation, (list, tuple)):
        return [conversation], False
    first = conversation[0]
    if isinstance(first, (list, tuple)) or hasattr(first, "messages"):
        return conversation, True
    return [conversation], False


def _add_masks(encoded: BatchEncoding, spans: list[list[Span]], nested: bool) -> None:
    rows = encoded["input_ids"]
    if not nested:
        rows = [rows]
    masks = [_mask(encoded, index, len(row), spans[index]) for index, row in enumerate(rows)]
    encoded["assistant_masks"] = masks
    if not nested:
        encoded["assistant_masks"] = masks[0]


def _mask(encoded: BatchEncoding, index: int, length: int, spans: list[Span]) -> list[int]:
    mask = [0] * length
    for begin, end in spans:
        first = encoded.char_to_token(index, begin)
        last = encoded.char_to_token(index, end - 1)
        # This and all later spans were cut off.
        if first is None:
            break
        stop = length
        if last:
            stop = last + 1
        mask[first:stop] = [1] * (stop - first)
    return mask
