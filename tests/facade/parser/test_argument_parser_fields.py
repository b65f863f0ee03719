"""Every training argument on a command line, as the reference reads it; and the help that they stand in."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from enum import Enum

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
OF_5_23 = {"trackio_space_id"}
"""Arguments whose default is that of 5.23."""
# The reference wants an object of accelerate's, or reads as a truth value only; 5.3.0 has no `--fsdp` without a word.
OTHER = {"parallelism_config", "liger_kernel_config", "fsdp"} | OF_5_23
VALUES = {
    "lr_scheduler_kwargs": ['{"num_cycles":2}'],
    "gradient_checkpointing_kwargs": ['{"use_reentrant":"false"}'],
    "fsdp_config": ['{"activation_checkpointing":"true"}'],
    "accelerator_config": ['{"split_batches":"true"}'],
    "deepspeed": ['{"a":1}'],
    "debug": ["underflow_overflow", "underflow_overflow tpu_metrics_debug"],
    "report_to": ["none", "tensorboard"],
    "include_for_metrics": ["inputs", "inputs loss"],
    "label_names": ["labels", "start end"],
    "logging_dir": ["logs"],
    "adam_beta1": ["0.5", "0", "1e-3", "word"],
    "adam_beta2": ["0.5", "0", "1e-3", "word"],
}


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


def lines_for(name, parser):
    """Command lines that set one field, right and wrong ones, in both spellings."""
    action = next(action for action in parser._actions if action.dest == name)
    values = VALUES.get(name) or [str(choice) for choice in action.choices or []]
    if not values:
        values = ["1", "7", "0.25", "-1", "true", "False", "word"]
    lines = [f"--{name} {value}" for value in values] + [f"--{name}", f"--no_{name}", f"--no-{name.replace('_', '-')}"]
    return [*lines, f"--{name.replace('_', '-')} {values[0]}", f"--{name}={values[0]}", f"--{name} no_such_choice"]


def plain(value):
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "to_dict"):
        return {key: item for key, item in value.to_dict().items() if key != "use_configured_state"}
    return ("str" if isinstance(value, str) else type(value).__name__, value)


LATER_VALUES = ("greedy", "batch_rebalance")
"""Those that versions after 5.3.0 have."""


def parsed(parser, words):
    try:
        namespace, rest = parser.parse_known_args(words)
    except SystemExit as stop:
        return stop.code
    return {name: plain(value) for name, value in vars(namespace).items() if name not in LATER | OF_5_23}, rest


@pytest.mark.parametrize("name", sorted(set(FIELDS) - OTHER))
def test_a_training_argument_is_read_as_in_the_reference(name, parsers, capsys):
    ours, theirs = parsers
    good = 0
    for line in lines_for(name, ours):
        mine, reference = parsed(ours, line.split()), parsed(theirs, line.split())
        if name == "include_num_input_tokens_seen" and reference == 2:
            assert mine[0][name] == ("str", line.split()[1])  # the reference cannot be told "all" on a command line
            continue
        if reference == 2 and any(value in line for value in LATER_VALUES):
            assert mine[0][name] == ("str", next(value for value in LATER_VALUES if value in line))
            good += 1
            continue
        assert mine == reference, line
        good += mine != 2
    assert good >= 3, "a field that cannot be set"
    capsys.readouterr()


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
