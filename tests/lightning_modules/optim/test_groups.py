"""Weight decay and parameter groups equal the reference."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, T5Config, T5Model, Trainer

from helpers.optim.reference_optimizers import reference_optimizer
from lightrainer.lightning_modules.optim import (
    OptimizerConfig,
    decay_parameter_names,
    parameter_groups,
)
from lightrainer.lightning_modules.optim import groups as groups_module


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


class Odd(nn.Module):
    """Norms of all kinds, near misses, a shared child, tied and absent parameters."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.twin = self.first
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), nn.ModuleDict({"x": self.first})]
        )
        self.norm = RMSNorm()
        self.q_norm = RMSNorm()
        self.normal = nn.Linear(3, 3, bias=False)
        self.prenorm = RMSNorm()
        self.MyLayerNorm = RMSNorm()
        self.enorm = nn.ModuleDict({"norm": nn.ModuleDict({"deep": nn.Linear(3, 3)})})
        self.scale = nn.Parameter(torch.ones(3))
        self.norm_scale = nn.Parameter(torch.ones(3))
        self.tied = self.first.weight
        self.register_parameter("absent", None)
        self.unbiased = nn.Parameter(torch.ones(3))
        self.nothing = None


def odd_in_a_layer_norm():
    model = nn.LayerNorm(3)
    model.extra = nn.Linear(3, 3)
    return model


SMALL = {"vocab_size": 11, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 4}
MODELS = {
    "odd": Odd,
    "layer norm at the top": odd_in_a_layer_norm,
    "gpt2": lambda: GPT2Model(
        GPT2Config(vocab_size=11, n_layer=2, n_head=2, n_embd=4, n_positions=8)
    ),
    "bert": lambda: BertModel(BertConfig(**SMALL, intermediate_size=8)),
    "t5": lambda: T5Model(
        T5Config(vocab_size=11, d_model=4, d_kv=2, d_ff=8, num_layers=2, num_heads=2)
    ),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_decay_names_equal_reference(make):
    """Same names, in the same order, repeated where the reference repeats them."""
    model = make()
    names = decay_parameter_names(model)
    assert names == Trainer.get_decay_parameter_names(None, model)
    assert names


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_groups_equal_reference(make):
    """Decaying group first, both in the order of `named_parameters`, without frozen parameters."""
    model = make()
    next(model.parameters()).requires_grad_(False)
    expected = reference_optimizer(
        OptimizerConfig(name="sgd", weight_decay=0.1), model
    ).param_groups
    groups = parameter_groups(model, 0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert [[id(p) for p in group["params"]] for group in groups] == [
        [id(p) for p in group["params"]] for group in expected
    ]


def test_classes_added_to_the_norm_layers_do_not_decay(monkeypatch):
    """As with transformers 4, where scripts append to the list that they import from
    `transformers.trainer`.
    """
    added = [*groups_module.ALL_LAYERNORM_LAYERS, nn.Linear]
    monkeypatch.setattr(groups_module, "ALL_LAYERNORM_LAYERS", added)
    model = nn.Sequential(nn.Linear(2, 2), nn.Embedding(2, 2))
    assert decay_parameter_names(model) == ["1.weight"]


def test_groups_exist_when_empty():
    assert [len(group["params"]) for group in parameter_groups(nn.LayerNorm(2), 0.1)] == [1, 1]
    assert [
        len(group["params"]) for group in parameter_groups(nn.Linear(2, 2, bias=False), 0.1)
    ] == [1, 0]
    assert [
        len(group["params"]) for group in parameter_groups(nn.Linear(2, 2), 0.1, decay_names=())
    ] == [0, 2]
