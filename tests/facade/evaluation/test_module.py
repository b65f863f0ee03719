"""The module around the user's model leaves it where it is, whatever Lightning asks for at the end of a run."""

import pytest
import torch
from lightning.pytorch import Trainer

from lightrainer.facade.evaluation.module import EvaluationModule
from lightrainer.lightning_modules.internals import lightning_internals


class Steps:
    """An evaluation that does nothing."""

    def step(self, batch):
        return None


def test_the_model_stays_on_its_device():
    """Only the module refuses, the model inside moves."""
    module = EvaluationModule(torch.nn.Linear(1, 1, device="meta"))
    assert module.cpu() is module
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    assert module.device.type == "meta"
    with pytest.raises(NotImplementedError, match="meta"):
        module.model.cpu()


def test_lightning_asks_for_the_move_at_the_end(monkeypatch):
    """Otherwise the refusal would refuse nothing."""
    asked = []
    monkeypatch.setattr(EvaluationModule, "cpu", lambda self: asked.append(True) or self)
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    with lightning_internals.quiet():
        trainer = Trainer(enable_checkpointing=False, **options)
        loader = lightning_internals.combined([torch.ones(1)], training=False)
        trainer.test(EvaluationModule(torch.nn.Linear(1, 1), Steps()), loader, verbose=False)
    assert asked
