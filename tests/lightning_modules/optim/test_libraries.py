"""Optimizers of other libraries get the same class, arguments and groups as in the reference.

The libraries are stand-ins here, which record their arguments; `tests/parity` trains with the real
ones.
"""

import pytest
import torch
from torch import nn

from helpers.optim import optimizer_stand_ins
from helpers.optim.reference_optimizers import (
    reference_class_and_kwargs,
    reference_optimizer,
    same_bits,
)
from lightrainer.lightning_modules.common.enums import OptimizerNames
from lightrainer.lightning_modules.optim import (
    LayerwiseOptimizer,
    MissingLibraryError,
    OptimizerConfig,
    build_optimizer,
    optimizer_class_and_kwargs,
    parameter_groups,
)

NATIVE = {"adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"}
OF_LIBRARIES = sorted(name.value for name in OptimizerNames if name.value not in NATIVE)

DTYPES = "momentum_dtype=bfloat16,variance_dtype=float64,compensation_buffer_dtype=float16"
GALORE = "rank=4,update_proj_gap=7,scale=0.5,proj_type=right"
APOLLO = f"{GALORE},proj=svd,scale_type=tensor"
WITH_ARGUMENTS = [
    ("adamw_anyprecision", f"use_kahan_summation=yes,{DTYPES}"),
    ("ademamix", "beta1=0.7,beta2=0.8,beta3=0.99,alpha=3,eps=1e-5,t_alpha=10,t_beta3=20"),
    ("paged_ademamix_8bit", "alpha=3"),
    ("adamw_torch_4bit", "bf16_stochastic_round=true"),
    ("schedule_free_adamw", "weight_lr_power=1.5,r=0.5"),
    ("schedule_free_radam", "r=0.5"),
    ("schedule_free_sgd", "weight_lr_power=1.5"),
    (
        "grokadamw",
        "alpha_init=0.9,lamb=1,gamma=0.3,grokking_signal_decay_rate=0.2,gradient_clipping=0.5",
    ),
    ("stable_adamw", "max_lr=0.1,kahan_sum=true,decouple_lr=true"),
    *(
        (name, GALORE)
        for name in OF_LIBRARIES
        if name.startswith("galore") and name != "galore_adafactor_layerwise"
    ),
    *((name, APOLLO) for name in OF_LIBRARIES if name.startswith("apollo")),
]


class Model(nn.Module):
    """An embedding, linear layers in blocks, norms, and a tied weight."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.positions = nn.Embedding(3, 4)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"attn": nn.Linear(4, 4), "norm": nn.LayerNorm(4)}) for _ in range(2)
        )
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.last = nn.Linear(4, 2)
        self.last.bias.requires_grad_(False)


def config(name, **changes):
    values = {
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "beta1": 0.8,
        "beta2": 0.95,
        "epsilon": 1e-6,
    }
    values |= {"target_modules": "all-linear", "warmup_steps": 5}
    return OptimizerConfig(name=name, **{**values, **changes})


def recorded(kwargs):
    """Return the arguments, with the constructor arguments of each optimizer among them."""
    if "optimizer_dict" in kwargs:
        inner = kwargs["optimizer_dict"]
        return {
            "lr": kwargs["lr"],
            "parameters": list(inner),
            "given": [each.given for each in inner.values()],
        }
    return kwargs


def alike(left, right):
    if isinstance(left, (list, tuple)):
        return (
            type(left) is type(right) and len(left) == len(right) and all(map(alike, left, right))
        )
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(alike(left[key], right[key]) for key in left)
    return left is right if isinstance(left, nn.Module) else same_bits(left, right)


@pytest.mark.parametrize(
    ("name", "args"),
    # The reference forgets the arguments of galore_adafactor_layerwise: see below.
    [
        *((name, None) for name in OF_LIBRARIES if name != "galore_adafactor_layerwise"),
        *WITH_ARGUMENTS,
    ],
)
def test_class_and_arguments_equal_reference(monkeypatch, name, args):
    optimizer_stand_ins.install(monkeypatch)
    model = Model()
    actual_class, actual = optimizer_class_and_kwargs(config(name, args=args), model)
    expected_class, expected = reference_class_and_kwargs(config(name, args=args), model)
    assert alike(recorded(actual), recorded(expected))
    assert actual_class is expected_class or actual_class is LayerwiseOptimizer


@pytest.mark.parametrize("name", [name for name in OF_LIBRARIES if "layerwise" not in name])
def test_groups_equal_reference(monkeypatch, name):
    optimizer_stand_ins.install(monkeypatch)
    model = Model()
    actual = config(name).build(model)
    overrides, optimizer_stand_ins.Overrides.asked = optimizer_stand_ins.Overrides.asked, []
    expected = reference_optimizer(config(name), model)
    assert alike(actual.given, expected.given)
    assert alike(overrides, optimizer_stand_ins.Overrides.asked)
    in_8_bits = "8bit" in name and "torch" not in name and "galore" not in name
    assert [module for module, *_ in overrides] == (
        [model.embedding, model.positions] if in_8_bits else []
    )


def test_galore_with_adafactor_for_each_layer_gets_its_arguments(monkeypatch):
    """The reference leaves them out, so that GaLore's Adafactor refuses the learning rate."""
    optimizer_stand_ins.install(monkeypatch)
    names = ("galore_adafactor_layerwise", "galore_adafactor")
    layerwise, plain = (optimizer_class_and_kwargs(config(name), Model())[1] for name in names)
    arguments = {key: value for key, value in plain.items() if key != "params"}
    assert arguments == {"lr": 0.01, "scale_parameter": False, "relative_step": False}
    assert all(inner.given[1] == arguments for inner in layerwise["optimizer_dict"].values())


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("adamw_torch_8bit", "block_size=128", {"block_size": 128}),
        (
            "rmsprop_bnb",
            "alpha=0.9,momentum=0.5,eps=1e-7",
            {"alpha": 0.9, "momentum": 0.5, "eps": 1e-7},
        ),
        (
            "rmsprop_bnb_8bit",
            "min_8bit_size=64,centered=no",
            {"min_8bit_size": 64, "centered": False},
        ),
        (
            "stable_adamw",
            "kahan_sum=false,decouple_lr=no",
            {"kahan_sum": False, "decouple_lr": False},
        ),
    ],
)
def test_numbers_are_numbers(monkeypatch, name, args, expected):
    """The reference passes these on as texts, or reads every text as true."""
    optimizer_stand_ins.install(monkeypatch)
    kwargs = optimizer_class_and_kwargs(config(name, args=args))[1]
    assert {key: kwargs[key] for key in expected} == expected
    others = {key: value for key, value in kwargs.items() if key not in expected}
    assert same_bits(
        others,
        {k: v for k, v in reference_class_and_kwargs(config(name))[1].items() if k not in expected},
    )


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_missing_optimizer_library_raises_with_remedy(monkeypatch, name):
    """An ImportError, and a ValueError too, as the reference raises one or the other."""
    optimizer_stand_ins.hide(monkeypatch)
    with pytest.raises(MissingLibraryError, match=f"(?s)optim='{name}'.*pip install") as caught:
        config(name).build(Model())
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, ValueError)


def test_library_optimizer_factory_receives_the_model():
    """Where `optimizer_cls_and_kwargs` holds no class of optimizers, it is called, and what it
    gives is called.
    """

    def factory():
        return lambda model, lr: torch.optim.SGD(model.last.parameters(), lr=lr)

    model = Model()
    for optimizer in (
        build_optimizer(factory, {"lr": 0.5}, model, parameter_groups(model, 0.0)),
        reference_optimizer(config("sgd"), model, optimizer_cls_and_kwargs=(factory, {"lr": 0.5})),
    ):
        assert optimizer.param_groups[0]["params"] == list(model.last.parameters())
        assert optimizer.param_groups[0]["lr"] == 0.5


def test_library_optimizer_leaves_user_arguments_alone():
    model, groups = Model(), [{"params": []}]
    kwargs = {"lr": 0.1, "params": list(model.last.parameters())}
    optimizer = build_optimizer(torch.optim.SGD, kwargs, model, groups)
    assert [len(group["params"]) for group in optimizer.param_groups] == [2]
    assert set(kwargs) == {"lr", "params"}
