"""Every training argument on a command line, as the reference reads it; and the help that they stand in."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field

import pytest
from transformers import HfArgumentParser as ReferenceParser
from transformers import TrainingArguments as ReferenceArguments

from lightrainer import HfArgumentParser, TrainingArguments
from lightrainer.facade.arguments import training_arguments


@dataclass
class Heading:
    _argument_group_name = "a heading"
    inside: int = 1


FIELDS = [item.name for item in dataclasses.fields(ReferenceArguments)]
LATER = {item.name for item in dataclasses.fields(TrainingArguments)} - set(FIELDS)


@pytest.fixture(scope="module", autouse=True)
def _leave_the_reference_as_it_was():
    """Its parser writes other types into the fields of the dataclasses that it reads."""
    before = {item.name: item.type for item in dataclasses.fields(ReferenceArguments)}
    yield
    for item in dataclasses.fields(ReferenceArguments):
        item.type = before[item.name]


@pytest.fixture(scope="module")
def parsers():
    return HfArgumentParser(TrainingArguments, prog="x"), ReferenceParser(ReferenceArguments, prog="x")


def test_a_training_argument_that_we_take_and_the_reference_does_not(parsers, monkeypatch):
    monkeypatch.setattr(training_arguments, "raise_for_unsupported", lambda args: None)
    words = ["--liger_kernel_config", '{"rope":true}', "--include_num_input_tokens_seen", "non_padding"]
    (args,) = parsers[0].parse_args_into_dataclasses(words)
    assert args.liger_kernel_config == {"rope": True}
    assert args.include_num_input_tokens_seen == "non_padding"


def test_the_dataclass_is_left_as_it_was():
    before = [(item.name, item.type, dict(item.metadata)) for item in dataclasses.fields(TrainingArguments)]
    HfArgumentParser(TrainingArguments)
    assert [(item.name, item.type, dict(item.metadata)) for item in dataclasses.fields(TrainingArguments)] == before


def test_nothing_given_is_nothing_set(parsers):
    """And `debug`, a list whose default is text, keeps what it is declared with."""
    assert parsers[0].parse_args_into_dataclasses([]) == (TrainingArguments(),)


@dataclass
class MoreArguments(TrainingArguments):
    learning_rate: float = 0.5
    my_own: int | None = field(default=None, metadata={"help": "Mine."})


@dataclass
class ReferenceMore(ReferenceArguments):
    learning_rate: float = 0.5
    my_own: int | None = field(default=None, metadata={"help": "Mine."})


def test_a_subclass_of_the_training_arguments():
    words = ["--my_own", "3", "--per-device-train-batch-size", "2"]
    (ours,) = HfArgumentParser(MoreArguments).parse_args_into_dataclasses(words)
    (theirs,) = ReferenceParser(ReferenceMore).parse_args_into_dataclasses(words)
    for name in ("learning_rate", "my_own", "per_device_train_batch_size"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.learning_rate == 0.5


# The help.


def headings(text):
    """Each heading with the options below it."""
    parts = re.split(r"^(\S.*):\n", text, flags=re.MULTILINE)
    return {
        title: re.findall(r"^  (--\w+)", part, re.MULTILINE)
        for title, part in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_the_help_is_ordered_by_concern(monkeypatch):
    """Every field once, in one spelling, below the concern that it belongs to."""
    monkeypatch.setenv("COLUMNS", "100")
    text = HfArgumentParser([MoreArguments, Heading], prog="train").format_help()
    found = headings(text)
    assert found["run"] == ["--output_dir", "--per_device_train_batch_size", "--num_train_epochs", "--max_steps"]
    assert "--learning_rate" in found["optimization"]  # whose default the subclass changes
    assert "--report_to" in found["reporting"]
    assert found["options"][-1] == "--my_own"
    assert found["a heading"] == ["--inside"]
    shown = [option for options in found.values() for option in options if not option.startswith("--no_")]
    assert sorted(shown) == sorted(f"--{name}" for name in [*FIELDS, *LATER, "my_own", "inside"])
    assert "usage: train [options]" in text
    assert "--per-device" not in text
    assert max(len(line) for line in text.splitlines()) <= 100
