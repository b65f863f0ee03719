"""`fp8`: refused where there is nothing to multiply with, and otherwise near the numbers without
it.
"""

import sys

import pytest
import torch
from torch import nn

from helpers.trainer.tiny_trainings import trainer
from lightrainer.lightning_modules.models import float8


class Wide(nn.Sequential):
    def __init__(self, width=32):
        super().__init__(
            nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
        )

    def forward(self, x, labels=None):
        logits = super().forward(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def wide(folder, **options):
    torch.manual_seed(0)
    return trainer(
        folder, model=Wide(options.pop("width", 32)), max_steps=4, logging_steps=1, **options
    )


@pytest.fixture
def able(monkeypatch):
    """The real kernels, which torch has for the CPU too, too slow to be offered there."""
    pytest.importorskip("torchao.float8")
    monkeypatch.setattr(float8, "_problem_of_device", lambda device: None)


def test_float8_unsupported_device_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ImportError, match=r"fp8=True.*lightrainer\[torchao\]"):
        wide(tmp_path, fp8=True)
    for name in ("torchao", "torchao.float8"):
        monkeypatch.setitem(sys.modules, name, type(sys)(name))
    with pytest.raises(
        ValueError, match=r"fp8=True is not supported: cpu has no units.*use bf16=True"
    ):
        wide(tmp_path, fp8=True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ValueError, match=r"Some GPU.*8\.0"):
        float8.require_float8(torch.device("cuda"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu(needs="units for 8-bit numbers")
def test_losses_on_a_device_are_near_those_without_it(tmp_path):
    pytest.importorskip("torchao.float8")
    if reason := float8._problem_of_device(torch.device("cuda")):
        pytest.skip(reason)
    require_near_losses(tmp_path)


def test_losses_are_near_those_without_it(tmp_path, able):
    require_near_losses(tmp_path)


def require_near_losses(folder):
    plain, made = wide(folder), wide(folder, fp8=True)
    for one in (plain, made):
        one.train()
    assert [type(made.model[index]).__name__ for index in (0, 2, 4)] == [
        "Linear",
        "Float8Linear",
        "Linear",
    ]
    losses = [
        [entry["loss"] for entry in one.state.log_history if "loss" in entry]
        for one in (plain, made)
    ]
    assert losses[0] != losses[1]
    torch.testing.assert_close(*losses, rtol=0.02, atol=0.0)
    assert made.model.state_dict().keys() == plain.model.state_dict().keys()


def test_float8_resumption_is_exact(tmp_path, able):
    whole = wide(tmp_path, fp8=True, save_steps=2, save_strategy="steps")
    whole.train()
    resumed = wide(tmp_path, fp8=True)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


def test_float8_model_without_linear_layers(tmp_path, able):
    with pytest.raises(ValueError, match=r"Wide has 3 linear layers.*16"):
        wide(tmp_path, width=24, fp8=True).train()
