"""Lightning's loops call the hooks of a `FastModule` at each point, in order, and nothing is read too early."""

import itertools

import pytest
import torch
from lightning.pytorch import Trainer

from lightrainer.lightning_modules.internals import fast_path, lightning_internals
from lightrainer.lightning_modules.training.accumulation import WindowLoader


class Recorder(fast_path.FastModule):
    """Trains a little by hand, and writes down each hook."""

    def __init__(self, model, scheduled=True):
        super().__init__()
        self.automatic_optimization = False
        self.events = []
        self.model = model
        self.scheduled = scheduled
        self.windows = WindowLoader(Batches(5), accumulation=2, batches=5, windows=3, read=self._read)
        self.stop_after = None

    def _read(self, batches, count):
        self.events.append("read")
        window = list(itertools.islice(batches, count))
        return window, len(window)

    def configure_optimizers(self):
        self.events.append("optimizers")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer) if self.scheduled else None
        return ([self.optimizer], [scheduler]) if self.scheduled else self.optimizer

    def on_train_start(self):
        self.events.append("train begins")

    def on_train_epoch_start(self):
        self.events.append("epoch begins")

    def on_train_batch_start(self, batch, batch_idx):
        self.events.append(f"step begins: {[int(each) for each in batch]}")

    def training_step(self, batch, batch_idx):
        self.events.append("step")
        loss = sum(self.model(each.reshape(1)).sum() for each in batch) / batch.items
        self.manual_backward(loss)
        optimizer = self.optimizers()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.events.append(f"step ends at {self.trainer.global_step}")
        if self.stop_after == self.trainer.global_step:
            self.windows.stop()
            self.trainer.should_stop = True

    def on_train_epoch_end(self):
        self.events.append("epoch ends")
        self.windows.end_epoch()

    def on_train_end(self):
        self.events.append("train ends")

    def validation_step(self, batch, batch_idx):
        self.events.append(("evaluation", batch, self.training, torch.is_grad_enabled()))
        return {"seen": batch}

    test_step = validation_step


class Batches:
    """Epoch `e` gives 10 * e, 10 * e + 1, ..."""

    def __init__(self, count):
        self.count = count
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.arange(10.0 * self.epoch, 10.0 * self.epoch + self.count))

    def __len__(self):
        return self.count


def make_trainer(**kwargs):
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "limit_val_batches": 0}
    options |= {"enable_model_summary": False, "max_epochs": 2, "accelerator": "cpu", **kwargs}
    with lightning_internals.quiet():
        return Trainer(**options)


def fit(module, **kwargs):
    trainer = make_trainer(**kwargs)
    fast_path.step_lightly(trainer)
    with lightning_internals.quiet():
        trainer.fit(module, lightning_internals.combined(module.windows, training=True), [])
    return trainer


@pytest.fixture
def module():
    return Recorder(torch.nn.Linear(1, 1))


def epoch(number):
    """The events of an epoch of three windows: each is read when its step is due, not before."""
    steps = []
    for index, window in enumerate(([0, 1], [2, 3], [4])):
        batches = [10 * number + batch for batch in window]
        steps += ["read", f"step begins: {batches}", "step", f"step ends at {3 * number + index + 1}"]
    return ["epoch begins", *steps, "epoch ends"]


def test_hooks_are_called_in_order(module):
    fit(module)
    assert module.events == ["optimizers", "train begins", *epoch(0), *epoch(1), "train ends"]


def test_a_module_can_end_the_training(module):
    """In mid-epoch: nothing more is read, and the ends are told."""
    module.stop_after = 2
    fit(module)
    assert module.events == ["optimizers", "train begins", *epoch(0)[:9], "epoch ends", "train ends"]


def test_name_of_the_running_hook_is_set_past_torch(module, monkeypatch):
    """Lightning sets it some twenty times a step; it reads back right, and torch's checks are not run for it."""
    slow, names = [], set()
    usual = torch.nn.Module.__setattr__
    monkeypatch.setattr(torch.nn.Module, "__setattr__", lambda self, *args: slow.append(args[0]) or usual(self, *args))
    begin = module.on_train_batch_start
    module.on_train_batch_start = lambda *args: names.add(module._current_fx_name) or begin(*args)
    fit(module, max_epochs=1)
    assert names == {"on_train_batch_start"}
    assert module._current_fx_name is None
    assert "_current_fx_name" in vars(module)
    assert slow == []
    module.model = module.model
    assert slow == ["model"], "the count sees the one name that is registered"
