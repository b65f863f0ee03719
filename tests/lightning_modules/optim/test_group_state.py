"""A state that is kept in parameter groups goes through a file."""

import copy

import torch
from torch import nn

from helpers.optim.reference_optimizers import same_bits
from lightrainer.lightning_modules.optim.groups import save_group_state_by_index


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


def make(model):
    optimizer = InGroups(
        [{"params": list(model[0].parameters())}, {"params": list(model[1].parameters())}]
    )
    save_group_state_by_index(optimizer)
    return optimizer


def step(model, optimizer, numbers):
    for number in numbers:
        torch.manual_seed(number)
        model.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        model[0].bias.grad = None
        optimizer.step()


def test_group_state_resumption_from_a_file_is_exact(tmp_path):
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    first, second = copy.deepcopy(whole), copy.deepcopy(whole)
    step(whole, make(whole), range(4))
    optimizer = make(first)
    step(first, optimizer, range(2))
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(first.state_dict())
    again = make(second)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    step(second, again, range(2, 4))
    assert same_bits(second.state_dict(), whole.state_dict())
