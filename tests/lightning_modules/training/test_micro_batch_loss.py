"""A loss that is a mean over its micro-batch is divided once, whichever code starts the
backward pass.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lightrainer.lightning_modules.training.micro_batch_loss import (
    MicroBatchLoss,
    ScaledBackward,
    count_labels,
    divide_mean,
    ignored_labels,
)
from lightrainer.lightning_modules.training.tracked_items import TrackedItems


def micro_batch(items=12, divisor=4.0, parts=4, **declared):
    return MicroBatchLoss(TrackedItems.of(items), divisor, parts, **declared)


def a_loss():
    weight = torch.tensor(2.0, requires_grad=True)
    return weight, weight * 8


def test_micro_batch_loss_divides_a_mean():
    assert micro_batch().scale_in_step(torch.tensor(8.0)) == 2


def test_micro_batch_loss_keeps_a_loss_computed_from_items():
    batch_loss = micro_batch()
    loss = torch.tensor(24.0) / batch_loss.items
    assert batch_loss.scale_in_step(loss) is loss


@pytest.mark.parametrize("is_scaled", [True, False])
def test_micro_batch_loss_declaration_overrides_what_was_noted(is_scaled):
    batch_loss = micro_batch(is_scaled=is_scaled)
    loss = torch.tensor(96.0) / batch_loss.items if not is_scaled else torch.tensor(8.0)
    assert batch_loss.scale_in_step(loss) == (8 if is_scaled else 2)


def test_micro_batch_loss_backward_does_not_divide_again():
    batch_loss = micro_batch()
    weighed = batch_loss.scale_in_step(torch.tensor(8.0))
    assert batch_loss.scale(weighed) is weighed


def test_micro_batch_loss_divides_a_further_loss():
    """As in adversarial training after `super().training_step(...)`."""
    batch_loss = micro_batch()
    batch_loss.scale_in_step(torch.tensor(8.0))
    assert batch_loss.scale(torch.tensor(4.0)) == 1


DIVISIONS = [
    lambda loss: loss / 4,
    lambda loss: loss.div(4),
    lambda loss: loss.div_(4),
    lambda loss: torch.true_divide(loss, 4.0),
    lambda loss: loss * (1 / 4),
    lambda loss: loss / 4 / 3,
    lambda loss: 0.75 * (loss / 4),
    lambda loss: sum([loss / 4, -(0.1 * loss) / 4]),
    lambda loss: (torch.stack([loss]) / 4).mean().to(torch.float64),
    lambda loss: loss / 4 + (0.1 / 4) * loss,
    lambda loss: loss / 4 + 0.1 * loss.square(),
]


@pytest.mark.parametrize("divides", DIVISIONS)
def test_micro_batch_loss_keeps_a_loss_divided_by_the_override(divides):
    _, loss = a_loss()
    divided = divides(loss)
    assert micro_batch(own_divisors=(4,)).scale(divided) is divided


OTHER_FORMS = [
    lambda loss: loss / torch.tensor([4.0])[0].clone().requires_grad_(),
    lambda loss: loss / 2 / 2,
    lambda loss: loss / 4 + (loss.abs() - loss.abs()),
    lambda loss: 0.125 * loss + 0.125 * loss,
    lambda loss: torch.minimum(loss, torch.tensor(4.0)),
    lambda loss: (loss / 4).sqrt() * 2,
]


@pytest.mark.parametrize("divides", OTHER_FORMS)
def test_micro_batch_loss_weighs_other_forms_unless_they_are_declared(divides):
    _, loss = a_loss()
    divided = divides(loss)
    assert micro_batch(own_divisors=(4,)).scale(divided) == 1
    assert micro_batch(own_divisors=(4,), is_scaled=True).scale(divided) is divided


def test_micro_batch_loss_keeps_a_division_unrelated_to_accumulation():
    """Negative control: the mean of four terms, in a step of four micro-batches."""
    _, loss = a_loss()
    assert micro_batch().scale(loss / 4) == 1


@pytest.mark.parametrize(("returned", "logged"), [(8.0, 2.0), (2.0, 2.0), (5.0, 1.25)])
def test_micro_batch_loss_logs_what_an_override_returns(returned, logged):
    """The loss of its backward pass; that loss divided by the micro-batches; another value."""
    batch_loss = micro_batch()
    batch_loss.scale(torch.tensor(8.0))
    assert batch_loss.to_log(torch.tensor(returned)) == logged


def test_micro_batch_loss_weighs_a_backward_pass_of_an_override():
    weight, loss = a_loss()
    with ScaledBackward(micro_batch()):
        loss.backward()
    assert weight.grad == 2


def test_micro_batch_loss_does_not_weigh_the_accelerator_again():
    weight, loss = a_loss()
    batch_loss = micro_batch()
    batch_loss.is_scaled_by_trainer = True
    with ScaledBackward(batch_loss):
        loss.backward()
    assert weight.grad == 8


def test_micro_batch_loss_mean_over_no_items_counts_nothing():
    """Cross entropy over labels that are all -100 is NaN; its gradient is zero."""
    logits = torch.zeros(2, 3, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([-100, -100]))
    weighed = divide_mean(loss, torch.tensor(torch.inf))
    weighed.backward()
    assert loss.isnan()
    assert weighed == 0
    assert torch.equal(logits.grad, torch.zeros(2, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_micro_batch_loss_keeps_its_precision(dtype):
    assert divide_mean(torch.tensor(1.0, dtype=dtype), torch.tensor(3.0)).dtype is dtype


@pytest.mark.parametrize(
    ("labels", "shifted", "count"),
    [
        (torch.tensor([[1, 2, -100], [-100, 0, 5]]), False, 4),
        (torch.tensor([[1, 2, -100], [-100, 0, 5]]), True, 3),
        (torch.tensor([1, 0, 2]), False, 3),
        (torch.tensor([1.0, 0.5]), False, None),
        (torch.tensor([[True, False]]), False, None),
        (torch.tensor(1), False, None),
        ([1, 2], False, None),
        (None, False, None),
    ],
)
def test_labels_that_count(labels, shifted, count):
    result = count_labels(labels, shifted=shifted)
    assert result is None if count is None else result == count


class OwnForSemanticSegmentation(nn.Module):
    """A module of a script without a config."""


class HeadForSemanticSegmentation(nn.Module):
    def __init__(self, **config):
        super().__init__()
        self.config = SimpleNamespace(**{"num_labels": 3, **config})


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (nn.Linear(1, 1), 3),
        (HeadForSemanticSegmentation(semantic_loss_ignore_index=255), 2),
        (HeadForSemanticSegmentation(loss_ignore_index=255), 2),
        (nn.Sequential(HeadForSemanticSegmentation(semantic_loss_ignore_index=255)), 2),
        (HeadForSemanticSegmentation(num_labels=1, semantic_loss_ignore_index=255), 4),
        (HeadForSemanticSegmentation(), 3),
        (OwnForSemanticSegmentation(), 3),
    ],
)
def test_labels_that_a_model_leaves_out(model, count):
    """UperNet calls its index `loss_ignore_index`."""
    labels = torch.tensor([[[0, 2], [255, -100]]])
    assert count_labels(labels, shifted=False, ignored=ignored_labels(model)) == count
