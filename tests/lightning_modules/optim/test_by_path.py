"""Optimizers by the path of a class: what is taken, and what cannot be."""

import sys

import pytest
import torch
from torch import nn

from lightrainer.lightning_modules.optim import OptimizerConfig

NUMBERS = {"learning_rate": 0.01, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}


class Own(torch.optim.SGD):
    """Accepts its arguments and records them."""

    def __init__(self, params, lr, *, name="", betas=(0.5, 0.5), on=None):
        super().__init__(params, lr)
        self.given = name, betas, on


def made(groups, lr, momentum=0.0):
    return torch.optim.SGD(groups, lr=lr, momentum=momentum)


def nothing(groups, lr):
    return None


def built(path, args=None, **more):
    return OptimizerConfig(name=path, args=args, **{**NUMBERS, **more}).build(nn.Linear(2, 2))


def test_by_path_class_of_the_adam_family_gets_adam_settings():
    """By its signature, `betas` and `eps`; what is in the text goes before."""
    optimizer = built("torch.optim.NAdam", "eps=1e-3,decoupled_weight_decay=True", weight_decay=0.1)
    expected = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3, "decoupled_weight_decay": True}
    assert {name: optimizer.defaults[name] for name in expected} == expected
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


def test_others_keep_their_own_numbers():
    assert built("torch.optim.RMSprop").defaults["eps"] == 1e-8
    assert built(f"{__name__}.Own").given == ("", (0.5, 0.5), None)


def test_values_are_numbers_flags_tuples_and_text():
    assert built(f"{__name__}.Own", "name=a-b, betas=(0.1, 0.2),on=false").given == (
        "a-b",
        (0.1, 0.2),
        False,
    )
    assert built(f"{__name__}.Own", "name=none,on=3").given == (None, (0.5, 0.5), 3)


def test_by_path_function_builds_from_groups():
    optimizer = built(f"{__name__}.made", "momentum=0.5")
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1]
    assert optimizer.defaults["momentum"] == 0.5
    with pytest.raises(TypeError, match=r"nothing.* returned a NoneType"):
        built(f"{__name__}.nothing")


@pytest.mark.parametrize(
    ("path", "args", "message"),
    [
        (
            "torch.optim.Adan",
            None,
            "`optim`: 'torch.optim.Adan' is not the path of a class.*Did you mean 'Adam'",
        ),
        ("no_such.Thing", None, "'no_such.Thing' is not the path of a class"),
        (
            "broken_optimizers.Thing",
            None,
            "'broken_optimizers.Thing' cannot be imported.*broken on purpose.*Repair",
        ),
        ("torch.nn.Linear", None, "not a subclass of torch.optim.Optimizer"),
        ("torch.optim.LBFGS", None, "needs a closure"),
        (
            "torch.optim.SGD",
            "momentun=0.9",
            "optim='torch.optim.SGD'.*momentun.*it accepts: lr, momentum",
        ),
        ("torch.optim.SGD", "lr=0.9", "set by learning_rate"),
    ],
)
def test_path_that_cannot_be_is_refused(monkeypatch, tmp_path, path, args, message):
    (tmp_path / "broken_optimizers.py").write_text("raise RuntimeError('broken on purpose')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ValueError, match=message):
        built(path, args)


def test_by_path_class_without_weight_decay_gets_none():
    assert built("torch.optim.Rprop", weight_decay=0.0)
    with pytest.raises(ValueError, match=r"Rprop.*'weight_decay'.*weight_decay \(0\.1\)"):
        built("torch.optim.Rprop", weight_decay=0.1)
