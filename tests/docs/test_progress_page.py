"""The code of the page on progress and reports runs as it stands there, and gives what it says it gives."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import lightrainer
from lightrainer import Trainer, TrainingArguments
from lightrainer.lightning_modules import build_loader

PAGE = Path(__file__).parents[2] / "docs" / "user" / "progress-and-reports.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
CLASSES = sorted(set(re.findall(r"\b([A-Z]\w+(?:Callback|Checkpoint|Bridge))\b", TEXT)) - {"JITCheckpoint"})


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 3)])

    def forward(self, x, labels):
        logits = self.layers[1](torch.tanh(self.layers[0](x)))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the page takes for granted."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    points = [{"x": x, "labels": x[:3].argmax()} for x in torch.randn(48, 4)]
    settings = {"num_train_epochs": 1, "logging_steps": 2, "use_cpu": True, "report_to": "none"}
    return {
        "Trainer": Trainer,
        **{name: getattr(lightrainer, name) for name in CLASSES},
        "LossModule": lightrainer.LossModule,
        "output_dir": tmp_path,
        "args": TrainingArguments(str(tmp_path), **settings),
        "model": Model(),
        "train": points[:32],
        "held_out": points[32:],
        "loader": build_loader(points[:32], batch_size=8),
    }


@pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*LeafSpec",
    "ignore:.*number of training batches",
    "ignore:You defined a `validation_step` but",
)
@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: re.findall(r"\b\w+(?:Callback|Checkpoint)\b", code)[0])
def test_the_code_runs(names, code):
    exec(code, names)
    for promise in re.findall(r"# \{(.*)\}$", code, re.MULTILINE):
        assert set(re.findall(r'"([^"]+)"', promise)) <= names["trainer"].state.log_history[-2].keys()


def test_what_follows_from_the_code_is_there(names):
    for code in BLOCKS:
        if "save_model" in code or "FolderCheckpoint" in code:
            continue
        exec(code, names)
    assert (names["output_dir"] / "report.html").exists()
    assert not names["limit"].stopped


def test_every_class_that_is_named_can_be_imported():
    assert len(BLOCKS) == 6
    assert len(CLASSES) >= 11
    for name in CLASSES:
        assert getattr(lightrainer, name)
