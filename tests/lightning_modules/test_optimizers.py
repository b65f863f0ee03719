"""Optimizers, their groups and their states after training are the reference's, bit for bit."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, T5Config, T5Model, Trainer

from lightrainer.lightning_modules.names import OptimizerNames
from lightrainer.lightning_modules.optimizers import (
    BUILDERS,
    OptimizerConfig,
    decay_parameter_names,
    optimizer_class_and_kwargs,
    parameter_groups,
    parse_optimizer_args,
)

OPTIONS = [
    ("adamw_torch", None),
    ("adamw_torch_fused", None),
    ("sgd", None),
    ("sgd", "momentum=0.9, nesterov=True,dampening=0"),
    ("sgd", "momentum=0.9,dampening=0.1,nesterov=no"),
    ("adagrad", None),
    ("adagrad", "lr_decay=0.01,eps=1e-6"),
    ("rmsprop", None),
    ("rmsprop", "momentum=0.5,alpha=0.9,eps=1e-7,centered=yes"),
]


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
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), nn.ModuleDict({"x": self.first})])
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
    "gpt2": lambda: GPT2Model(GPT2Config(vocab_size=11, n_layer=2, n_head=2, n_embd=4, n_positions=8)),
    "bert": lambda: BertModel(BertConfig(**SMALL, intermediate_size=8)),
    "t5": lambda: T5Model(T5Config(vocab_size=11, d_model=4, d_kv=2, d_ff=8, num_layers=2, num_heads=2)),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8),
}


def reference_arguments(config):
    return SimpleNamespace(
        optim=OptimizerNames(config.name),
        optim_args=config.args,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        adam_beta1=config.beta1,
        adam_beta2=config.beta2,
        adam_epsilon=config.epsilon,
    )


def reference_optimizer(config, model):
    trainer = SimpleNamespace(
        model=model,
        optimizer=None,
        args=reference_arguments(config),
        optimizer_cls_and_kwargs=None,
        get_decay_parameter_names=lambda model: Trainer.get_decay_parameter_names(None, model),
        get_optimizer_cls_and_kwargs=Trainer.get_optimizer_cls_and_kwargs,
    )
    return Trainer.create_optimizer(trainer)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_decay_names_equal_reference(make):
    """Same names, in the same order, repeated where the reference repeats them."""
    model = make()
    names = decay_parameter_names(model)
    assert names == Trainer.get_decay_parameter_names(None, model)
    assert names


def test_decay_names_leave_something_out():
    """Negative control: not every parameter decays, and the near misses do."""
    names = decay_parameter_names(Odd())
    assert {"normal.weight", "scale", "prenorm.weight", "norm_scale"} <= set(names)
    assert not {"first.bias", "norm.weight", "q_norm.weight", "MyLayerNorm.weight", "unbiased"} & set(names)


def test_decay_names_walk_each_module_once():
    """A deep model costs one visit per module."""
    visits = []

    class Counted(nn.Sequential):
        def named_children(self):
            visits.append(self)
            return super().named_children()

    model = Counted(nn.Linear(1, 1))
    for _ in range(50):
        model = Counted(model)
    assert len(decay_parameter_names(model)) == 1
    assert len(visits) == 51


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_groups_equal_reference(make):
    """Decaying group first, both in the order of `named_parameters`, without frozen parameters."""
    model = make()
    next(model.parameters()).requires_grad_(False)
    expected = reference_optimizer(OptimizerConfig(name="sgd", weight_decay=0.1), model).param_groups
    groups = parameter_groups(model, 0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert [[id(p) for p in group["params"]] for group in groups] == [
        [id(p) for p in group["params"]] for group in expected
    ]


def test_both_groups_are_there_when_empty():
    assert [len(group["params"]) for group in parameter_groups(nn.LayerNorm(2), 0.1)] == [1, 1]
    assert [len(group["params"]) for group in parameter_groups(nn.Linear(2, 2, bias=False), 0.1)] == [1, 0]
    assert [len(group["params"]) for group in parameter_groups(nn.Linear(2, 2), 0.1, decay_names=())] == [0, 2]


@pytest.mark.parametrize(("name", "args"), OPTIONS)
def test_class_and_arguments_equal_reference(name, args):
    config = OptimizerConfig(name=name, learning_rate=0.01, beta1=0.8, beta2=0.95, epsilon=1e-6, args=args)
    assert optimizer_class_and_kwargs(config) == Trainer.get_optimizer_cls_and_kwargs(reference_arguments(config))


def train(make_optimizer, config):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))
    optimizer = make_optimizer(config, model)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right) and left.dtype == right.dtype
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.mark.parametrize(("name", "args"), OPTIONS)
def test_training_equals_reference(name, args):
    """Weights and optimizer state after five steps have the reference's bits."""
    config = OptimizerConfig(name=name, learning_rate=0.01, weight_decay=0.1, args=args)
    model, optimizer = train(lambda config, model: config.build(model), config)
    expected_model, expected_optimizer = train(reference_optimizer, config)
    assert same(model.state_dict(), expected_model.state_dict())
    assert same(optimizer.state_dict(), expected_optimizer.state_dict())


def test_training_comparison_can_fail():
    """Negative control: another weight decay is seen."""
    model, _ = train(reference_optimizer, OptimizerConfig(learning_rate=0.01, weight_decay=0.1))
    other, _ = train(reference_optimizer, OptimizerConfig(learning_rate=0.01, weight_decay=0.2))
    assert not same(model.state_dict(), other.state_dict())


def test_defaults_are_the_documented_ones():
    """The default optimizer and its numbers are those of `TrainingArguments`."""
    from transformers import TrainingArguments

    fields = {name: field.default for name, field in TrainingArguments.__dataclass_fields__.items()}
    config = reference_arguments(OptimizerConfig())
    for name in ("optim_args", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"):
        assert getattr(config, name) == fields[name]
    assert config.optim.value == TrainingArguments.default_optim


def test_registry_holds_what_is_promised():
    assert {name.value for name in BUILDERS} == {"adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop"}


@pytest.mark.parametrize("name", sorted(set(OptimizerNames) - set(BUILDERS)))
def test_what_is_not_available_says_so(name):
    with pytest.raises(NotImplementedError, match=f"{name.value!r}.*Available: adagrad, adamw_torch, "):
        OptimizerConfig(name=name).build(nn.Linear(1, 1))


def test_unknown_name():
    with pytest.raises(ValueError, match="adamw_torch"):
        OptimizerConfig(name="adamw_torhc")


def test_arguments_are_parsed():
    assert parse_optimizer_args(None) == parse_optimizer_args("") == {}
    assert parse_optimizer_args(" a = 1, b=x ") == {"a": "1", "b": "x"}


@pytest.mark.parametrize("text", ["momentum", "momentum=0.9,", "=1", "a=b=c", "a=1;b=2"])
def test_unreadable_arguments(text):
    with pytest.raises(ValueError, match="optim_args"):
        parse_optimizer_args(text)


def test_values_of_the_wrong_kind():
    with pytest.raises(ValueError, match="momentum='much'"):
        OptimizerConfig(name="sgd", args="momentum=much").build(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="nesterov='ture'"):
        OptimizerConfig(name="sgd", args="nesterov=ture").build(nn.Linear(1, 1))


def test_arguments_without_effect_are_named(caplog):
    """The reference passes over them in silence."""
    with caplog.at_level(logging.WARNING):
        OptimizerConfig(name="sgd", args="momentum=0.9,beta=1,weight_decay=0.3").build(nn.Linear(1, 1))
    assert "['beta']" in caplog.text
    assert "weight_decay=0.3" in caplog.text
    assert "momentum" not in caplog.records[-1].getMessage()
