"""The values of a trial of a sweep in its script: options, training arguments, and values that
nothing reads.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass

import pytest

from helpers.trainer.tiny_trainings import arguments
from lightrainer import HfArgumentParser, TrainingArguments
from lightrainer.facade.arguments import sweep_trial
from lightrainer.facade.arguments.trial_options import parse_with_trial

PARSE = argparse.ArgumentParser.parse_known_args


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """Make this process that of a trial with these values; return the trial."""

    def begin(**about):
        child_trial = sweep_trial.ChildTrial(
            storage="", study="s", number=0, metrics=["loss"], result=str(tmp_path / "result.json"), run_name="run-0",
            owner="me", **about,
        )  # fmt: skip
        monkeypatch.setenv(sweep_trial.VARIABLE, child_trial.as_json())
        monkeypatch.setattr(sys, "argv", ["script.py", "--kept", "1", *child_trial.words.values()])
        monkeypatch.setattr(
            argparse.ArgumentParser,
            "parse_known_args",
            lambda parser, args=None, namespace=None: parse_with_trial(
                PARSE, parser, args, namespace
            ),
        )
        return sweep_trial.this_trial()

    yield begin
    sweep_trial._read.cache_clear()


def parser(**options):
    script_parser = argparse.ArgumentParser()
    for name, settings in {"kept": {}, **options}.items():
        script_parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    return script_parser


def test_sweep_trial_option_named_as_an_argument_gets_its_value(trial):
    trial(values={"learning_rate": 0.1}, words={"learning_rate": "--learning_rate=0.1"})
    options = parser(learning_rate={"type": float, "default": 1e-3}).parse_args()
    assert (options.kept, options.learning_rate) == ("1", 0.1)


def test_null_flags_and_negative_numbers_reach_options(trial):
    values = {"depth": None, "fast": True, "slow": False, "shift": -1e-5}
    trial(options=values, words={"fast": "--fast", "shift": "--shift=-1e-05"})
    flag = {"action": "store_true"}
    options = parser(
        depth={"type": int, "default": 4}, fast=flag, slow=flag, shift={"type": float}
    ).parse_args()
    assert {name: getattr(options, name) for name in values} == values


def test_options_that_a_second_parser_reads(trial, tmp_path):
    about = trial(options={"width": 3}, words={"width": "--width=3"})
    _, rest = parser().parse_known_args()
    assert about.mismatch_with(arguments(tmp_path / "out")).startswith(
        "The script does not read width"
    )
    assert parser(width={"type": int}).parse_args(rest).width == 3
    assert about.mismatch_with(arguments(tmp_path / "out")) is None


def test_sweep_trial_of_a_script_whose_other_arguments_lack_a_field(trial, tmp_path):
    @dataclass
    class Own(TrainingArguments):
        width: int = 8

    about = trial(options={"width": 32})
    assert Own(tmp_path / "out").width == 32
    args = arguments(tmp_path / "out")
    assert about.mismatch_with(args) is None


def test_sweep_trial_field_of_a_subclass_takes_an_option(trial, tmp_path):
    @dataclass
    class Own(TrainingArguments):
        width: int = 8

    about = trial(options={"width": 32})
    parser().parse_args()
    args = Own(tmp_path / "out", width=2)
    assert args.width == 32
    assert about.mismatch_with(args) is None


@dataclass
class ModelArguments:
    width: int = 8
    layers: list[str] | None = None


def test_sweep_trial_values_override_those_of_a_file(trial, tmp_path):
    about = trial(values={"seed": 3}, options={"width": 32, "layers": "last", "depth": 2})
    content = {"output_dir": str(tmp_path / "out"), "seed": 7, "width": 16}
    (tmp_path / "arguments.json").write_text(json.dumps(content))
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    model, args = parser.parse_json_file(tmp_path / "arguments.json")
    assert (model.width, model.layers, args.seed) == (32, ["last"], 3)
    assert about.mismatch_with(args).startswith("The script does not read depth,")


@pytest.mark.parametrize("is_script", [True, False])
def test_sweep_trial_leaves_the_words_of_the_user(trial, is_script):
    """Scripts read the only word of their command line as the name of a file."""
    program = os.path.abspath("script.py" if is_script else "other.py")
    trial(options={"width": 32}, words={"width": "--width=32"}, script=program)
    parser = HfArgumentParser(ModelArguments)
    words = ["--kept", "1"] if is_script else ["--kept", "1", "--width=32"]
    assert sys.argv[1:] == words
    model, _ = parser.parse_args_into_dataclasses(return_remaining_strings=True)
    assert model.width == 32


def test_sweep_trial_fraction_for_a_whole_number_is_refused(trial, tmp_path):
    @dataclass
    class Own(TrainingArguments):
        width: int = 8

    trial(options={"width": 2.7})
    with pytest.raises(ValueError, match=r"width is a whole number, but the space has 2\.7"):
        Own(tmp_path / "out")


@dataclass
class Overwriting(TrainingArguments):
    def __post_init__(self):
        super().__post_init__()
        self.weight_decay = 0.5


@pytest.mark.parametrize("name", ["learning_rate", "lr_scheduler_type", "warmup_steps"])
def test_sweep_trial_value_overwritten_after_construction_is_named(trial, tmp_path, name):
    values = {"learning_rate": 0.1, "lr_scheduler_type": "cosine", "warmup_steps": 3}
    about = trial(values=values)
    args = arguments(tmp_path / "out")
    assert about.mismatch_with(args) is None
    setattr(args, name, "other")
    assert about.mismatch_with(args).startswith(f"{name} of the trial is {values[name]}")


def test_sweep_trial_value_overwritten_by_a_subclass_is_named(trial, tmp_path):
    about = trial(values={"weight_decay": 0.1})
    assert "weight_decay" in about.mismatch_with(Overwriting(tmp_path / "out"))


def test_sweep_trial_arguments_share_its_folder(trial, tmp_path):
    trial()
    first = TrainingArguments(tmp_path / "out")
    assert (
        first.output_dir
        == TrainingArguments(tmp_path / "out").output_dir
        == str(tmp_path / "out" / "run-0")
    )
    assert TrainingArguments(first.output_dir).output_dir == first.output_dir
    (tmp_path / "out" / "run-0" / ".owner").write_text("somebody else")
    assert TrainingArguments(tmp_path / "out").output_dir == str(tmp_path / "out" / "run-0-2")
