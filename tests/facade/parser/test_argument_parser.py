"""The parser beside the reference's: the same objects and remaining words for the same command
lines.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Optional, Union

import pytest
import transformers
from transformers import HfArgumentParser as ReferenceParser
from transformers.hf_argparser import HfArg as ReferenceArg

import lightrainer
from lightrainer import HfArg, HfArgumentParser, TrainingArguments
from lightrainer.facade.parser.argument_parser import ADDED_ARGUMENTS


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Size(Enum):
    SMALL = 1
    LARGE = "large"


class Text(str, Enum):
    ONE = "one"
    TWO = "two"


@dataclass
class Flags:
    required: bool
    off: bool = False
    is_on: bool = True
    unset: bool | None = None
    unset_on: Optional[bool] = True  # noqa: UP045 - the old spelling
    either: str | bool = "no"


@dataclass
class Choices:
    color: Color = Color.RED
    color_text: Color = "blue"
    size: Size = Size.SMALL
    text: Text = Text.ONE
    literal: Literal["a", "b", 3] = "a"
    maybe: Literal["a", "b"] | None = None
    listed: str = field(default="p", metadata={"choices": ["p", "q"]})


@dataclass
class Unions:
    number: int | None = None
    text: Union[str, None] = None  # noqa: UP007 - the old spelling
    named: dict | str | None = None
    number_or: Union[int, str] = 3  # noqa: UP007 - the old spelling
    wide: float | str | None = None


@dataclass
class NotInit:
    given: int = 1
    made: int = field(init=False, default=3)


@dataclass
class Heading:
    _argument_group_name = "a heading"
    inside: int = 1


LINES = {
    Flags: [
        *(
            "",
            "--off",
            "--off 1",
            "--off no",
            "--is_on False",
            "--no_is_on",
            "--no-is-on",
            "--unset",
            "--unset N",
        ),
        *(
            "--no_unset_on",
            "--required 0",
            "--off maybe",
            "--no_off",
            "--either",
            "--either no",
            "--either TRUE",
        ),
        *("--is_on 0 --no_is_on", "--no_is_on --is_on", "--off --is_on word", "--no_required"),
    ],
    Choices: [
        *(
            "",
            "--color blue",
            "--color RED",
            "--color green",
            "--color_text red",
            "--size 1",
            "--size large",
        ),
        *(
            "--text two",
            "--text three",
            "--literal b",
            "--literal 3",
            "--maybe c",
            "--listed r",
            "--listed q",
        ),
    ],
    Unions: [
        "",
        "--number 1",
        "--text None",
        "--named {}",
        "--number_or 5",
        "--wide x",
        "--number x",
    ],
    NotInit: ["", "--given 2", "--made 4"],
    Heading: ["", "--inside 2", "--outside"],
}
CASES = [(kind, line) for kind, lines in LINES.items() for line in lines]


def outcome(parser, words):
    """Parse a command line: the namespace and the rest, the objects and the rest, or the exit
    status.
    """
    try:
        namespace, rest = parser.parse_known_args(words)
        objects = parser.parse_args_into_dataclasses(
            words, return_remaining_strings=True, look_for_args_file=False
        )
    except SystemExit as stop:
        return stop.code
    return vars(namespace), rest, objects


@pytest.mark.parametrize(
    ("kind", "line"), CASES, ids=[f"{kind.__name__}: {line}" for kind, line in CASES]
)
def test_parser_reads_command_lines_like_the_reference(kind, line):
    ours = outcome(HfArgumentParser(kind), line.split())
    theirs = outcome(ReferenceParser(kind), line.split())
    assert repr(ours) == repr(theirs)
    assert ours == theirs


def test_parser_several_dataclasses_and_other_options():
    """One object each, in their order, then what was added to the parser, then the rest."""

    def parsed(parser):
        parser.add_argument("--added", type=int, default=5)
        words = ["--inside", "4", "--added", "6", "--given", "2", "more", "--other"]
        return parser.parse_args_into_dataclasses(words, return_remaining_strings=True)

    expected = (NotInit(2), Heading(4), Namespace(added=6), ["more", "--other"])
    assert parsed(HfArgumentParser((NotInit, Heading))) == expected
    assert parsed(HfArgumentParser(iter([NotInit, Heading]))) == expected
    assert parsed(ReferenceParser((NotInit, Heading))) == expected


@dataclass
class More:
    numbers: list[int]
    words: list[str] | None = None
    colors: list[Color] = field(default_factory=list)
    share: float = field(default=0.5, metadata={"help": "How much.", "aliases": ["--part", "-p"]})
    named: int = field(default=1, metadata={"metavar": "N"})
    unset: float = math.inf


VALUE_NAMES = ("JSON", "JSON|FILE", "WHICH")


def options(parser):
    """By their spellings: all attributes of the options, but the group they are shown in and the
    words of their help.

    A default that is a member of an enumeration of the library is compared by its value, a function
    by its name. Only ours name the values of some arguments (`metavar`), for the help.
    """
    by_spelling = {}
    for action in parser._actions:
        attributes = {name: value for name, value in vars(action).items() if name != "container"}
        help_text = attributes.pop("help")
        if attributes["metavar"] in VALUE_NAMES:
            attributes["metavar"] = None
        attributes["has help"] = help_text is not None
        kind = getattr(attributes["type"], "__name__", None)
        attributes["type"] = {"to_bool": "string_to_bool"}.get(kind, kind)  # served under that name
        choices = [getattr(choice, "value", choice) for choice in attributes["choices"] or ()]
        attributes["choices"] = [choice for choice in choices if choice not in LATER_CHOICES]
        attributes["kind of choices"] = type(action.choices).__name__
        attributes["default"] = repr(getattr(action.default, "value", action.default))
        by_spelling[tuple(action.option_strings)] = {**attributes, "class": type(action).__name__}
    return by_spelling


BETTER = {
    # a dict is read as JSON, where the reference calls dict(text)
    ("--liger_kernel_config", "--liger-kernel-config"): {"type": "to_dict"},
    # text that is a path is one, and a misspelt member is answered with the nearest one
    ("--parallelism_config", "--parallelism-config"): {"type": "str"},
    ("--generation_config", "--generation-config"): {"type": "Path"},
    ("--debug",): {"type": "pick"},
    ("--include_num_input_tokens_seen", "--include-num-input-tokens-seen"): {
        "type": "string_to_bool"
    },
    # as in 5.23: without a value it is version 2, and results of Trackio stay on this machine
    # unless a Space is named
    ("--fsdp",): {"nargs": "?", "const": True},
    ("--trackio_space_id", "--trackio-space-id"): {"default": "None"},
    ("--colors",): {"type": "pick"},
    ("--log_level", "--log-level"): {"kind of choices": "list"},
    ("--log_level_replica", "--log-level-replica"): {"kind of choices": "list"},
}
LATER_CHOICES = ("token_budget",)
THEIRS = {item.name for item in dataclasses.fields(transformers.TrainingArguments)}
LATER = [item.name for item in dataclasses.fields(TrainingArguments) if item.name not in THEIRS]


@pytest.mark.parametrize("kind", [More, "TrainingArguments", "Seq2SeqTrainingArguments"])
def test_parser_option_attributes_equal_the_reference(kind):
    expected, actual = (
        options(api.HfArgumentParser(getattr(api, kind) if isinstance(kind, str) else kind))
        for api in (transformers, lightrainer)
    )
    more = [name for name, *_ in actual.keys() - expected.keys()]
    assert {name.removeprefix("--no_").removeprefix("--") for name in more} == {
        *(LATER if kind != More else ())
    }
    assert {names: actual.get(names) for names in expected} == {
        names: {**attributes, **BETTER.get(names, {})} for names, attributes in expected.items()
    }


def test_parser_of_the_reference_sees_our_fields():
    """`HfArg` makes the same field, and leaves the dict of metadata alone."""
    metadata = {"metavar": "N"}
    ours = HfArg(default=3, aliases=["-a"], help="Help.", metadata=metadata, repr=False)
    theirs = ReferenceArg(
        default=3, aliases=["-a"], help="Help.", metadata=dict(metadata), repr=False
    )
    assert repr(ours) == repr(theirs)
    assert metadata == {"metavar": "N"}
    assert repr(HfArg()) == repr(ReferenceArg())


# Beyond the reference.


@dataclass
class Beyond:
    settings: dict = field(default_factory=dict)
    kinds: dict[str, int] | None = None
    options: list[Color] = field(default_factory=list)
    few: list[Literal["a", 1]] = field(default_factory=list)
    kept: str | list[int] = "all"
    number: str | int | None = None
    lazy: bool = field(default_factory=lambda: True)
    maybe: str | bool | None = None
    noted: int = field(default=1, metadata={"another_library": object()})


WORDS = [
    (("--settings", '{"a": [1, "b"]}'), "settings", {"a": [1, "b"]}),
    (("--kinds", '{"a": 1}'), "kinds", {"a": 1}),
    (("--options", "red", "blue"), "options", [Color.RED, Color.BLUE]),
    (("--few", "a", "1"), "few", ["a", 1]),
    ((), "kept", "all"),
    (("--kept", "1", "2"), "kept", [1, 2]),
    (("--number", "3"), "number", 3),
    (("--number", "three"), "number", "three"),
    ((), "lazy", True),
    (("--lazy", "0"), "lazy", False),
    (("--maybe", "x"), "maybe", "x"),
    ((), "noted", 1),
]


@pytest.mark.parametrize(("words", "name", "value"), WORDS)
def test_types_that_the_reference_cannot_read(words, name, value):
    (parsed,) = HfArgumentParser(Beyond).parse_args_into_dataclasses(words)
    assert getattr(parsed, name) == value
    assert type(getattr(parsed, name)) is type(value)
    assert isinstance(parsed.kept, str) or name == "kept"


WORDS_AND_MESSAGES = [
    (["--settings", "{a: 1}"], "is not JSON .* need double quotes"),
    (["--settings", "[1]"], "is a JSON list; write an object"),
    (["--options", "rde"], "not one of: red, blue. Did you mean 'red'"),
    (["--lazy", "maybe"], "'maybe' is neither true nor false. Write one of: yes, true"),
    (["--few", "b"], "invalid choice: 'b'"),
]


@pytest.mark.parametrize(("words", "message"), WORDS_AND_MESSAGES)
def test_parser_wrong_value_exits_with_the_reason(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        HfArgumentParser(Beyond).parse_args_into_dataclasses(words)
    assert stop.value.code == 2
    assert re.search(f"argument {words[0]}.*{message}", capsys.readouterr().err)


def test_words_that_no_option_takes():
    parser = HfArgumentParser(TrainingArguments)
    message = (
        r"--learning_rte \(1 values are not shown.*\)\. --learning_rte: Did you mean "
        r"'learning_rate'\?$"
    )
    with pytest.raises(ValueError, match=message) as error:
        parser.parse_args_into_dataclasses(["--learning_rte=1", "stray"])
    assert "stray" not in str(error.value)
    with pytest.raises(ValueError, match="Did you mean 'per_device_train_batch_size'"):
        parser.parse_args_into_dataclasses(["--per-device-trian-batch-size", "1"])


def test_types_that_cannot_be_read():
    @dataclass
    class Ambiguous:
        x: int | float = 1

    Ambiguous.__annotations__["x"] = int | float
    for parser in (HfArgumentParser, ReferenceParser):
        with pytest.raises(ValueError, match="'x'"):
            parser(Ambiguous)
    with pytest.raises(TypeError, match="dataclass"):
        HfArgumentParser(int)


# Files.


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A program that was started with `--given 3`."""
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py"), "--given", "3"])
    return tmp_path


@pytest.mark.parametrize("args", [None, ["--inside", "5"]])
@pytest.mark.parametrize(
    "options", [{}, {"look_for_args_file": False}, {"args_filename": "other.txt"}]
)
@pytest.mark.parametrize("with_flag", [False, True])
def test_files_of_options_are_read_as_in_the_reference(
    script, monkeypatch, args, options, with_flag
):
    """Before the command line, which has the last word."""
    monkeypatch.chdir(script)
    (script / "train.args").write_text("--given 8\n--inside 8\n")
    (script / "other.txt").write_text("--inside 9")
    (script / "flagged").write_text("--given 10 --inside 10")
    if with_flag:
        args = [*(args or []), "--from", "flagged", "--from", "other.txt"]
        options = {**options, "args_file_flag": "--from"}
    results = [
        parser((NotInit, Heading)).parse_args_into_dataclasses(args, **options)
        for parser in (HfArgumentParser, ReferenceParser)
    ]
    assert results[0] == results[1]


def test_parser_missing_file_raises(script):
    """The reference continues with defaults instead."""
    parser = HfArgumentParser(NotInit)
    with pytest.raises(FileNotFoundError, match=r"tran\.args"):
        parser.parse_args_into_dataclasses([], args_filename=script / "tran.args")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        parser.parse_args_into_dataclasses(["--from", "nowhere"], args_file_flag="--from")


CONTENT = {"given": 5, "inside": "as it is"}


@pytest.mark.parametrize("extra", [{}, {"other": 1}])
def test_dicts_and_files_are_read_as_in_the_reference(tmp_path, extra):
    content = {**CONTENT, **extra}
    (tmp_path / "x.json").write_text(json.dumps(content))
    (tmp_path / "x.yaml").write_text("\n".join(f"{key}: {value}" for key, value in content.items()))
    expected = ReferenceParser((NotInit, Heading)).parse_dict(content, allow_extra_keys=True)
    assert expected == (NotInit(5), Heading("as it is"))
    parser = HfArgumentParser((NotInit, Heading))
    readers = [
        (parser.parse_dict, content),
        (parser.parse_json_file, tmp_path / "x.json"),
        (parser.parse_yaml_file, str(tmp_path / "x.yaml")),
    ]
    for read, source in readers:
        assert read(source, allow_extra_keys=True) == expected
        if extra:
            with pytest.raises(ValueError, match="'other' is not a field of NotInit or Heading"):
                read(source)
        else:
            assert read(source) == expected


def test_wrong_keys_and_files(tmp_path):
    parser = HfArgumentParser(NotInit)
    with pytest.raises(ValueError, match=r"'gevin'.*Did you mean 'given'\?"):
        parser.parse_dict({"gevin": 1})
    with pytest.raises(ValueError, match="made"):
        parser.parse_dict({"made": 1})
    (tmp_path / "x.json").write_text("[1]")
    (tmp_path / "x.yaml").write_text("")
    with pytest.raises(ValueError, match=r"x\.json.*list"):
        parser.parse_json_file(tmp_path / "x.json")
    with pytest.raises(ValueError, match=r"x\.yaml.*NoneType"):
        parser.parse_yaml_file(tmp_path / "x.yaml")


# Training arguments.


def test_parser_without_options_sets_nothing():
    """And `debug`, a list whose default is text, keeps its declared default."""
    assert HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([]) == (
        TrainingArguments(),
    )


@dataclass
class MoreArguments(TrainingArguments):
    learning_rate: float = 0.5
    my_own: int | None = field(default=None, metadata={"help": "Mine."})


def test_parser_subclass_of_training_arguments():
    words = ["--my_own", "3", "--per-device-train-batch-size", "2"]
    (args,) = HfArgumentParser(MoreArguments).parse_args_into_dataclasses(words)
    assert (args.learning_rate, args.my_own, args.per_device_train_batch_size) == (0.5, 3, 2)


def test_the_usage_is_short_with_training_arguments_only():
    """Other parsers have that of the reference, and a script may pass its own."""
    usages = [
        api.HfArgumentParser(More, prog="x").format_usage() for api in (transformers, lightrainer)
    ]
    assert usages[0] == usages[1]
    assert "--share SHARE" in usages[1]
    assert HfArgumentParser(TrainingArguments, prog="x").format_usage() == "usage: x [options]\n"
    usage = HfArgumentParser(TrainingArguments, usage="mine").format_usage()
    assert usage == "usage: mine\n"


def test_parser_help_is_ordered_by_concern():
    """Every field once, below the concern that it belongs to; the usage is short."""
    text = HfArgumentParser([MoreArguments, Heading], prog="train").format_help()
    assert text.startswith("usage: train [options]\n\n")
    text = text.partition("\n\n")[2]
    titles, parts = (
        re.split(r"^(\S.*):\n", text, flags=re.MULTILINE)[start::2] for start in (1, 2)
    )
    groups = {
        title: re.findall(r"^  (--\w+)", part, re.MULTILINE)
        for title, part in zip(titles, parts, strict=True)
    }
    assert groups["run"] == [
        "--output_dir",
        "--per_device_train_batch_size",
        "--num_train_epochs",
        "--max_steps",
    ]
    assert "--learning_rate" in groups["optimization"]  # whose default the subclass changes
    assert groups["options"][-1] == "--my_own"
    assert groups["a heading"] == ["--inside"]
    shown = [
        option
        for options in groups.values()
        for option in options
        if not option.startswith("--no_")
    ]
    assert sorted(shown) == sorted(f"--{name}" for name in [*THEIRS, *LATER, "my_own", "inside"])


# --- options of the script with the name of a training argument


@pytest.mark.parametrize("old_names", [False, True])
@pytest.mark.parametrize("name", ["max_tokens_per_batch", "activation_checkpointing", "use_ipex"])
@pytest.mark.parametrize("is_first", [True, False])
def test_parser_leaves_names_that_the_reference_lacks_to_the_script(
    tmp_path, monkeypatch, name, old_names, is_first
):
    """Of 5.3.0 the first two are no arguments yet, and the last is none any more."""
    monkeypatch.setattr("lightrainer.facade.arguments.old_names._accepted", old_names)
    own_type = dataclasses.make_dataclass("Own", [(name, str, field(default="own"))])

    def values(parser_type, arguments_type):
        types = [own_type, arguments_type] if is_first else [arguments_type, own_type]
        parser = parser_type(types)
        words = ["--output_dir", str(tmp_path), f"--{name}", "given"]
        from_words = parser.parse_args_into_dataclasses(words)
        from_dict = parser.parse_dict({"output_dir": str(tmp_path), name: "given"})
        return [getattr(parsed[types.index(own_type)], name) for parsed in (from_words, from_dict)]

    expected = values(ReferenceParser, transformers.TrainingArguments)
    assert values(HfArgumentParser, TrainingArguments) == expected == ["given", "given"]


def test_parser_knows_which_arguments_the_reference_lacks():
    ours, theirs = (
        {item.name for item in dataclasses.fields(api.TrainingArguments)}
        for api in (lightrainer, transformers)
    )
    assert ours - theirs == ADDED_ARGUMENTS
