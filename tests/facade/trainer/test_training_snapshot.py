"""A snapshot restores all that a training changes, bit for bit."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from lightrainer.facade.trainer.batch_size import TrainingSnapshot


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.first = self.tied = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.register_buffer("missing", None)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x):
        self.hidden += 1
        return self.dropout(self.first(self.norm(x))).sum() * self.frozen.sum()


def made():
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)


def train(model, optimizer, scheduler, steps):
    for _ in range(steps):
        model(torch.randn(8, 4)).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def state(model, optimizer, scheduler):
    tensors = [dict(model.named_parameters()), dict(model.named_buffers()), torch.get_rng_state()]
    tensors += [optimizer.state_dict(), scheduler.state_dict(), np.random.get_state()[1]]
    modes = [[module.training for module in model.modules()], [one.requires_grad for one in model.parameters()]]
    return copy.deepcopy([*tensors, random.getstate(), *modes])


def assert_same(left, right):
    torch.testing.assert_close(left[:6], right[:6], rtol=0, atol=0)
    assert left[6:] == right[6:]


@pytest.mark.parametrize("trained_before", [0, 3], ids=["new", "trained before"])
def test_everything_is_as_it_was_and_goes_the_same_way_again(trained_before):
    """Twice, since one attempt may not be enough."""
    parts = made()
    train(*parts, trained_before)
    before, identities = state(*parts), [id(tensor) for tensor in parts[0].parameters()]
    start = TrainingSnapshot(*parts)
    ends = []
    for _ in range(2):
        train(*parts, 3)
        np.random.rand(), random.random()
        ends.append(state(*parts))
        parts[0].eval()
        parts[0].hidden = torch.ones(7)
        parts[0].first.bias.requires_grad_(False)
        parts[0].first.weight.grad = torch.ones(4, 4)
        start.restore()
        assert_same(before, state(*parts))
        assert [id(tensor) for tensor in parts[0].parameters()] == identities
        assert all(parameter.grad is None for parameter in parts[0].parameters())
    assert_same(*ends)
    with pytest.raises(AssertionError):
        assert_same(before, ends[0])  # control: something had changed


def test_weights_without_a_shape_yet():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    start = TrainingSnapshot(model, None, None)
    model(torch.ones(2, 4))
    start.restore()
