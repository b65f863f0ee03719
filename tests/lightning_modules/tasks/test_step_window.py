"""However batches are accumulated, the gradient of a step is that of the mean over all of its items."""

import itertools

import pytest
import torch
from torch import nn

from lightrainer.lightning_modules.tasks.step_window import StepWindow


def gradient_of(batches, divisor, *, items, processes=1):
    """Run backward passes of Lightning's divided losses; return the mean over processes, as DDP takes it."""
    gradients, losses = [], []
    shares = [batches[rank::processes] for rank in range(processes)]
    for rank in range(processes):
        weight, window = nn.Parameter(torch.zeros(())), StepWindow()
        for place, batch in enumerate(shares[rank]):
            loss = ((weight - torch.tensor(batch)) ** 2).mean()
            counts = [torch.tensor(len(share[place])) for share in shares]
            together = sum(counts) if items else None
            window.add(loss, together, counts[rank] * processes if items and processes > 1 else None)
            losses.append(window.loss)
            window.weighted(loss / divisor).backward()
        window.finish([weight], divisor)
        assert window.batches == 0
        gradients.append(weight.grad)
    return sum(gradients) / processes, losses[-1]


RAGGED = [[1.0, 2.0, 3.0], [4.0], [5.0, 6.0], [7.0, 8.0, 9.0, 10.0]]


@pytest.mark.parametrize(("count", "divisor"), [(1, 1), (2, 2), (3, 3), (4, 4), (1, 4), (3, 4)])
def test_each_item_counts_the_same(count, divisor):
    """Also in a step that is shorter than others, and the loss is the mean so far."""
    batches = RAGGED[:count]
    values = torch.tensor(list(itertools.chain(*batches)))
    gradient, loss = gradient_of(batches, divisor, items=True)
    torch.testing.assert_close(gradient, -2 * values.mean())
    torch.testing.assert_close(loss, (values**2).mean())


@pytest.mark.parametrize(("count", "divisor"), [(2, 2), (1, 4), (3, 4)])
def test_each_batch_counts_the_same_where_items_are_not_counted(count, divisor):
    gradient, loss = gradient_of(RAGGED[:count], divisor, items=False)
    means = torch.tensor([sum(batch) / len(batch) for batch in RAGGED[:count]])
    torch.testing.assert_close(gradient, -2 * means.mean())
    squares = torch.tensor([sum(value**2 for value in batch) / len(batch) for batch in RAGGED[:count]])
    torch.testing.assert_close(loss, squares.mean())


@pytest.mark.parametrize(("count", "divisor"), [(2, 1), (4, 2), (2, 2)])
def test_over_processes(count, divisor):
    values = torch.tensor(list(itertools.chain(*RAGGED[:count])))
    gradient, _ = gradient_of(RAGGED[:count], divisor, items=True, processes=2)
    torch.testing.assert_close(gradient, -2 * values.mean())


def test_one_batch_is_left_alone():
    """To the last bit: an odd gradient, which a detour would round."""
    weight, window = nn.Parameter(torch.tensor(0.1)), StepWindow()
    loss = weight * 0.1
    window.add(loss, torch.tensor(7))
    window.weighted(loss).backward()
    window.finish([weight], 1)
    assert weight.grad.item() == torch.tensor(0.1).item()
