"""Muon with AdamW in one optimizer equals the two of torch in a loop, bit for bit, also from a
saved state.
"""

import copy

import pytest
import torch
from torch import nn

from lightrainer.lightning_modules.checkpoints.state_guards import loading_optimizer
from lightrainer.lightning_modules.optim import OptimizerConfig
from lightrainer.lightning_modules.optim.muon import matrices
from lightrainer.lightning_modules.optim.schedules import get_linear_schedule_with_warmup

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="needs torch 2.9 or later")
MATRICES = ["body.0.weight", "body.1.weight"]
CONFIG = OptimizerConfig(
    name="torch.optim.Muon",
    args="momentum=0.9,nesterov=false",
    learning_rate=0.02,
    weight_decay=0.1,
    beta1=0.8,
)


class Model(nn.Module):
    """An embedding, two matrices, a norm, a head and an output layer that is tied."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4, bias=False), nn.LayerNorm(4))
        self.classifier = nn.Linear(4, 3)
        self.out = nn.Linear(4, 5, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, ids):
        hidden = self.body(self.embedding(ids))
        return self.out(hidden).square().mean() + self.classifier(hidden).square().mean()


def model():
    torch.manual_seed(0)
    return Model()


def steps(trained, optimizers, schedules, seeds):
    for seed in seeds:
        trained(torch.randint(0, 5, (8,), generator=torch.Generator().manual_seed(seed))).backward()
        for stepper in (*optimizers, *schedules):
            stepper.step()
        trained.zero_grad()


def ours(trained):
    optimizer = CONFIG.build(trained)
    return optimizer, get_linear_schedule_with_warmup(optimizer, 1, 6)


def same(left, right):
    return all(
        torch.equal(first, second)
        for first, second in zip(left.parameters(), right.parameters(), strict=True)
    )


def test_matrices_are_what_is_neither_embedding_nor_output():
    trained = model()
    names = {id(parameter): name for name, parameter in trained.named_parameters()}
    assert [names[id(parameter)] for parameter in matrices(trained)] == MATRICES
    trained.get_output_embeddings = lambda: trained.body[1]
    assert [names[id(parameter)] for parameter in matrices(trained)] == MATRICES[:1]
    with pytest.raises(
        ValueError, match=r"Muon' trains matrices, but the model has none.*Choose another optimizer"
    ):
        matrices(nn.LayerNorm(3))


def test_steps_are_those_of_both_optimizers_with_one_schedule():
    by_hand, trained = model(), model()
    named = dict(by_hand.named_parameters())
    adamw_names = ["embedding.weight", "classifier.weight"]
    muon = torch.optim.Muon(
        [named[name] for name in MATRICES], 0.02, 0.1, momentum=0.9, nesterov=False
    )
    others = [
        parameter for name, parameter in named.items() if name not in (*MATRICES, *adamw_names)
    ]
    groups = [
        {"params": [named[name] for name in adamw_names]},
        {"params": others, "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=0.02, betas=(0.8, 0.999), weight_decay=0.1)
    both = muon, adamw
    steps(
        by_hand,
        both,
        [get_linear_schedule_with_warmup(optimizer, 1, 6) for optimizer in both],
        range(5),
    )
    optimizer, schedule = ours(trained)
    steps(trained, [optimizer], [schedule], range(5))
    assert same(by_hand, trained)
    assert not same(by_hand, model())


def test_muon_resumption_is_exact(tmp_path):
    whole, first = model(), model()
    steps(whole, *[[stepper] for stepper in ours(whole)], range(5))
    optimizer, schedule = ours(first)
    steps(first, [optimizer], [schedule], range(2))
    torch.save([optimizer.state_dict(), schedule.state_dict()], tmp_path / "state.pt")
    second = copy.deepcopy(first)
    optimizer, schedule = ours(second)
    for stateful, state in zip(
        (optimizer, schedule), torch.load(tmp_path / "state.pt", weights_only=True), strict=True
    ):
        with loading_optimizer(optimizer, "state.pt"):
            stateful.load_state_dict(state)
    steps(second, [optimizer], [schedule], range(2, 5))
    assert same(whole, second)
    assert not same(whole, first)


def test_muon_trains_groups_that_are_added_later(tmp_path):
    """As `BaseFinetuning` adds them: half of a layer's parameters are matrices."""
    trained = model()
    trained.body[0].requires_grad_(False)
    optimizer = CONFIG.build(trained)
    trained.body[0].requires_grad_(True)
    optimizer.add_param_group({"params": trained.body[0].parameters(), "lr": 0.01})
    added = optimizer.param_groups[-2:]
    assert [group["params"] for group in added] == [
        [trained.body[0].weight],
        [trained.body[0].bias],
    ]
    assert [group["lr"] for group in added] == [0.01, 0.01]
    assert ["ns_steps" in group for group in added] == [True, False]

    before = copy.deepcopy(trained)
    steps(trained, [optimizer], [], range(2))
    for name, parameter in trained.named_parameters():
        assert not torch.equal(parameter, before.get_parameter(name)), name

    # Resumed, also with the groups of a list that a callback has assigned.
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    resumed = copy.deepcopy(trained)
    optimizer_of_resumed = CONFIG.build(resumed)
    groups = [
        {**group, "params": [resumed.get_parameter(name) for name in names]}
        for group, names in zip(optimizer.param_groups, names_of(optimizer, trained), strict=True)
    ]
    optimizer_of_resumed.param_groups = groups
    optimizer_of_resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    steps(trained, [optimizer], [], range(2, 4))
    steps(resumed, [optimizer_of_resumed], [], range(2, 4))
    assert same(trained, resumed)


def names_of(optimizer, trained):
    names = {id(parameter): name for name, parameter in trained.named_parameters()}
    return [
        [names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups
    ]


def test_muon_can_be_copied_with_its_model():
    trained = model()
    optimizer = CONFIG.build(trained)
    steps(trained, [optimizer], [], range(2))
    other, copied = copy.deepcopy((trained, optimizer))
    steps(trained, [optimizer], [], range(2, 4))
    steps(other, [copied], [], range(2, 4))
    assert same(trained, other)
    assert not same(trained, model())
