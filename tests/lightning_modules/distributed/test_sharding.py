"""The choice of sharded modules, and sharding in a single process; more is in tests/ddp."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lightrainer.lightning_modules.checkpoints import load_weights
from lightrainer.lightning_modules.common.dtensor import gather_dtensor, local_shard
from lightrainer.lightning_modules.distributed import sharding
from lightrainer.lightning_modules.models.activation_checkpointing import checkpoint_layers


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 4)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def test_modules_are_chosen_by_class_inner_ones_first():
    assert sharding.modules_by_class(Tied(), {"Block"}) == ["blocks.1", "blocks.0"]
    names = sharding.modules_by_class(Tied(), {"Block", "Linear"})
    assert names.index("blocks.0.inner") < names.index("blocks.0")
    assert sharding.modules_by_class(Tied(), {"Tied"}) == []


def test_wrapped_modules_are_chosen_by_remaining_parameters():
    """A block has 40 parameters, each of its layers 20, and a list of modules no forward pass."""
    assert sharding.modules_by_size(Tied(), 40) == ["blocks.1", "blocks.0"]
    assert len(sharding.modules_by_size(Tied(), 20)) == 4
    assert sharding.modules_by_size(Tied(), 1000) == []


def test_modules_that_share_a_parameter_with_others_are_left_to_the_model_as_a_whole():
    model = Tied()
    assert sharding.tied_modules(model) == {model.embedding, model.head}
    assert not {"embedding", "head"} & set(sharding.modules_by_size(model, 30))
    assert sharding.modules_by_class(model, {"Embedding"}) == []
    model.head.weight = nn.Parameter(torch.zeros(9, 4))
    assert sharding.tied_modules(model) == set()
    assert {"embedding", "head"} <= set(sharding.modules_by_size(model, 30))


def test_layers_compute_their_activations_again():
    """The same gradients, from two forward passes of each layer, under the same names."""
    torch.manual_seed(0)
    model, ids = Tied(), torch.arange(9)
    names = list(model.state_dict())
    model(ids).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    checkpoint_layers(model, ["blocks.1", "blocks.0"])
    calls = []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append("outside"))
    model.blocks[0].inner.register_forward_pre_hook(lambda *_: calls.append("inside"))
    model(ids).sum().backward()
    assert calls.count("outside") == 1
    assert calls.count("inside") == 2
    assert all(
        torch.equal(left, right.grad)
        for left, right in zip(expected, model.parameters(), strict=True)
    )
    assert list(model.state_dict()) == names


def test_sharding_of_a_model_in_one_piece_is_refused():
    assert not sharding.is_sharded(Tied())
    tensor = torch.ones(2)
    assert gather_dtensor(tensor) is local_shard(tensor) is tensor


def test_sharding_refuses_what_does_not_fit():
    """As `load_state_dict` of a module does; names without values are what a module would
    report.
    """
    whole = sharding.FullModel(Tied())
    state = {name: torch.zeros(tensor.shape) for name, tensor in whole.state_dict().items()}
    assert all(tensor.device.type == "meta" for tensor in whole.state_dict().values())
    for name in ("head.weight", "more"):
        with pytest.raises(RuntimeError, match=rf"\['{name}'\]"):
            whole.load_state_dict({**state, name: torch.zeros(1)})
    less = {name: value for name, value in state.items() if name != "blocks.0.inner.bias"}
    report = whole.load_state_dict({**less, "more": torch.zeros(1)}, strict=False)
    assert tuple(report) == (["blocks.0.inner.bias"], ["more"])


def test_sharding_tied_weight_without_a_file_is_not_missing(tmp_path):
    """Models of the reference save it once, under one name, and say nothing of the other."""
    saved, fresh = Tied(), Tied()
    tied = [
        name
        for name, parameter in saved.named_parameters(remove_duplicate=False)
        if parameter is saved.head.weight
    ]
    weights = {name: tensor for name, tensor in saved.state_dict().items() if name not in tied[1:]}
    save_file(
        {name: tensor.clone() for name, tensor in weights.items()}, tmp_path / "model.safetensors"
    )
    report = load_weights(sharding.FullModel(fresh), tmp_path)
    assert len(tied) == 2
    assert report.missing == ()
    assert torch.equal(fresh.head.weight, saved.head.weight)
    fresh.head.weight = torch.nn.Parameter(torch.zeros_like(saved.head.weight))
    with pytest.raises(ValueError, match=r"no values for 1 of .*weight"):
        load_weights(sharding.FullModel(fresh), tmp_path)
