"""The loss of an optimizer step, put together from micro-batches of unequal size."""

import pytest
import torch

from lightrainer.lightning_modules.tasks.step_window import StepWindow


def test_loss_of_a_step_counts_each_item_the_same():
    batches = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])]
    window = StepWindow()
    for losses in batches:
        window.begin_batch()
        so_far = window.add(losses.mean(), torch.tensor(len(losses)))
        window.count_current()
    window.finish([], divisor=2)
    assert window.finished_loss == so_far == torch.cat(batches).mean()


@pytest.mark.parametrize("has_items", [True, False])
def test_replaced_loss_of_two_processes(has_items):
    """An override of `training_step` adds 1 to the loss in this process, and 3 in the other."""
    finished = []
    for own_items, added in ((1, 1.0), (2, 3.0)):
        window = StepWindow()
        for loss in (4.0, 6.0):
            window.begin_batch()
            if has_items:
                window.add(torch.tensor(loss), torch.tensor(3), share=torch.tensor(own_items * 2))
            else:
                window.add(torch.tensor(loss))
            window.replace_loss(torch.tensor(loss + added))
            window.count_current()
        window.finish([], divisor=2)
        finished.append(window.finished_loss)
    mean_of_added = (1.0 + 2 * 3.0) / 3 if has_items else 2.0
    assert sum(finished) / 2 == pytest.approx(5.0 + mean_of_added)


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
    for calls, own_items in ((2, 1), (1, 2)):
        window.begin_batch()
        losses = []
        for _ in range(calls):
            loss = parameter * own_items
            window.add(loss, torch.tensor(3), share=torch.tensor(own_items * 2))
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
