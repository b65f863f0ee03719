"""The table of the training arguments is that of the code, and what it speaks of exists."""

import dataclasses
import importlib.util
import inspect
import re
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

import lightrainer
from lightrainer.facade.arguments.fields import BECOMES
from lightrainer.lightning_modules import checkpoints
from lightrainer.lightning_modules.data import length_grouping, loaders, rebalancing, token_budget
from lightrainer.lightning_modules.models import activation_checkpointing as activations
from lightrainer.lightning_modules.models import neftune
from lightrainer.lightning_modules.training import accumulation, label_smoothing

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {item.name: item for item in dataclasses.fields(lightrainer.Seq2SeqTrainingArguments)}


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("arguments_table", ROOT / "docs" / "scripts" / "arguments_table.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_page_is_up_to_date(tool):
    """`python docs/scripts/arguments_table.py` writes it."""
    assert (ROOT / "docs" / "reference" / "arguments.md").read_text(encoding="utf-8") == tool.page()


def test_values_that_are_refused_are_marked(tool):
    assert tool.remark("report_to") == ". Not there: 'neptune'"
    assert all(tool.remark(name) for name in tool.PARTLY)


def test_every_argument_has_one_row(tool):
    rows = [line for line in tool.page().splitlines() if line.startswith("| `")]
    assert sorted(line.split("`")[1] for line in rows) == sorted(FIELDS)
    assert all(line.replace(r"\|", "").count("|") == 5 for line in rows)


def test_every_argument_says_what_it_becomes():
    assert [name for name in FIELDS if len(BECOMES[name]) < 6 or BECOMES[name].endswith(".")] == []


# What is called with a keyword in the table, and the thing itself.
CALLED = {
    "Trainer": lightning.Trainer,
    "DDPStrategy": DDPStrategy,  # and it hands the rest on
    "DataLoader": torch.utils.data.DataLoader,
    "SummaryWriter": SummaryWriter,
    "model.compile": torch.compile,
    "build_loader": loaders.build_loader,
    "enable_activation_checkpointing": activations.enable_activation_checkpointing,
    "get_scheduler": lightrainer.get_scheduler,
    "LabelSmoother": label_smoothing.LabelSmoother,
    "BatchRebalanceSampler": rebalancing.BatchRebalanceSampler,
    "TokenBudgetSampler": token_budget.TokenBudgetSampler,
    "LengthGroupedSampler": length_grouping.LengthGroupedSampler,
    "LossMeter": accumulation.LossMeter,
    "neftune_hook": neftune.neftune_hook,
    "prediction_step": lightrainer.Trainer.prediction_step,
    "rotate_checkpoints": checkpoints.rotate_checkpoints,
}
OF_THE_USER = {"generate", "compute_metrics"}


def parameters(name):
    taken = set(inspect.signature(CALLED[name]).parameters)
    return taken | set(inspect.signature(DistributedDataParallel).parameters) if name == "DDPStrategy" else taken


def test_parameters_that_the_table_names_exist():
    found = set()
    for item in FIELDS.values():
        for name, inside in re.findall(r"`([\w.]+)\(([^`)]*=[^`)]*)\)`", BECOMES[item.name]):
            found.add(name)
            if name not in OF_THE_USER:
                assert set(re.findall(r"(\w+)=", inside)) <= parameters(name), item.name
    assert found == set(CALLED) | OF_THE_USER
