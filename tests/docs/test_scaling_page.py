"""The page on scaling shows what the calculator prints today."""

import re
from pathlib import Path

import pytest

from lightrainer.__main__ import main
from lightrainer.facade.estimate.job import PRECISIONS, SHARDING
from lightrainer.facade.estimate.optimizers import _RULES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "user" / "scaling.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"<!-- lightrainer (estimate [^\n]*) -->\n```\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^lightrainer (estimate .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("command", "printed"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_examples_are_what_the_calculator_prints(command, printed, capsys):
    assert main(command.split()) == 0
    assert capsys.readouterr().out == printed


def test_there_are_examples_and_commands():
    assert len(EXAMPLES) == 3
    assert all(len(printed.splitlines()) > 15 for _, printed in EXAMPLES)
    assert len(COMMANDS) == 2


def test_names_on_the_page_exist():
    for name in re.findall(r"^\| (`[^|]*`) \|", PAGE.split("S is what the optimizer keeps")[1].split("##")[0], re.M):
        for optim in re.findall(r"`([a-z0-9_*]+)`", name):
            known = [rule for rule in _RULES if rule.startswith(optim.rstrip("*"))]
            assert known or optim == "optim"
    assert set(PRECISIONS) <= set(re.findall(r"`([a-z0-9-]+)`", PAGE))
    assert {"full_shard", "shard_grad_op", "hybrid_shard"} <= set(SHARDING)
