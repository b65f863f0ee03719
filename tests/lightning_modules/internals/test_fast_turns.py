"""A turn of the training loop without Lightning's hooks for others: everything is counted and called as with them."""

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins import Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from module_world import make_trainer

from lightrainer.lightning_modules.internals import fast_path, lightning_internals
from lightrainer.lightning_modules.internals.ddp import ModelDDPStrategy
from lightrainer.lightning_modules.internals.fast_path import no_op

BATCHES = 3


class Recording(fast_path.FastModule):
    """Writes down each call, and how far the loop says that it has come; may end an epoch before a batch."""

    def __init__(self, leave=()):
        super().__init__()
        self.automatic_optimization = False
        self.register_parameter("weight", torch.nn.Parameter(torch.ones(1)))
        self.leave = leave
        self.seen = []

    def note(self, hook, batch_idx):
        loop = self.trainer.fit_loop.epoch_loop
        progress = loop.batch_progress
        counts = (progress.current, progress.total, progress.is_last_batch, loop._batches_that_stepped)
        self.seen.append((hook, self.current_epoch, batch_idx, self.global_step, str(counts)))

    def on_train_batch_start(self, batch, batch_idx):
        self.note("start", batch_idx)
        return -1 if (self.current_epoch, batch_idx) in self.leave else None

    def training_step(self, batch, batch_idx):
        self.note("step", batch_idx)
        (self.weight * batch).sum().backward()
        self.optimizers().step()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.note("end", batch_idx)

    def on_train_epoch_end(self):
        self.note("epoch", -1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.125)


def lean_trainer(callbacks=None, **options):
    trainer = make_trainer(callbacks=callbacks, plugins=[Precision()], limit_val_batches=0, **options)
    fast_path.step_lightly(trainer)
    return trainer


def told(trainer, leave=()):
    module = Recording(leave)
    loader = torch.utils.data.DataLoader([torch.full((1,), float(index)) for index in range(BATCHES)])
    with lightning_internals.quiet():
        trainer.fit(module, lightning_internals.combined(loader, training=True))
    return module.seen, module.weight.item(), trainer.fit_loop.state_dict()


@pytest.mark.parametrize("leave", [(), ((0, 1),), ((0, 0), (1, 2))], ids=["all", "after one", "before any"])
def test_a_turn_counts_and_calls_as_lightnings(leave):
    trainer = lean_trainer()
    assert "run" in vars(trainer.fit_loop.epoch_loop)
    assert told(trainer, leave) == told(make_trainer(limit_val_batches=0), leave)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"callbacks": [Callback()]}, False),
        ({"strategy": ModelDDPStrategy(no_op)}, True),
        ({"strategy": DDPStrategy()}, False),
        ({"strategy": type("Further", (SingleDeviceStrategy,), {})("cpu")}, False),
    ],
    ids=["one process", "a callback", "DDP around the model", "DDP around the module", "a strategy of one process"],
)
def test_turns_are_lightnings_where_more_may_happen_in_them(options, expected):
    trainer = lean_trainer(**options)
    assert ("run" in vars(trainer.fit_loop.epoch_loop)) is expected
    assert fast_path.has_plain_steps(trainer) is expected
