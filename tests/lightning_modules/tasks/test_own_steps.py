"""Overrides of `training_step`: every item of an optimizer step counts once, whichever code
computes the loss.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from helpers.lightning.tiny_modules import Bare, make_trainer, seeded
from lightrainer import LightningBridge, LossModule

ROWS = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
CLASSES = torch.tensor([-100, -100, -100, 0, 1, 2, 1, 0])
"""The first half has one label that counts, the other has four."""

RATE = 1.0


class Inherited(LossModule):
    """The control."""


class Through(LossModule):
    """Changes what `super()` returns."""

    def training_step(self, batch, batch_idx):
        return {"loss": super().training_step(batch, batch_idx), "more": 1}


class Adds(LossModule):
    """Adds a penalty to what `super()` returns."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + 2.0


class Twice(LossModule):
    """Takes the mean over two forward passes, as R-Drop does."""

    def training_step(self, batch, batch_idx):
        first = super().training_step(batch, batch_idx)
        second = super().training_step(batch, batch_idx)
        return (first + second) / 2


class ComputesLoss(LossModule):
    """Does without `super()`."""

    def training_step(self, batch, batch_idx):
        loss, _ = self.compute_loss(batch)
        return loss


class CallsModel(LossModule):
    """Does without any method of the module."""

    def training_step(self, batch, batch_idx):
        rows, classes = batch
        return nn.functional.cross_entropy(self.model(rows), classes)


class Skips(LossModule):
    """Returns None for one batch, for which Lightning has no backward pass."""

    skipped = 0

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx == self.skipped else loss


class SkipsSecond(Skips):
    """Leaves out the last batch of a step of two."""

    skipped = 1


def change_of_weights(kind, accumulate, batch_size, callbacks=None):
    """Return what one epoch of SGD takes from the weights."""
    model = seeded(Bare)
    before = model.layer.weight.detach().clone()
    sgd = {"class_path": "torch.optim.SGD", "init_args": {"lr": RATE}}
    module = kind(model, loss_fn=nn.CrossEntropyLoss(), optimizer=sgd)
    trainer = make_trainer(callbacks=callbacks, max_epochs=1, accumulate_grad_batches=accumulate)
    trainer.fit(module, DataLoader(TensorDataset(ROWS, CLASSES), batch_size=batch_size))
    return before - model.layer.weight.detach()


def loss_and_gradient(rows, classes):
    model = seeded(Bare)
    loss = nn.functional.cross_entropy(model(rows), classes)
    loss.backward()
    return loss.item(), model.layer.weight.grad


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("kind", [Inherited, Through, Twice, ComputesLoss, CallsModel])
def test_step_is_that_of_one_batch(kind, accumulate):
    change = change_of_weights(kind, accumulate, 8 // accumulate)
    _, expected = loss_and_gradient(ROWS, CLASSES)
    torch.testing.assert_close(change, expected)


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("kind", [Inherited, Adds, Twice, ComputesLoss, CallsModel])
def test_logged_loss_is_the_one_that_was_trained(kind, accumulate):
    bridge = LightningBridge()
    change_of_weights(kind, accumulate, 8 // accumulate, [bridge])
    loss, _ = loss_and_gradient(ROWS, CLASSES)
    if kind is Adds:
        loss += 2.0
    assert bridge.state.log_history[-1]["train_loss"] == pytest.approx(loss)


def test_mean_of_the_means_of_batches_is_another():
    """The control of the test above."""
    halves = [
        loss_and_gradient(ROWS[half], CLASSES[half])[1] for half in (slice(0, 4), slice(4, 8))
    ]
    _, whole = loss_and_gradient(ROWS, CLASSES)
    assert not torch.allclose(torch.stack(halves).mean(0), whole, rtol=0.1)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`:UserWarning")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", [Skips, SkipsSecond])
def test_batch_without_a_backward_pass_does_not_count(kind, accumulate):
    trained = slice(4, 8) if kind.skipped == 0 else slice(0, 4)
    bridge = LightningBridge()
    change = change_of_weights(kind, accumulate, 4, [bridge])
    loss, expected = loss_and_gradient(ROWS[trained], CLASSES[trained])
    torch.testing.assert_close(change, expected)
    assert bridge.state.log_history[-1]["train_loss"] == pytest.approx(loss)
