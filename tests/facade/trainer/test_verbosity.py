"""`log_level` is heard, and `passive` is silent about it."""

import pytest

from helpers.processes.starting import finished_code

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


LOGS = "logging.basicConfig()"


@pytest.mark.parametrize(
    ("level", "setup", "number", "heard"), [("info", LOGS, 20, 1), ("passive", "", 0, 0)]
)
def test_verbosity_follows_the_arguments(tmp_path, level, setup, number, heard):
    """A script that logs by itself hears a message once."""
    output = finished_code(PROGRAM.format(folder=str(tmp_path), level=level, setup=setup), tmp_path)
    assert f"level {number}" in output
    assert output.count("Running training") == heard
