"""A snapshot restores all of a model that a training changes, bit for bit."""

import copy

import pytest
import torch
from torch import nn

from lightrainer.facade.trainer.batch_size import TrainingSnapshot


def made():
    model: nn.Module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))
    model.tied = model[1]
    model.register_buffer("hidden", torch.zeros(3), persistent=False)
    model.register_buffer("missing", None)
    model.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    return model


def state(model):
    modes = [[module.training for module in model.modules()], [one.requires_grad for one in model.parameters()]]
    return copy.deepcopy([dict(model.named_parameters()), dict(model.named_buffers())]), modes


def assert_same(left, right):
    torch.testing.assert_close(left[0], right[0], rtol=0, atol=0)
    assert left[1] == right[1]


def test_everything_of_a_model_is_as_it_was():
    """Twice, since one attempt may not be enough; `test_batch_size.py` has optimizers, schedules and generators."""
    model = made()
    before, identities = state(model), [id(tensor) for tensor in model.parameters()]
    start = TrainingSnapshot(model, None, None)
    for _ in range(2):
        model(torch.randn(8, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        with pytest.raises(AssertionError):
            assert_same(before, state(model))  # control: something has changed
        model.eval()
        model.hidden = torch.ones(7)
        model[1].bias.requires_grad_(False)
        start.restore()
        assert_same(before, state(model))
        assert [id(tensor) for tensor in model.parameters()] == identities
        assert all(parameter.grad is None for parameter in model.parameters())


def test_weights_without_a_shape_yet():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    start = TrainingSnapshot(model, None, None)
    model(torch.ones(2, 4))
    start.restore()
