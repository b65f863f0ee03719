"""The loss of an optimizer step, put together from micro-batches of unequal size."""

import pytest
import torch

from lightrainer.lightning_modules.tasks.step_window import StepWindow


def test_finished_loss_over_two_processes_counts_each_item_the_same():
    """Items of two micro-batches in each of two processes: the mean over the processes is that of all items."""
    items = [
        (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])),
        (torch.tensor([5.0]), torch.tensor([6.0, 9.0])),
    ]
    finished = []
    for own in items:
        window = StepWindow()
        for index, losses in enumerate(own):
            together = torch.tensor(sum(len(process[index]) for process in items))
            window.add(losses.mean(), together, share=torch.tensor(len(losses) * 2))
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
    window.add(torch.tensor(1.0))
    window.add(torch.tensor(3.0))
    window.finish([], divisor=2)
    assert window.finished_loss == 2.0
    window.clear()
    assert window.finished_loss is None
