"""The options of HfArgumentParser are those of the reference in every attribute that code may read."""

import dataclasses
import enum
import math
from typing import Literal

import pytest


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Text(str, enum.Enum):
    ONE = "one"
    TWO = "two"


@dataclasses.dataclass
class Defaults:
    flag: bool = False
    on: bool = True
    maybe: bool | None = None
    literal: Literal["a", "b", 1] = "a"
    optional_literal: Literal["x", 2] | None = None
    color: Color = Color.RED
    text: Text = "one"
    numbers: list[int] = dataclasses.field(default_factory=list)
    words: list[str] | None = None
    colors: list[Color] = dataclasses.field(default_factory=list)
    share: float = dataclasses.field(default=0.5, metadata={"help": "How much.", "aliases": ["--part", "-p"]})
    whole: "int | None" = None
    chosen: str = dataclasses.field(default="p", metadata={"choices": ["p", "q"]})
    named: int = dataclasses.field(default=1, metadata={"metavar": "N"})
    unset: float = math.inf


@dataclasses.dataclass
class Required:
    color: Color
    flag: bool
    numbers: list[int]
    word: str | None
    literal: Literal["m", "n"]


VALUE_NAMES = ("JSON", "JSON|FILE", "WHICH")


def options(api, kind):
    """By their spellings: all attributes of the options, but the group they are shown in and the words of their help.

    A default that is a member of an enumeration of the library is compared by its value, a function by its name. Only
    ours name the values of some arguments (`metavar`), for the help.
    """
    found = {}
    for action in api.HfArgumentParser(kind)._actions:
        attributes = {name: value for name, value in vars(action).items() if name != "container"}
        help_text = attributes.pop("help")
        if attributes["metavar"] in VALUE_NAMES:
            attributes["metavar"] = None
        attributes["has help"] = help_text is not None
        attributes["type"] = getattr(attributes["type"], "__name__", None)
        attributes["choices"] = attributes["choices"] and [getattr(one, "value", one) for one in attributes["choices"]]
        attributes["kind of choices"] = type(action.choices).__name__
        attributes["default"] = repr(getattr(action.default, "value", action.default))
        found[tuple(action.option_strings)] = {**attributes, "class": type(action).__name__}
    return found


BETTER = {
    # a dict is read as JSON, where the reference calls dict(text)
    ("--liger_kernel_config", "--liger-kernel-config"): {"type": "to_dict"},
    # text that is a path is one, and a misspelt member is answered with the nearest one
    ("--parallelism_config", "--parallelism-config"): {"type": "str"},
    ("--generation_config", "--generation-config"): {"type": "convert_or_keep"},
    ("--debug",): {"type": "pick"},
    ("--include_num_input_tokens_seen", "--include-num-input-tokens-seen"): {"type": "convert_or_keep"},
    # as in 5.23: without a value it is version 2, and results of Trackio stay on this machine unless a Space is named
    ("--fsdp",): {"nargs": "?", "const": True},
    ("--trackio_space_id", "--trackio-space-id"): {"default": "None"},
    ("--colors",): {"type": "pick"},
    ("--log_level", "--log-level"): {"kind of choices": "list"},
    ("--log_level_replica", "--log-level-replica"): {"kind of choices": "list"},
}
LATER = (
    *("activation_checkpointing", "trackio_bucket", "trackio_static", "dataloader_multi", "dataloader_in_order"),
    *("ddp_static", "record_model_losses", "eval_aggregate", "fp8", "parameter_rules", "max_tokens"),
)
LATER_CHOICES = ("greedy", "batch_rebalance", "token_budget")


@pytest.mark.parametrize("kind", [Defaults, Required, "TrainingArguments", "Seq2SeqTrainingArguments"])
def test_every_attribute_is_that_of_the_reference(reference, ours, kind):
    if isinstance(kind, str) and reference.__version__ != "5.3.0":
        pytest.skip("the arguments, with their defaults and choices, are those of 5.3.0 and what later ones added")
    wanted, found = (options(api, getattr(api, kind) if isinstance(kind, str) else kind) for api in (reference, ours))
    same_names = {"to_bool": "string_to_bool"}  # served under that name
    for attributes in found.values():
        attributes["type"] = same_names.get(attributes["type"], attributes["type"])
        attributes["choices"] = [one for one in attributes["choices"] or () if one not in LATER_CHOICES] or None
    more = [names for names in found if names not in wanted]
    assert all(name.removeprefix("--no_").removeprefix("--").startswith(LATER) for name, *_ in more), more
    expected = {names: {**attributes, **BETTER.get(names, {})} for names, attributes in wanted.items()}
    assert {names: found.get(names) for names in wanted} == expected
