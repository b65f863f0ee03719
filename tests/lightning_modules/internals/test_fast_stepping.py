"""Optimizer steps in the fast loop are counted as in Lightning's."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from listening import Listening

from lightrainer.lightning_modules.internals import fast_path, lightning_internals


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen = []

    def training_step(self, batch, batch_idx):
        loss = (self.weight * batch).sum()
        loss.backward()
        self.optimizers().step()
        self.seen.append((self.trainer.global_step, self.weight.item()))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.125)


def make_trainer(callbacks=(), by_us=True, **kwargs):
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    plugins = {"plugins": [fast_path.FastPrecision()]} if by_us else {}
    silent = {"enable_model_summary": False, "accelerator": "cpu", "max_epochs": 1}
    return Trainer(callbacks=list(callbacks), **options, **silent, **plugins, **kwargs)


def fitted(trainer):
    model = Model()
    with lightning_internals.quiet():
        trainer.fit(model, lightning_internals.combined(torch.utils.data.DataLoader(torch.ones(3, 1)), training=True))
    return model.seen


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
def test_steps_are_counted_with_and_without_the_wrapper():
    """The same weights, and Lightning's global_step after each step."""
    listening = Listening()
    alone = fitted(make_trainer())
    assert alone == fitted(make_trainer([listening])) == fitted(make_trainer(by_us=False))
    assert [step for step, _ in alone] == [1, 2, 3]
    assert listening.heard == 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, True), ({"callbacks": [Listening()]}, False), ({"by_us": False}, False)],
    ids=["bare", "a callback", "a precision plugin of Lightning"],
)
def test_plain_trainers(options, expected):
    assert fast_path.is_plain(make_trainer(**options)) is expected
