"""The optimizer's own arguments, from one text."""

import logging

import pytest
import torch
from reference_side import reference_arguments
from torch import nn

from lightrainer.lightning_modules.optim import OptimizerConfig, parse_optimizer_args
from lightrainer.lightning_modules.optim.request import OptimizerArguments


def test_arguments_are_parsed():
    assert parse_optimizer_args(None) == parse_optimizer_args("") == {}
    assert parse_optimizer_args(" a = 1, b=x ") == {"a": "1", "b": "x"}


@pytest.mark.parametrize("text", ["momentum", "momentum=0.9,", "=1", "a=b=c", "a=1;b=2"])
def test_unreadable_arguments(text):
    with pytest.raises(ValueError, match="optim_args"):
        parse_optimizer_args(text)


def test_what_is_taken_is_read_and_gone():
    arguments = OptimizerArguments("rank=4,scale=0.5,name=std,on=Yes,off=0,half=bfloat16,rest=1")
    assert arguments.take(rank=128, gap=200) == {"rank": 4, "gap": 200}
    assert arguments.given(float, "scale", "other") == {"scale": 0.5}
    assert arguments.take(name="", on=False, off=True) == {"name": "std", "on": True, "off": False}
    assert arguments.take(half=torch.float32) == {"half": torch.bfloat16}
    assert arguments.left == ["rest"]


@pytest.mark.parametrize(
    ("default", "text"), [(1.0, "much"), (1, "1.5"), (True, "ture"), (torch.half, "float33"), (torch.half, "nn")]
)
def test_values_of_the_wrong_kind(default, text):
    with pytest.raises(ValueError, match=rf"value='{text}' \(`optim_args`\)"):
        OptimizerArguments(f"value={text}").take(value=default)


def test_arguments_without_effect_are_named(caplog):
    """The reference passes over them in silence."""
    with caplog.at_level(logging.WARNING):
        OptimizerConfig(name="sgd", args="momentum=0.9,beta=1,weight_decay=0.3").build(nn.Linear(1, 1))
    unknown, overruled = (record.getMessage() for record in caplog.records)
    assert "['beta']" in unknown
    assert "weight_decay=0.3" in overruled
    assert "momentum" not in overruled


def test_adafactor_has_no_arguments_of_its_own_here(caplog):
    """As in the reference, which says nothing."""
    with caplog.at_level(logging.WARNING):
        optimizer = OptimizerConfig(name="adafactor", args="clip_threshold=2").build(nn.Linear(1, 1))
    assert optimizer.defaults["clip_threshold"] == 1.0
    assert "clip_threshold" in caplog.text


def test_defaults_are_the_documented_ones():
    """The default optimizer and its numbers are those of `TrainingArguments`."""
    from transformers import TrainingArguments

    fields = {name: field.default for name, field in TrainingArguments.__dataclass_fields__.items()}
    config = reference_arguments(OptimizerConfig())
    names = ("optim_args", "optim_target_modules", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2")
    for name in (*names, "adam_epsilon"):
        assert getattr(config, name) == fields[name]
    assert config.optim.value == TrainingArguments.default_optim
