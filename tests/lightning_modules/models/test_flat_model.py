"""The lists say what the model would say, also after it has changed."""

import pytest
import torch
from torch import nn

from lightrainer.lightning_modules.models.flat_model import FlatModel


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 1))


@pytest.fixture
def flat(model):
    lists = FlatModel(model, torch.optim.SGD(model.parameters(), lr=0.1))
    yield lists
    lists.close()


def test_parameters_are_those_of_the_model(flat, model):
    assert list(map(id, flat.parameters)) == list(map(id, model.parameters()))


@pytest.mark.parametrize("change", ["module", "parameter", "groups"])
def test_changes_are_noticed(flat, model, change):
    if change == "module":
        model.add_module("more", nn.Linear(1, 1))
    elif change == "parameter":
        model[0].scale = nn.Parameter(torch.ones(1))
    else:  # past torch's registration, but the optimizer trains it
        model._modules["more"] = nn.Module.__new__(nn.Linear)
        nn.Module.__init__(model._modules["more"])
        model._modules["more"]._parameters["weight"] = weight = nn.Parameter(torch.ones(1))
        flat.optimizer.add_param_group({"params": [weight]})
    assert list(map(id, flat.parameters)) == list(map(id, model.parameters()))


def test_a_closed_one_notices_nothing(flat, model):
    flat.close()
    model.add_module("more", nn.Linear(1, 1))
    assert len(flat.parameters) == 4


def test_gradients_are_dropped_also_of_parameters_that_nobody_trains(flat, model):
    model(torch.ones(1, 2)).sum().backward()
    model[0].weight.requires_grad_(False)
    flat.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_modules_are_put_in_training_mode(flat, model, monkeypatch):
    """The tree is walked only where a module is in eval mode."""
    model.eval()
    flat.train()
    assert all(module.training for module in model.modules())
    walks = []
    monkeypatch.setattr(model, "train", lambda: walks.append(1))
    flat.train()
    assert walks == []
    model[1].eval()
    flat.train()
    assert walks == [1]


class Frozen(nn.BatchNorm1d):
    """Stays in eval mode, as many do it."""

    def train(self, mode=True):
        return super().train(False)


class Kept(nn.Linear):
    """Keeps its gradients."""

    def zero_grad(self, set_to_none=True):
        """Nothing."""


def test_own_methods_are_called():
    flat = FlatModel(nn.Sequential(nn.Linear(2, 2), Frozen(2)))
    flat.model[1].training = True
    flat.train()
    assert not flat.model[1].training
    kept = FlatModel(Kept(2, 1))
    kept.model(torch.ones(1, 2)).sum().backward()
    kept.zero_grad()
    assert kept.model.weight.grad is not None
    flat.close()
    kept.close()
