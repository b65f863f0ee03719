"""Unknown arguments are refused with their successor, or with the nearest name."""

import dataclasses
import inspect

import pytest
from transformers import TrainingArguments as Reference

from helpers.trainer.tiny_trainings import tiny
from lightrainer import HfArgumentParser, Trainer, TrainingArguments
from lightrainer.facade.arguments.old_names import OLD_NAMES, Removed
from lightrainer.tools.command_line import CommandParser

FIELDS = {item.name for item in dataclasses.fields(TrainingArguments)}


@dataclasses.dataclass
class WithMore(TrainingArguments):
    beta: float = 0.1


class PassesOn(TrainingArguments):
    def __init__(self, gamma: float, **kwargs):
        super().__init__(**kwargs)
        self.gamma = gamma


@pytest.mark.parametrize("name", OLD_NAMES)
def test_unknown_argument_of_an_older_version(name):
    """It is none of the reference's any more either, and the field that is named in its place
    exists.
    """
    with pytest.raises(TypeError, match=f"^{name}: ") as error:
        TrainingArguments(**{name: 7})
    now = OLD_NAMES[name].replacement_text.strip("`").removeprefix("nothing: ")
    assert now in str(error.value)
    with pytest.raises(TypeError, match=name):
        Reference(**{name: 7})
    if not isinstance(OLD_NAMES[name], Removed):
        assert now.partition("=")[0] in FIELDS


KINDS = [
    (WithMore, {"bta": 1}, "WithMore has no such argument. Did you mean 'beta'"),
    (WithMore, {"evaluation_strategy": "no"}, "It is called eval_strategy now"),
    (PassesOn, {"gamma": 1, "learning_rte": 1}, "learning_rte"),
]


@pytest.mark.parametrize(("kind", "wrong", "nearest"), KINDS)
def test_unknown_argument_of_a_subclass(kind, wrong, nearest):
    with pytest.raises(TypeError, match=nearest):
        kind(**wrong)


@pytest.mark.parametrize(
    "kind", [TrainingArguments, WithMore, Trainer, type("Plain", (Trainer,), {})]
)
def test_signature_equals_the_constructor(kind):
    assert inspect.signature(kind) == inspect.signature(lambda: 0).replace(
        parameters=list(inspect.signature(kind.__init__).parameters.values())[1:],
        return_annotation=inspect.signature(kind).return_annotation,
    )
    assert len(inspect.signature(kind).parameters) > 10


def test_unknown_trainer_parameter_names_its_successor(tmp_path):
    with pytest.raises(TypeError) as error:
        Trainer(tiny(), tokenizer=object(), learning_rate=0.1, train_datset=[])
    for hint in (
        "processing_class",
        "args=TrainingArguments(learning_rate=...)",
        "Did you mean 'train_dataset'",
    ):
        assert hint in str(error.value)


def test_files_and_command_lines_get_the_same_advice():
    parser = HfArgumentParser(TrainingArguments)
    with pytest.raises(
        ValueError,
        match=r"'no_cuda' is not a field of TrainingArguments\. It is called use_cpu now",
    ):
        parser.parse_dict({"no_cuda": True})
    with pytest.raises(ValueError, match="--evaluation_strategy: It is called eval_strategy now"):
        parser.parse_args_into_dataclasses(
            ["--evaluation_strategy", "steps"], look_for_args_file=False
        )


SECRET = "hf_only_for_me"


def parse(*words):
    return HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        words, look_for_args_file=False
    )


REFUSALS = {
    "arguments": lambda: TrainingArguments(hub_tokn=SECRET),
    "arguments of a subclass": lambda: WithMore(hub_tokn=SECRET),
    "trainer": lambda: Trainer(tiny(), hub_tokn=SECRET),
    "command line": lambda: parse("--hub_tokn", SECRET),
    "command line, joined": lambda: parse(f"--hub_tokn={SECRET}"),
    "command line, without an option": lambda: parse("--output_dir", "out", SECRET),
    "dict": lambda: HfArgumentParser(TrainingArguments).parse_dict({"hub_tokn": SECRET}),
}


@pytest.mark.parametrize("way", REFUSALS)
def test_unknown_argument_value_is_not_shown(way):
    """The name may be that of a token, misspelt."""
    with pytest.raises((TypeError, ValueError)) as error:
        REFUSALS[way]()
    assert SECRET not in str(error.value)
    assert "hub_tokn" in str(error.value) or way.endswith("without an option")


def test_commands_do_not_show_the_value_of_an_unknown_option(capsys):
    for parsed in ("parse_args", "parse_with_advice"):
        parser = CommandParser("plan", "", "")
        note = ["Options of the script follow its name."] if parsed == "parse_with_advice" else []
        with pytest.raises(SystemExit):
            getattr(parser, parsed)(["--hub_tokn", SECRET, f"--tokn={SECRET}"], *note)
        stderr = capsys.readouterr().err
        assert "--hub_tokn" in stderr
        assert SECRET not in stderr
