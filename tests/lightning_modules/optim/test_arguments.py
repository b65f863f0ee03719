"""The optimizer's own arguments, from one text."""

import logging

import pytest
import torch
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


@pytest.mark.parametrize(
    ("default", "text"),
    [(1.0, "much"), (1, "1.5"), (True, "ture"), (torch.half, "float33"), (torch.half, "nn")],
)
def test_values_of_the_wrong_kind(default, text):
    with pytest.raises(ValueError, match=rf"value='{text}' \(`optim_args`\)"):
        OptimizerArguments(f"value={text}").take(value=default)


def test_arguments_without_effect_are_named(caplog):
    """The reference passes over them in silence."""
    with caplog.at_level(logging.WARNING):
        OptimizerConfig(name="sgd", args="momentum=0.9,beta=1,weight_decay=0.3").build(
            nn.Linear(1, 1)
        )
    unknown, overruled = (record.getMessage() for record in caplog.records)
    assert "['beta']" in unknown
    assert "weight_decay=0.3" in overruled
    assert "momentum" not in overruled
