"""The running loss is the reference's to the last bit, and costs no waiting for the device."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightrainer.lightning_modules.training.loss_meter import LossMeter

NAN, INF = math.nan, math.inf


class ReferenceMeter:
    """The running loss as the reference documents it: a float32 tensor to which each loss is
    added in turn.
    """

    def __init__(self, skip_not_finite):
        self.skip = skip_not_finite
        self.total = torch.tensor(0.0)

    def add(self, loss, steps_since_log):
        if self.skip and not torch.isfinite(loss):
            self.total += self.total / (1 + steps_since_log)
        else:
            self.total += loss

    def take(self):
        total = self.total.item()
        self.total -= self.total
        return total


def same(first, second):
    """Equal bits, where one NaN is as good as another."""
    return first == second or (math.isnan(first) and math.isnan(second))


def compare(losses, skip, take_after=(), micro_batches=1):
    """Both meters over the same losses, read after the given numbers of losses and at the end."""
    ours, theirs = LossMeter(skip), ReferenceMeter(skip)
    last_log = 0
    results = []
    for index, loss in enumerate(losses):
        steps = index // micro_batches - last_log
        ours.add(loss, steps)
        theirs.add(loss, steps)
        if index + 1 in take_after:
            results.append((ours.take(), theirs.take()))
            last_log = (index + 1) // micro_batches
    results.append((ours.take(), theirs.take()))
    return results


def random_losses(count, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return list((torch.rand(count, generator=generator, dtype=torch.float64) * 11).to(dtype))


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("count", [0, 1, 7, 1023, 1024, 1025, 3000])
def test_sum_equals_reference(count, skip):
    """Also with more losses than are kept singly."""
    for ours, theirs in compare(random_losses(count), skip):
        assert same(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("skip", [False, True])
def test_loss_meter_other_precisions_equal_the_reference(dtype, skip):
    losses = random_losses(2000, dtype=dtype)
    assert all(same(ours, theirs) for ours, theirs in compare(losses, skip, take_after=(100, 1500)))


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_loss_meter_nan_losses_equal_the_reference(bad, skip, micro_batches):
    """At the start, in a row, over a boundary of chunks, and just before and after a log."""
    losses = random_losses(2100)
    for index in (0, 1, 50, 51, 52, 99, 100, 1023, 1024, 1800):
        losses[index] = torch.tensor(bad)
    results = compare(losses, skip, take_after=(100, 1500), micro_batches=micro_batches)
    assert all(same(ours, theirs) for ours, theirs in results)
    assert all(math.isfinite(ours) is skip for ours, _ in results)


class Waits(TorchDispatchMode):
    """Counts the losses that are read out: each is a wait for the device."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_adding_never_waits_for_the_device():
    """However many losses there are."""
    losses = [*random_losses(2500), torch.tensor(NAN)]
    with Waits() as counter:
        for skip in (False, True):
            meter = LossMeter(skip)
            for loss in losses:
                meter.add(loss, 0)
    assert counter.count == 0


def test_loss_meter_counts_a_step_of_several_nan_losses_once():
    meter = LossMeter(skip_not_finite=True)
    for step, loss in [(0, 1.0), (0, NAN), (1, NAN), (1, INF), (2, 1.0), (2, 1.0), (3, NAN)]:
        meter.add(torch.tensor(loss), step)
    meter.take()
    assert meter.not_finite_steps == [0, 1, 3]
    meter.take()
    assert meter.not_finite_steps == []


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("saved_after", [0, 1, 7, 1024, 1500])
def test_loss_meter_state_resumes_the_same_sums(skip, saved_after):
    """With losses that are not finite before and after it, in half precision too."""
    losses = [
        *random_losses(1500),
        torch.tensor(NAN),
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.tensor(INF),
    ]
    losses[3] = torch.tensor(INF)
    whole, first = LossMeter(skip), LossMeter(skip)
    for meter in (whole, first):
        meter.add(torch.tensor(0.3), 0)
        meter.take()
    for step, loss in enumerate(losses):
        whole.add(loss, step)
        if step < saved_after:
            first.add(loss, step)
    state = first.state_dict()
    resumed = LossMeter(skip)
    resumed.load_state_dict(state)
    for step, loss in enumerate(losses[saved_after:], start=saved_after):
        resumed.add(loss, step)
    assert same(resumed.take(), whole.take())
    assert resumed.not_finite_steps == whole.not_finite_steps == [3, 1500, 1502]
    assert (first.take() != 0) == (saved_after > 0), "the state takes nothing away"
