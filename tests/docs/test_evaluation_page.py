"""The code of the page on evaluation runs as it stands there, and gives the metrics that it says it gives."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from lightrainer import Trainer, TrainingArguments

PAGE = Path(__file__).parents[2] / "docs" / "user" / "evaluation.md"
PROMISED = re.compile(r"# (\{.*\})$", re.MULTILINE)


def blocks():
    """The Python code of the page, up to the section on generation, and for each the names that it uses."""
    text = PAGE.read_text(encoding="utf-8").split("## Generation")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


class Model(nn.Module):
    """Logits from `x`: of a linear layer for features, of a table for tokens."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, labels):
        logits = self.network(x)
        return {"loss": functional.cross_entropy(logits.flatten(0, -2), labels.flatten()), "logits": logits}


class Tokenizer:
    def batch_decode(self, ids):
        return [" ".join(f"word{token}" for token in row) for row in ids]


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the page takes for granted."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    points = [{"x": x, "labels": x[:3].argmax()} for x in torch.randn(24, 4)]
    sentences = [{"x": ids, "labels": ids} for ids in torch.randint(7, (9, 6))]
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}
    return {
        "Trainer": Trainer,
        "TrainingArguments": TrainingArguments,
        "args": TrainingArguments("out", **quiet),
        "model": Model(nn.Linear(4, 3)),
        "translator": Model(nn.Embedding(7, 7)),
        "language_model": Model(nn.Embedding(7, 7)),
        "tokenizer": Tokenizer(),
        "train": points[:16],
        "held_out": points[16:],
        "sentences": sentences,
    }


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec", "ignore:The number of training")
@pytest.mark.parametrize("code", blocks(), ids=lambda code: re.findall(r"compute_metrics|\w+Score|\w+", code)[-1])
def test_the_code_runs(names, code):
    if "MulticlassAccuracy" in code and "import MulticlassAccuracy" not in code:
        exec("from torchmetrics.classification import MulticlassAccuracy", names)
    exec(code, names)
    for promise in PROMISED.findall(code):
        metrics = names["trainer"].evaluate()
        assert set(re.findall(r'"(\w+)"', promise)) <= set(metrics)


def test_there_is_code_that_promises_something():
    """Negative control."""
    assert len(blocks()) == 6
    assert sum(len(PROMISED.findall(code)) for code in blocks()) == 4
