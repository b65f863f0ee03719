"""The loop over the batches of an epoch: it counts and calls what Lightning's own does."""

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins import Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from helpers.lightning.tiny_modules import make_trainer
from lightrainer.lightning_modules.internals import fast_path, lightning_internals
from lightrainer.lightning_modules.internals.ddp import ModelDDPStrategy
from lightrainer.lightning_modules.internals.fast_path import no_op

BATCHES = 3


class Recording(fast_path.FastModule):
    """Writes down each call, and how far the loop says that it has come; may end an epoch before
    a batch.
    """

    def __init__(self, leave=()):
        super().__init__()
        self.automatic_optimization = False
        self.register_parameter("weight", torch.nn.Parameter(torch.ones(1)))
        self.leave = leave
        self.seen = []

    def note(self, hook, batch_idx):
        loop = self.trainer.fit_loop.epoch_loop
        progress = loop.batch_progress
        counts = (
            progress.current,
            progress.total,
            progress.is_last_batch,
            loop._batches_that_stepped,
        )
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


class Hooks(Callback):
    """Notes each hook around a batch, with the counts and the outputs, and logs in each."""

    def __init__(self):
        self.calls = []

    def note(self, hook, trainer, module, *values):
        counts = (trainer.fit_loop.epoch_loop.batch_progress.state_dict(), trainer.global_step)
        self.calls.append((hook, str(counts), *map(str, values)))
        module.log(hook, float(len(self.calls)), on_step=True, on_epoch=False)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.note("on_train_batch_start", trainer, module, batch, batch_idx)

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.note("on_before_optimizer_step", trainer, module, type(optimizer))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.note("on_train_batch_end", trainer, module, outputs, batch, batch_idx)


class SGDWithClosure(torch.optim.SGD):
    """Its step requires a closure, as in older classes."""

    def step(self, closure):
        return super().step(closure)


def noting_closures(optimizer_class, closures):
    """Return the class with a step that notes the closure that it gets."""
    required = optimizer_class is SGDWithClosure

    class Noted(optimizer_class):
        if required:

            def step(self, closure):
                closures.append(closure)
                return super().step(closure)

        else:

            def step(self, closure=None):
                closures.append(closure)
                return super().step(closure)

    return Noted


class Noting(DummyLogger):
    """Notes what is logged under which step."""

    def __init__(self):
        super().__init__()
        self.logged = []

    def log_metrics(self, metrics, step=None):
        self.logged.append((step, metrics))


def lean_trainer(callbacks=None, **options):
    trainer = make_trainer(
        callbacks=callbacks, plugins=[Precision()], limit_val_batches=0, **options
    )
    fast_path.use_fast_loops(trainer)
    return trainer


def told(trainer, leave=()):
    module = Recording(leave)
    loader = torch.utils.data.DataLoader(
        [torch.full((1,), float(index)) for index in range(BATCHES)]
    )
    with lightning_internals.quiet():
        trainer.fit(module, lightning_internals.combined(loader, training=True))
    return module.seen, module.weight.item(), trainer.fit_loop.state_dict()


@pytest.mark.parametrize(
    "leave", [(), ((0, 1),), ((0, 0), (1, 2))], ids=["all", "after one", "before any"]
)
def test_run_epoch_calls_the_module_as_lightning(leave):
    trainer = lean_trainer()
    assert "run" in vars(trainer.fit_loop.epoch_loop)
    assert told(trainer, leave) == told(make_trainer(limit_val_batches=0), leave)


@pytest.mark.parametrize("leave", [(), ((0, 1),)], ids=["all", "after one"])
def test_run_epoch_calls_callbacks_as_lightning(leave):
    sides = []
    for make in (lean_trainer, partial(make_trainer, limit_val_batches=0)):
        hooks, logger = Hooks(), Noting()
        trainer = make(callbacks=[hooks], logger=logger, log_every_n_steps=1)
        sides.append((told(trainer, leave), hooks.calls, logger.logged))
    assert sides[0] == sides[1]
    assert len(sides[0][1]) > 3
    assert sides[0][2] != []


def test_run_epoch_ends_when_a_callback_stops_the_training():
    def stop(trainer, *_):
        trainer.should_stop = trainer.global_step == 2

    trainer = lean_trainer(callbacks=[LambdaCallback(on_train_batch_end=stop)])
    module_calls, _, _ = told(trainer)
    assert [call[0] for call in module_calls] == ["start", "step", "end"] * 2 + ["epoch"]


class Plain(Recording):
    """Steps as the Trainer's module does."""

    def training_step(self, batch, batch_idx):
        (self.weight * batch).sum().backward()
        fast_path.optimizer_of(self.trainer).step()


@pytest.mark.parametrize(
    "optimizer_class", [torch.optim.SGD, SGDWithClosure], ids=["none", "required"]
)
def test_plain_optimizer_steps_without_a_closure(monkeypatch, optimizer_class):
    closures = []
    monkeypatch.setattr(
        Plain,
        "configure_optimizers",
        lambda self: noting_closures(optimizer_class, closures)(self.parameters(), lr=0.125),
    )
    hooks = Hooks()
    trainer = lean_trainer(callbacks=[hooks])
    trainer.fit(Plain(), torch.utils.data.DataLoader([torch.ones(1)] * BATCHES))
    assert closures == [None] * 2 * BATCHES
    assert trainer.global_step == 2 * BATCHES
    assert [call[0] for call in hooks.calls].count("on_before_optimizer_step") == 2 * BATCHES


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"strategy": ModelDDPStrategy(no_op)}, True),
        ({"strategy": DDPStrategy()}, False),
        ({"strategy": type("Further", (SingleDeviceStrategy,), {})("cpu")}, False),
    ],
    ids=[
        "one process",
        "DDP around the model",
        "DDP around the module",
        "a strategy of one process",
    ],
)
def test_has_plain_steps(options, expected):
    assert fast_path.has_plain_steps(lean_trainer(**options)) is expected
