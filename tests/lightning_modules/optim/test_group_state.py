"""A state that is kept in parameter groups goes through a file."""

import copy

import torch
from reference_side import same
from torch import nn

from lightrainer.lightning_modules.optim.groups import save_state_of_groups


class InGroups(torch.optim.Optimizer):
    """Momentum whose state is in the group, under each parameter, as GrokAdamW has it."""

    __module__ = "grokadamw.grokadamw"

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    states = group.setdefault("state", {})
                    state = states.setdefault(parameter, {"mean": torch.zeros_like(parameter)})
                    parameter -= group["lr"] * state["mean"].mul_(0.9).add_(parameter.grad)


class Other(InGroups):
    __module__ = "elsewhere"


def make(cls, model):
    optimizer = cls([{"params": list(model[0].parameters())}, {"params": list(model[1].parameters())}])
    save_state_of_groups(optimizer)
    return optimizer


def step(model, optimizer, numbers):
    for number in numbers:
        torch.manual_seed(number)
        model.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        model[0].bias.grad = None
        optimizer.step()


def resumed(cls, path):
    """Tell if a run that goes on from a file ends where an uninterrupted one does."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    first, second = copy.deepcopy(whole), copy.deepcopy(whole)
    step(whole, make(cls, whole), range(4))
    optimizer = make(cls, first)
    step(first, optimizer, range(2))
    torch.save(optimizer.state_dict(), path)
    second.load_state_dict(first.state_dict())
    again = make(cls, second)
    again.load_state_dict(torch.load(path, weights_only=True))
    step(second, again, range(2, 4))
    return same(second.state_dict(), whole.state_dict())


def test_state_goes_through_a_file(tmp_path):
    assert resumed(InGroups, tmp_path / "state.pt")


def test_without_help_it_is_lost(tmp_path):
    """Negative control."""
    assert not resumed(Other, tmp_path / "state.pt")


def test_a_file_without_state_will_do():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = make(InGroups, model)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer, range(1))
    assert list(optimizer.param_groups[0]["state"]) == [model[0].weight]
