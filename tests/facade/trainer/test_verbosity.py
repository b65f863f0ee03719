"""`log_level` is heard, and `passive` is silent about it."""

import pytest
from starting import finished_code

PROGRAM = """
import logging, torch
from lightrainer import Trainer, TrainingArguments
{setup}
quiet = {{"save_strategy": "no", "disable_tqdm": True}}
args = TrainingArguments({folder!r}, use_cpu=True, max_steps=1, log_level={level!r}, **quiet)
model = torch.nn.Linear(1, 1)
model.forward = lambda x, labels: {{"loss": torch.nn.functional.linear(x, model.weight).sum()}}
Trainer(model, args, train_dataset=[{{"x": torch.ones(1), "labels": 1}}]).train()
print("level", logging.getLogger("lightrainer").level)
"""


def run(folder, level, setup=""):
    return finished_code(PROGRAM.format(folder=str(folder), level=level, setup=setup), folder)


@pytest.mark.parametrize(("level", "number", "heard"), [("info", 20, True), ("passive", 0, False)])
def test_the_level_is_that_of_the_arguments(tmp_path, level, number, heard):
    said = run(tmp_path, level)
    assert f"level {number}" in said
    assert ("Running training" in said) is heard


def test_a_script_that_logs_itself_hears_it_once(tmp_path):
    said = run(tmp_path, "info", setup="logging.basicConfig()")
    assert said.count("Running training") == 1
