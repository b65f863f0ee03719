"""Chats come out of templates as the reference writes them, to the character, and nothing gets
out of the sandbox.
"""

import datetime
import random
from typing import Any

import jinja2
import pytest

from helpers.tokenization.compared_answers import assert_same
from helpers.tokenization.trained_tokenizers import both_tokenizers, text

PLAIN = (
    "{{ cls_token }}{% for message in messages %}\n  {% if message['role'] == 'user' %}\nUser: {{ "
    "message['content'] }}\n  {% elif message.role == 'skip' %}{% continue %}\n  {% else %}\n{{ "
    "message.role | title }}: {% generation %}{{ message['content'] | trim }}{{ sep_token }}{% "
    "endgeneration %}\n\n  {% endif %}\n{% endfor %}\n{% if tools %}{{ tools | tojson(indent=2) "
    "}}{% endif %}{{ documents | tojson if documents }}{{ mood }}\n{% if add_generation_prompt "
    "%}Assistant:{% endif %}"
)


def chat(draw):
    roles = ["system", *["user", "assistant"] * draw.randint(1, 3)][draw.randint(0, 1) :]
    return [{"role": role, "content": text(draw) or "x"} for role in roles]


@pytest.fixture
def pair():
    return both_tokenizers("byte-level BPE", chat_template=PLAIN)


def test_chats_equal_the_reference(pair):
    draw = random.Random(0)
    for case in range(120):
        conversation = (
            chat(draw) if draw.random() < 0.6 else [chat(draw) for _ in range(draw.randint(1, 3))]
        )
        options: dict[str, Any] = {
            **draw.choice([{}, {"add_generation_prompt": True}]),
            **draw.choice([{}, {"tools": [{"type": "function", "é": 1}]}]),
            **draw.choice([{}, {"documents": [{"title": "a", "text": "<b>"}]}]),
            **draw.choice([{}, {"mood": "<good> & 'well'"}]),
            **draw.choice([{}, {"tokenize": False}, {"return_dict": False}]),
        }
        if options.get("tokenize", True):
            options |= draw.choice(
                [
                    {},
                    {"return_tensors": "pt", "padding": True},
                    {"max_length": 20, "truncation": True},
                ]
            )
            options |= draw.choice([{}, {"tokenizer_kwargs": {"return_token_type_ids": True}}])
        answers = [tokenizer.apply_chat_template(conversation, **options) for tokenizer in pair]
        assert_same(*answers, where=f"{case}: {conversation} {options}")


def test_which_chat_template(pair):
    for options in ({}, {"chat_template": "{{ 1 + 1 }}"}):
        mine, theirs = (
            tokenizer.apply_chat_template([{}], tokenize=False, **options) for tokenizer in pair
        )
        assert mine == theirs
    mine = pair[0]
    mine.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        mine.apply_chat_template([{}])


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for m in messages %}{{ m.update({'a': 1}) }}{% endfor %}",
        "{{ raise_exception.__globals__.x }}",
    ],
)
def test_chat_sandbox_cannot_be_left(pair, template):
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(jinja2.exceptions.SecurityError):
        pair[0].apply_chat_template(messages, chat_template=template, tokenize=False)
    assert messages == [{"role": "user", "content": "a"}]


def test_chat_template_functions(pair):
    mine, theirs = (
        tokenizer.apply_chat_template(
            [{}], chat_template="{{ strftime_now('%Y-%m') }} {{ 'é<' | tojson }}", tokenize=False
        )
        for tokenizer in pair
    )
    assert mine == theirs
    assert mine.startswith(str(datetime.date.today().year))
    with pytest.raises(jinja2.exceptions.TemplateError, match="roles must alternate"):
        pair[0].apply_chat_template(
            [{}], chat_template="{{ raise_exception('roles must alternate') }}"
        )
    with pytest.raises(jinja2.exceptions.TemplateSyntaxError):
        pair[0].apply_chat_template([{}], chat_template="{% if %}")


def test_chat_that_cannot_be_is_refused(pair):
    mine, _ = pair
    conversation = [{"role": "user", "content": "a"}]
    for options, message in (
        (
            {"return_assistant_tokens_mask": True},
            r"apply_chat_template\(return_assistant_tokens_mask=True\).*pip install transf",
        ),
        (
            {"continue_final_message": True},
            r"apply_chat_template\(continue_final_message=True\).*pip install transf",
        ),
        (
            {"tools": [len]},
            "a tool is a builtin_function_or_method; pass JSON schemas .*pip install transformers",
        ),
    ):
        with pytest.raises(NotImplementedError, match=message):
            mine.apply_chat_template(conversation, **options)


@pytest.mark.parametrize("conversation", [[], ()])
def test_chat_without_messages_raises(pair, conversation):
    with pytest.raises(ValueError, match="the conversation has no messages"):
        pair[0].apply_chat_template(conversation)
