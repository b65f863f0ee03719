"""Calls of torch that are made again for other tensors, and functions of which that cannot be told."""

import pytest
import torch

from lightrainer.lightning_modules.keras.recorded_calls import CallRecorder, NotRecordableError

WEIGHT = torch.nn.Parameter(torch.tensor([2.0, -1.0, 0.5]))


def recorded(function, *tensors):
    with CallRecorder(tensors) as recorder:
        results = function(*tensors)
    return recorder.recorded(results)


def several_results(x):
    largest, places = torch.max(x * WEIGHT, dim=-1)
    left, right = torch.split(x, [1, 2], dim=-1)
    return [largest, places, torch.cat([right, left], dim=-1)]


def in_place(x):
    made = torch.zeros(x.shape[0], 3)
    made[:, 1:] = x[:, :2]
    return [made.add_(1).mul_(WEIGHT)]


def partly_without_gradients(x):
    with torch.no_grad():
        factor = (x * WEIGHT).sum()
    return [x * WEIGHT * factor]


def by_keywords(x):
    return [torch.nn.functional.linear(input=x, weight=WEIGHT[None]), x.to(torch.float32), x.to(dtype=torch.float64)]


def drawn(x):
    return [torch.nn.functional.dropout(x * WEIGHT, 0.5) + torch.rand_like(x)]


@pytest.mark.parametrize("function", [several_results, in_place, partly_without_gradients, by_keywords, drawn])
def test_made_again_they_give_what_the_function_gives(function):
    """Values, gradients and random numbers, of tensors that were not recorded; a weight is read as it is then."""
    calls = recorded(function, torch.randn(4, 3))
    for seed in (1, 2):
        with torch.no_grad():
            WEIGHT.mul_(1.5)
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        outcomes = []
        for run in (lambda: function(x), lambda: calls([x])):  # noqa: B023 (called here)
            torch.manual_seed(seed)
            results = run()
            gradients = torch.autograd.grad(results[0].sum(), WEIGHT)
            outcomes.append([*results, *gradients, torch.get_rng_state()])
        assert all(map(torch.equal, *outcomes))
        assert len(outcomes[0]) == len(outcomes[1])


def outside(x):
    """A tensor whose gradient flows through what nobody saw."""
    return [x * OUTSIDE]


OUTSIDE = WEIGHT * 2
REFUSED = {
    "item": (lambda x: [x * x.sum().item()], "item tells Python about values"),
    "a condition": (lambda x: [x if (x > 0).all() else -x], "__bool__ tells Python"),
    "a list": (lambda x: [torch.tensor(x.tolist())], "tolist tells Python"),
    "an array": (lambda x: [torch.from_numpy(x.numpy()) + x], "numpy tells Python"),
    "a comparison": (lambda x: [x * torch.equal(x, x)], "equal tells Python"),
    "places": (lambda x: [torch.nonzero(x)], "nonzero gives a shape"),
    "a mask": (lambda x: [x[x > 0]], "__getitem__ gives a shape"),
    "a mask among others": (lambda x: [x[..., x[0] > 0]], "__getitem__ gives a shape"),
    "where": (lambda x: list(torch.where(x > 0)), "where gives a shape"),
    "a generator": (lambda x: [torch.rand(3, generator=torch.Generator()) * x], "given a Generator"),
    "a slice": (lambda x: [x[: torch.tensor(2)]], "given a slice|__index__ tells"),
    "a result from elsewhere": (outside, "torch does not show"),
}


@pytest.mark.parametrize(("function", "why"), REFUSED.values(), ids=REFUSED)
def test_what_may_be_other_calls_for_other_tensors_is_refused(function, why):
    with pytest.raises(NotRecordableError, match=why):
        recorded(function, torch.randn(4, 3))
