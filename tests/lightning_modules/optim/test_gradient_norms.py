"""Clipping gives the bits of torch's function, which sorts gradients by device and format first."""

import math

import pytest
import torch

from lightrainer.lightning_modules.optim.gradient_norms import clip_gradients


def parameters(kind):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.nn.Parameter(torch.zeros(size)) for size in ((3, 4), (5,), (2, 2))]
    for parameter in tensors:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    if kind == "nan":
        tensors[1].grad[0] = math.nan
    if kind == "two formats":
        tensors[1] = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
        tensors[1].grad = torch.ones(5, dtype=torch.float64)
    if kind == "one without":
        tensors[0].grad = None
    if kind == "none":
        tensors = [torch.nn.Parameter(torch.zeros(1))]
    return tensors


@pytest.mark.parametrize("kind", ["plain", "nan", "two formats", "one without", "none"])
@pytest.mark.parametrize("max_norm", [0.5, 1000.0, math.inf])
@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_norm_and_gradients_are_those_of_torch(kind, max_norm, norm_type):
    ours, reference = parameters(kind), parameters(kind)
    norm = clip_gradients(iter(ours), max_norm, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(reference, max_norm, norm_type=norm_type)
    assert torch.equal(norm, expected) or (norm.isnan() and expected.isnan())
    assert norm.dtype == expected.dtype
    for left, right in zip(ours, reference, strict=True):
        assert (left.grad is None) == (right.grad is None)
        assert left.grad is None or torch.allclose(
            left.grad, right.grad, rtol=0, atol=0, equal_nan=True
        )
