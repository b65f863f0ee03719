"""Adafactor has the reference's bits, whatever its options, and so has its schedule."""

import copy
import itertools

import pytest
import torch
import transformers
from torch import nn

from helpers.optim.reference_optimizers import same_bits
from lightrainer.lightning_modules.optim import Adafactor, AdafactorSchedule

SHAPES = [(3, 4), (5,), (), (2, 3, 4), (1, 7)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]

STEP_SIZES = [
    {"lr": 1e-2, "relative_step": False, "scale_parameter": False},
    {"lr": 1e-2, "relative_step": False, "scale_parameter": True},
    {"relative_step": True, "scale_parameter": False},
    {"relative_step": True, "scale_parameter": True, "warmup_init": False},
    {"relative_step": True, "scale_parameter": True, "warmup_init": True},
]
OTHERS = [
    {"beta1": beta1, "weight_decay": weight_decay, **more}
    for beta1, weight_decay in itertools.product((None, 0.9), (0.0, 0.1))
    for more in ({}, {"clip_threshold": 0.5, "decay_rate": -0.5, "eps": (1e-20, 1e-2)})
]


def parameters(dtype=torch.float32):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def step(optimizer, number):
    """A step with gradients of its number; those of number 3 are zero, and the second parameter
    has none at first.
    """
    torch.manual_seed(number)
    for index, parameter in enumerate(
        parameter for group in optimizer.param_groups for parameter in group["params"]
    ):
        gradient = torch.randn(parameter.shape) * (number != 3)
        parameter.grad = None if index == 1 and number < 2 else gradient.to(parameter.dtype)
    optimizer.step()


def train(cls, options, dtype=torch.float32, steps=6):
    weights = parameters(dtype)
    optimizer = cls(weights, **options)
    for number in range(steps):
        step(optimizer, number)
    return [weight.data for weight in weights], optimizer


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", STEP_SIZES, ids=str)
def test_adafactor_options_equal_the_reference(options, dtype):
    for others in OTHERS:
        weights, optimizer = train(Adafactor, options | others, dtype)
        expected, reference = train(transformers.Adafactor, options | others, dtype)
        assert same_bits(weights, expected), others
        assert same_bits(optimizer.state_dict(), reference.state_dict()), others


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_adafactor_half_precision_resumption_is_exact(dtype):
    """Torch casts a loaded state to the type of the weights; that would lose what the float32
    state is for.
    """
    options = STEP_SIZES[1] | {"beta1": 0.9}
    whole, optimizer = train(Adafactor, options, dtype)
    weights, interrupted = train(Adafactor, options, dtype, steps=3)
    resumed = Adafactor([nn.Parameter(weight) for weight in weights], **options)
    resumed.load_state_dict(copy.deepcopy(interrupted.state_dict()))
    for number in range(3, 6):
        step(resumed, number)
    assert same_bits(weights, whole)
    assert same_bits(resumed.state_dict(), optimizer.state_dict())


def test_adafactor_schedule_shows_a_rate_without_gradients():
    """The reference shows fewer rates than there are groups, which newer versions of torch do
    not take.
    """
    weights = parameters()
    optimizer = Adafactor([{"params": weights[1:2]}, {"params": weights[2:]}])
    scheduler = AdafactorSchedule(optimizer, 0.5)
    weights[2].grad = torch.ones_like(weights[2])
    optimizer.step()
    scheduler.step()
    first, second = scheduler.get_last_lr()
    assert first == 0.5
    assert second != 0.5
