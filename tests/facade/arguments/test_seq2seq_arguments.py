"""Seq2SeqTrainingArguments beside the reference's, and refusals."""

import dataclasses
import json
from pathlib import Path

import pytest
from transformers import GenerationConfig
from transformers import Seq2SeqTrainingArguments as Reference

from lightrainer import HfArgumentParser, Seq2SeqTrainingArguments, TrainingArguments
from lightrainer.facade.arguments.fields import GenerationArguments

NAMES = [item.name for item in dataclasses.fields(GenerationArguments)]
BASE = {"output_dir": "out", "use_cpu": True, "report_to": "none"}


def test_seq2seq_fields_equal_the_reference_and_come_last():
    ours, theirs = dataclasses.fields(Seq2SeqTrainingArguments), dataclasses.fields(Reference)
    assert NAMES == [item.name for item in theirs[-5:]] == [item.name for item in ours[-5:]]
    assert [item.name for item in ours[:-5]] == [
        item.name for item in dataclasses.fields(TrainingArguments)
    ]
    assert [item.default for item in ours[-5:]] == [item.default for item in theirs[-5:]]


@pytest.mark.parametrize(
    "config",
    [None, "some/name", Path("folder"), {"max_length": 3}, GenerationConfig(max_length=3)],
    ids=str,
)
def test_to_dict_as_in_the_reference(config):
    ours = Seq2SeqTrainingArguments(**BASE, generation_config=config).to_dict()
    theirs = Reference(**BASE, generation_config=config).to_dict()
    expected = (
        str(theirs["generation_config"])
        if isinstance(config, Path)
        else theirs["generation_config"]
    )
    assert ours["generation_config"] == expected
    assert {name: ours[name] for name in NAMES[:-1]} == {name: theirs[name] for name in NAMES[:-1]}
    assert json.loads(json.dumps(ours))["generation_config"] == expected
    assert (
        "generation_config"
        in Seq2SeqTrainingArguments(**BASE, generation_config=config).to_sanitized_dict()
    )


def test_json_on_a_command_line_is_a_dict():
    line = [
        "--output_dir",
        "out",
        "--use_cpu",
        "--generation_config",
        '{"max_length": 7, "stop": "a//b"}',
    ]
    (args,) = HfArgumentParser(Seq2SeqTrainingArguments).parse_args_into_dataclasses(line)
    assert args.generation_config["max_length"] == 7
    with pytest.raises(ValueError, match=r"generation_config=.* is not JSON"):
        Seq2SeqTrainingArguments(**BASE, generation_config="{max_length: 7}")


WRONG = {
    "generation_max_length": [0, "12", 2.5],
    "generation_config": [3, GenerationConfig],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_wrong_values_are_named(name, value):
    with pytest.raises((TypeError, ValueError)) as error:
        Seq2SeqTrainingArguments(**BASE, **{name: value})
    assert str(error.value).startswith(f"{name}={value!r}")


def test_sortish_sampler_excludes_sequential_order():
    with pytest.raises(
        ValueError, match=r"sortish_sampler=True.*train_sampling_strategy='sequential'"
    ):
        Seq2SeqTrainingArguments(**BASE, sortish_sampler=True, train_sampling_strategy="sequential")
