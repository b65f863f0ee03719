"""Forward passes that are cast, and losses that are scaled."""

import contextlib
import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn

from lightrainer.lightning_modules.internals.precision import LossScaler, casting


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen = []

    def forward(self, x, labels=None):
        """Cast as this package."""
        self.seen.append(torch.is_autocast_enabled("cpu"))
        hidden = self.layer(x)
        return {
            "hidden": hidden,
            "more": (hidden, [hidden.double(), hidden.argmax(), "text", None]),
        }


def bfloat16():
    return torch.autocast("cpu", torch.bfloat16)


def rounded(model, x):
    """The output of the layer in bfloat16."""
    with bfloat16():
        return model.layer(x).float()


X = torch.linspace(-1.0, 1.0, 8).reshape(2, 4)


def test_precision_casts_the_forward_pass_and_returns_float32():
    """Within the block, whatever fails in it; hooks on the model see what a caller sees."""
    model, plain, dtypes = Model(), Model(), []
    model.register_forward_hook(lambda module, args, out: dtypes.append(out["hidden"].dtype))
    model.layer.register_forward_hook(lambda module, args, out: dtypes.append(out.dtype))
    with contextlib.suppress(ZeroDivisionError), casting(model, bfloat16):
        out = model(X)
        with pytest.raises(TypeError):
            model(X, what="is this")
        assert not torch.is_autocast_enabled("cpu")
        raise ZeroDivisionError
    assert dtypes == [torch.bfloat16, torch.float32]
    assert torch.equal(out["hidden"], rounded(model, X))
    assert out["hidden"].dtype == out["more"][0].dtype == torch.float32
    assert [getattr(leaf, "dtype", leaf) for leaf in out["more"][1]] == [
        torch.float64,
        torch.int64,
        "text",
        None,
    ]
    assert vars(model).keys() == vars(plain).keys()
    assert not torch.equal(model(X)["hidden"], rounded(model, X))
    assert model.seen == [True, False]


def test_precision_copies_made_inside_have_separate_weights():
    """As averaging of weights makes them: a copy that called the original would show its
    changes.
    """
    model = Model()
    with casting(model, bfloat16):
        copied, read = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        torch.save(model, io.BytesIO())
        with torch.no_grad():
            model.layer.weight.zero_()
        assert torch.equal(copied(X)["hidden"], rounded(copied, X))
        assert not torch.equal(copied(X)["hidden"], model(X)["hidden"])
    assert (copied.seen, model.seen) == ([True, True], [True])
    assert torch.equal(read(X)["hidden"], read.layer(X))
    assert read.seen == [False]


def test_precision_casts_a_replaced_forward_and_restores_it():
    """Other libraries replace it on the instance, too."""
    model = Model()
    replaced = model.forward = lambda x: model.layer(x) * 2.0
    with casting(model, bfloat16):
        assert torch.equal(model(X), 2.0 * rounded(model, X))
    assert model.forward is replaced


def step_of(scaler, optimizer, gradient, unscale=0):
    """One step with a gradient of so much before scaling."""
    (weight,) = optimizer.param_groups[0]["params"]
    weight.grad = None
    scaler.scale(weight * gradient).sum().backward()
    for _ in range(unscale):
        scaler.unscale_(optimizer)
    before = weight.item()
    scaler.step(optimizer)
    scaler.update()
    return before - weight.item()


def made(optimizer=torch.optim.SGD, **options):
    weight = nn.Parameter(torch.zeros(1))
    return LossScaler("cpu", init_scale=4.0, growth_interval=2), optimizer(
        [weight], lr=1.0, **options
    )


@pytest.mark.parametrize("unscale", [0, 1, 2])
def test_unscaling_more_than_once_is_once(unscale):
    """Again in each step; torch's own scaler raises on the second call."""
    scaler, optimizer = made()
    assert [step_of(scaler, optimizer, gradient, unscale) for gradient in (3.0, 5.0)] == [3.0, 5.0]
    control = torch.amp.GradScaler("cpu")
    if unscale == 2:
        with pytest.raises(RuntimeError, match="already been called"):
            step_of(control, optimizer, 3.0, unscale)


@pytest.mark.parametrize("unscale", [0, 2])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_precision_reports_a_skipped_step(bad, unscale):
    scaler, optimizer = made()
    records = []
    for gradient in (1.0, bad, bad, 1.0):
        step_of(scaler, optimizer, gradient, unscale)
        records.append((scaler.step_was_skipped, scaler.get_scale()))
    assert records == [(False, 4.0), (True, 2.0), (True, 1.0), (False, 1.0)]
    step_of(scaler, optimizer, 1.0)
    assert scaler.get_scale() == 2.0


def test_precision_asks_an_optimizer_that_inspects_gradients():
    """A skipped step leaves the weights alone, without a synchronisation."""
    scaler, optimizer = made(torch.optim.AdamW, fused=True)
    assert step_of(scaler, optimizer, math.inf, 1) == 0.0
    assert not scaler.step_was_skipped
    assert scaler.get_scale() == 2.0
    assert step_of(scaler, optimizer, 1.0, 1) != 0.0


def test_state_of_the_scaler_is_that_of_torch():
    """So that checkpoints can be exchanged."""
    scaler, optimizer = made()
    step_of(scaler, optimizer, 1.0)
    plain = torch.amp.GradScaler("cpu")
    plain.load_state_dict(scaler.state_dict())
    assert plain.state_dict() == scaler.state_dict() != torch.amp.GradScaler("cpu").state_dict()
    again = LossScaler("cpu")
    again.load_state_dict(plain.state_dict())
    assert step_of(again, optimizer, 1.0) == 1.0
    assert again.get_scale() == 8.0
