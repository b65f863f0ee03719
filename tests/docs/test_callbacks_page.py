"""The code of the page on callbacks runs as it stands there."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from lightrainer import Trainer, TrainingArguments

PAGE = Path(__file__).parents[2] / "docs" / "user" / "callbacks.md"


class Model(nn.Module):
    """A linear layer."""

    def __init__(self):
        super().__init__()
        self.network = nn.Linear(4, 3)

    def forward(self, x, labels):
        logits = self.network(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def blocks():
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec", "ignore:The number of training")
@pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval", "ignore:Starting from v1.9.0")
def test_the_code_runs(tmp_path, monkeypatch, capsys):
    """From top to bottom, as later blocks use names of earlier ones; each shows something."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    points = [{"x": x, "labels": x[:3].argmax()} for x in torch.randn(24, 4)]
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "logging_steps": 1, "learning_rate": 0.1}
    names = {
        "Trainer": Trainer,
        "args": TrainingArguments("out", per_device_train_batch_size=4, num_train_epochs=20, **quiet),
        "model": Model(),
        "train": points[:16],
        "held_out": points[16:],
        "loader": DataLoader(points[:16], batch_size=4),
        "validation_loader": DataLoader(points[16:], batch_size=4),
    }
    for code in blocks():
        exec(code, names)
    assert "'eval_loss'" in capsys.readouterr().out


def test_there_is_code_that_shows_something():
    """Negative control."""
    assert len(blocks()) == 3
    assert all("assert " in code for code in blocks())
