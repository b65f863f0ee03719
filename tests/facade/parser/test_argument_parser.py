"""The parser beside the reference's: the same objects and remaining words for the same command lines."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Optional, Union

import pytest
from transformers import HfArgumentParser as ReferenceParser
from transformers.hf_argparser import HfArg as ReferenceArg

from lightrainer import HfArg, HfArgumentParser, TrainingArguments


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
    unset_off: bool | None = False
    either: str | bool = "no"
    either_on: bool | str = True


@dataclass
class Choices:
    color: Color = Color.RED
    color_text: Color = "blue"
    size: Size = Size.SMALL
    text: Text = Text.ONE
    text_or: Text | str = "two"
    literal: Literal["a", "b", 3] = "a"
    maybe: Literal["a", "b"] | None = None
    listed: str = field(default="p", metadata={"choices": ["p", "q"]})
    numbers: int = field(default=1, metadata={"choices": [1, 2]})


@dataclass
class Unions:
    number: int | None = None
    text: Union[str, None] = None  # noqa: UP007 - the old spelling
    first: None | int = 3  # noqa: RUF036 - another order
    anything: str | dict | None = None
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
        *("", "--off", "--off 1", "--off no", "--is_on", "--is_on False", "--no_is_on", "--no-is-on", "--unset"),
        *("--unset y", "--unset N", "--unset_on", "--no_unset_on", "--unset_off", "--unset_off t", "--required 0"),
        *("--off maybe", "--no_off", "--either", "--either no", "--either TRUE", "--either_on 0", "--no-either-on"),
        *("--is_on 0 --no_is_on", "--no_is_on --is_on", "--off --is_on word", "--no_required"),
    ],
    Choices: [
        *("", "--color blue", "--color RED", "--color green", "--color_text red", "--size 1", "--size large"),
        *("--text two", "--text three", "--text_or one", "--text_or other", "--literal b", "--literal 3", "--maybe a"),
        *("--maybe c", "--listed q", "--listed r", "--numbers 2", "--numbers 3", "--color-text red --maybe b"),
    ],
    Unions: ["", "--number 1", "--text None", "--first 4", "--named {}", "--number_or 5", "--wide x", "--number x"],
    NotInit: ["", "--given 2", "--made 4"],
    Heading: ["", "--inside 2", "--outside"],
}
"""Attributes of options are compared in `tests/parity/test_parser_options.py`."""
CASES = [(kind, line) for kind, lines in LINES.items() for line in lines]


def outcome(parser, words):
    """Parse a command line: the namespace and the rest, the objects and the rest, or the exit status."""
    try:
        namespace, rest = parser.parse_known_args(words)
        objects = parser.parse_args_into_dataclasses(words, return_remaining_strings=True, look_for_args_file=False)
    except SystemExit as stop:
        return stop.code
    return vars(namespace), rest, objects


@pytest.mark.parametrize(("kind", "line"), CASES, ids=[f"{kind.__name__}: {line}" for kind, line in CASES])
def test_a_command_line_means_what_it_means_to_the_reference(kind, line):
    ours = outcome(HfArgumentParser(kind), line.split())
    theirs = outcome(ReferenceParser(kind), line.split())
    assert repr(ours) == repr(theirs)
    assert ours == theirs


def test_several_dataclasses_and_other_options():
    """One object each, in their order, then what was added to the parser, then the rest."""

    def parsed(parser):
        parser.add_argument("--added", type=int, default=5)
        words = ["--inside", "4", "--added", "6", "--given", "2", "more", "--other"]
        return parser.parse_args_into_dataclasses(words, return_remaining_strings=True)

    expected = (NotInit(2), Heading(4), Namespace(added=6), ["more", "--other"])
    assert parsed(HfArgumentParser((NotInit, Heading))) == expected
    assert parsed(HfArgumentParser(iter([NotInit, Heading]))) == expected
    assert parsed(ReferenceParser((NotInit, Heading))) == expected


def test_the_reference_sees_the_fields_that_we_make():
    """`HfArg` makes the same field, and leaves the dict of metadata alone."""
    metadata = {"metavar": "N"}
    ours = HfArg(default=3, aliases=["-a"], help="Help.", metadata=metadata, repr=False)
    theirs = ReferenceArg(default=3, aliases=["-a"], help="Help.", metadata=dict(metadata), repr=False)
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
    flags: list[bool] = field(default_factory=list)
    bare: list = field(default_factory=list)
    text: str | list[str] | None = None
    kept: str | list[int] = "all"
    whatever: Any = None
    number: str | int | None = None
    lazy: bool = field(default_factory=lambda: True)
    lazy_color: Color = field(default_factory=lambda: Color.BLUE)
    maybe: str | bool | None = None
    noted: int = field(default=1, metadata={"another_library": object()})


WORDS = [
    ((), "settings", {}),
    (("--settings", '{"a": [1, "b"]}'), "settings", {"a": [1, "b"]}),
    (("--kinds", '{"a": 1}'), "kinds", {"a": 1}),
    (("--options", "red", "blue"), "options", [Color.RED, Color.BLUE]),
    (("--few", "a", "1"), "few", ["a", 1]),
    (("--flags", "no", "yes"), "flags", [False, True]),
    (("--bare", "x"), "bare", ["x"]),
    (("--text", "x"), "text", "x"),
    ((), "kept", "all"),
    (("--kept", "1", "2"), "kept", [1, 2]),
    (("--whatever", "x"), "whatever", "x"),
    (("--number", "3"), "number", 3),
    (("--number", "three"), "number", "three"),
    ((), "lazy", True),
    (("--lazy", "0"), "lazy", False),
    ((), "lazy_color", Color.BLUE),
    (("--maybe", "1"), "maybe", True),
    (("--maybe", "x"), "maybe", "x"),
    ((), "noted", 1),
]


@pytest.mark.parametrize(("words", "name", "value"), WORDS)
def test_types_that_the_reference_cannot_read(words, name, value):
    (found,) = HfArgumentParser(Beyond).parse_args_into_dataclasses(words)
    assert getattr(found, name) == value
    assert type(getattr(found, name)) is type(value)
    assert isinstance(found.kept, str) or name == "kept"


WORDS_AND_MESSAGES = [
    (["--settings", "{a: 1}"], "is not JSON .* need double quotes"),
    (["--settings", "[1]"], "is a JSON list; write an object"),
    (["--options", "rde"], "not one of: red, blue. Did you mean 'red'"),
    (["--lazy", "maybe"], "'maybe' is neither true nor false. Write one of: yes, true"),
    (["--few", "b"], "invalid choice: 'b'"),
]


@pytest.mark.parametrize(("words", "message"), WORDS_AND_MESSAGES)
def test_a_wrong_value_ends_the_program_with_the_reason(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        HfArgumentParser(Beyond).parse_args_into_dataclasses(words)
    assert stop.value.code == 2
    assert re.search(f"argument {words[0]}.*{message}", capsys.readouterr().err)


def test_words_that_no_option_takes():
    parser = HfArgumentParser(TrainingArguments)
    with pytest.raises(ValueError, match=r"--learning_rte=1 stray\. --learning_rte: Did you mean 'learning_rate'\?$"):
        parser.parse_args_into_dataclasses(["--learning_rte=1", "stray"])
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


def test_annotations_that_cannot_be_found():
    class Inside:
        pass

    @dataclass
    class Hidden:
        x: Inside | None = None

    for parser in (HfArgumentParser, ReferenceParser):
        with pytest.raises(RuntimeError, match="Hidden"):
            parser(Hidden)


# Files.


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A program that was started with `--given 3`."""
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py"), "--given", "3"])
    return tmp_path


@pytest.mark.parametrize("args", [None, ["--inside", "5"]])
@pytest.mark.parametrize("options", [{}, {"look_for_args_file": False}, {"args_filename": "other.txt"}])
@pytest.mark.parametrize("with_flag", [False, True])
def test_files_of_options_are_read_as_in_the_reference(script, monkeypatch, args, options, with_flag):
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


def test_a_file_that_was_asked_for_and_is_not_there_is_an_error(script):
    """Where the reference goes on with defaults."""
    parser = HfArgumentParser(NotInit)
    (script / "train.args").write_text("--given 4")
    with pytest.raises(FileNotFoundError, match=r"tran\.args"):
        parser.parse_args_into_dataclasses([], args_filename=script / "tran.args")
    with pytest.raises(IsADirectoryError):
        parser.parse_args_into_dataclasses(["--from", str(script)], args_file_flag="--from")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        parser.parse_args_into_dataclasses(["--from", "nowhere"], args_file_flag="--from")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with a name")
def test_a_pipe_is_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("--given 4",))
    writer.start()
    assert HfArgumentParser(NotInit).parse_args_into_dataclasses([], args_filename=pipe) == (NotInit(4),)
    writer.join()


CONTENT = {"given": 5, "inside": "as it is"}


@pytest.mark.parametrize("extra", [{}, {"other": 1}])
def test_dicts_and_files_are_read_as_in_the_reference(tmp_path, extra):
    content = {**CONTENT, **extra}
    (tmp_path / "x.json").write_text(json.dumps(content))
    (tmp_path / "x.yaml").write_text("\n".join(f"{key}: {value}" for key, value in content.items()))
    expected = ReferenceParser((NotInit, Heading)).parse_dict(content, allow_extra_keys=True)
    assert expected == (NotInit(5), Heading("as it is"))
    parser = HfArgumentParser((NotInit, Heading))
    ways = [
        (parser.parse_dict, content),
        (parser.parse_json_file, tmp_path / "x.json"),
        (parser.parse_yaml_file, str(tmp_path / "x.yaml")),
    ]
    for read, source in ways:
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
