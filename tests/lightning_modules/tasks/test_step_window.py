"""The loss of an optimizer step, put together from micro-batches of unequal size."""

import pytest
import torch

from lightrainer.lightning_modules.tasks.step_window import StepWindow


def test_finished_loss_over_two_processes_counts_each_item_the_same():
    """Items of two micro-batches in each of two processes: the mean over the processes is that
    of all items.
    """
    items = [
        (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])),
        (torch.tensor([5.0]), torch.tensor([6.0, 9.0])),
    ]
    finished = []
    for own in items:
        window = StepWindow()
        for index, losses in enumerate(own):
            together = torch.tensor(sum(len(process[index]) for process in items))
            window.begin_batch()
            window.add(losses.mean(), together, share=torch.tensor(len(losses) * 2))
            window.count_current()
        window.finish([], divisor=2)
        finished.append(window.finished_loss)
    batches = [*items[0], *items[1]]
    every_item = torch.cat(batches)
    assert sum(finished) / 2 == pytest.approx(every_item.mean())
    means = torch.stack([losses.mean() for losses in batches])
    assert means.mean() != pytest.approx(every_item.mean()), "a mean of means would pass"


def test_finished_loss_is_that_of_the_last_step():
    window = StepWindow()
    assert window.finished_loss is None
    for loss in (1.0, 3.0):
        window.begin_batch()
        window.add(torch.tensor(loss))
        window.count_current()
    window.finish([], divisor=2)
    assert window.finished_loss == 2.0
    window.clear()
    assert window.finished_loss is None


def test_losses_of_one_batch_weigh_as_much_as_their_items():
    """Of two processes, this one has one of three items in the first batch, twice, and two of
    three in the second.
    """
    parameter = torch.nn.Parameter(torch.tensor(0.0))
    window = StepWindow()
    for calls, own in ((2, 1), (1, 2)):
        window.begin_batch()
        losses = []
        for _ in range(calls):
            loss = parameter * own
            window.add(loss, torch.tensor(3), share=torch.tensor(own * 2))
            losses.append(loss)
        window.weighted(torch.stack(losses).mean()).backward()
        window.count_current()
    window.finish([parameter], divisor=1)
    expected = 2 * (1 * 2 + 2 * 2) / 9  # gradient times items, over nine items in two processes
    torch.testing.assert_close(parameter.grad, torch.tensor(expected))


def test_step_of_one_batch_with_several_losses_needs_no_scaling():
    window = StepWindow()
    for _ in range(2):
        window.add(torch.tensor(1.0), torch.tensor(3), share=torch.tensor(2))
    assert window.weighted(torch.tensor(6.0)) == 4.0
