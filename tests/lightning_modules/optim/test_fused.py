"""Optimizers that step in the backward pass, under the facade's module and under a plain
LightningModule.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from helpers.lightning.tiny_modules import make_trainer
from lightrainer import LossModule
from lightrainer.lightning_modules.optim import OptimizerConfig, add_no_op_step
from lightrainer.lightning_modules.optim.schedules import ScheduleConfig


class InBackward(torch.optim.Optimizer):
    """SGD in the backward pass, with the interface of LOMO: no `step`."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.rates = []

    def fused_backward(self, loss, lr):
        self.rates.append(lr)
        loss.backward()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= lr * parameter.grad
                    parameter.grad = None


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return {"loss": self.linear(x).square().mean()}


class Config(OptimizerConfig):
    """Builds the optimizer of this test."""

    def build(self, model, decay_names=None):
        optimizer = InBackward(model.parameters(), self.learning_rate)
        add_no_op_step(optimizer)
        return optimizer


def test_fused_step_in_a_plain_lightning_module():
    """Each step at the rate of the schedule, to weights and losses of SGD, whose steps torch may
    round otherwise.
    """
    torch.manual_seed(0)
    data = [{"x": torch.randn(3)} for _ in range(12)]
    weights, losses = [], []
    for config in (Config(learning_rate=0.1), OptimizerConfig(name="sgd", learning_rate=0.1)):
        torch.manual_seed(1)
        module = LossModule(Regression(), optimizer=config, schedule=ScheduleConfig(name="linear"))
        first = module.model.linear.weight.detach().clone()
        trainer = make_trainer(max_epochs=1)
        trainer.fit(module, DataLoader(data, batch_size=4))
        assert trainer.global_step == 3
        weights.append(module.model.linear.weight.detach())
        losses.append(trainer.callback_metrics["train_loss"])
        if isinstance(config, Config):
            assert trainer.optimizers[0].rates == pytest.approx([0.1, 0.2 / 3, 0.1 / 3])
    torch.testing.assert_close(*weights)
    torch.testing.assert_close(*losses)
    assert not torch.equal(weights[0], first), "negative control: they were trained"
