"""Lightning's loops call the hooks of a `FastModule` at each point, in order, and nothing is read too early."""

import itertools

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers.logger import DummyLogger

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


def test_training_goes_on_in_mid_epoch(module):
    module.windows.start_at(1, 1)
    trainer = make_trainer()
    lightning_internals.start_at(trainer, epoch=1, window=1, global_step=4)
    with lightning_internals.quiet():
        trainer.fit(module, lightning_internals.combined(module.windows, training=True), [])
    assert module.events == ["optimizers", "train begins", "epoch begins", *epoch(1)[5:], "train ends"]


class Order(Callback):
    """Writes into the module's list what a Lightning callback sees."""

    def __init__(self, module):
        self.module = module

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.module.events.append(f"callback: {[int(part) for part in batch]}, {batch.items}, {batch.steps}")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.module.events.append(f"callback: {type(outputs['loss']).__name__ if outputs else outputs}")


def test_lightning_callbacks_see_windows_and_losses(module):
    fit(module, callbacks=[Order(module)], max_epochs=1)
    assert [event for event in module.events if str(event).startswith("callback")] == [
        *("callback: [0, 1], 2, True", "callback: Tensor"),
        *("callback: [2, 3], 2, True", "callback: Tensor"),
        *("callback: [4], 1, True", "callback: Tensor"),
    ]


def test_a_step_may_have_no_loss(module):
    step = module.training_step
    module.training_step = lambda batch, batch_idx: step(batch, batch_idx) and None
    fit(module, max_epochs=1)
    assert module.events == ["optimizers", "train begins", *epoch(0), "train ends"]


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_evaluation_gets_the_very_batches(module, verb):
    """In eval mode and without gradients; nothing else of the module is called."""
    outputs = []
    callback = Callback()
    name = f"on_{verb.replace('validate', 'validation')}_batch_end"
    setattr(callback, name, lambda trainer, module, output, *args: outputs.append(output))
    batches = [["not", "a", "tensor"], {"x": torch.ones(1)}]
    trainer = make_trainer(limit_val_batches=1.0, callbacks=[callback])
    loader = Batches(2)
    loader.__class__ = type("Fixed", (Batches,), {"__iter__": lambda self: iter(batches)})
    with lightning_internals.quiet():
        getattr(trainer, verb)(module, lightning_internals.combined(loader, training=False), verbose=False)
    assert module.events == [("evaluation", batch, False, False) for batch in batches]
    assert all(event[1] is batch for event, batch in zip(module.events, batches, strict=True))
    assert outputs == [{"seen": batch} for batch in batches]


@pytest.mark.parametrize("scheduled", [True, False])
def test_optimizer_and_scheduler_are_lightnings_too(scheduled):
    """So LearningRateMonitor and its like see them; without a scheduler there is none."""
    module, seen = Recorder(torch.nn.Linear(1, 1), scheduled), []
    logger = DummyLogger()
    logger.log_metrics = lambda metrics, step: seen.append(metrics)
    with lightning_internals.quiet():
        callbacks = [LearningRateMonitor()] if scheduled else []
    trainer = fit(module, callbacks=callbacks, logger=logger, log_every_n_steps=1, max_epochs=1)
    assert trainer.optimizers == [module.optimizer]
    assert len(trainer.lr_scheduler_configs) == scheduled
    assert not scheduled or "lr-SGD" in seen[0]


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


def test_only_the_model_is_in_the_state(module):
    assert set(module.state_dict()) == {"model.weight", "model.bias"}
    assert not module.automatic_optimization


def test_weights_are_those_of_the_loop_by_hand(module):
    model = torch.nn.Linear(1, 1)
    model.load_state_dict(module.model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = 1 / 3  # ConstantLR, which the module does not step
    for window in ([0.0, 1.0], [2.0, 3.0], [4.0]):
        loss = sum(model(torch.tensor([batch])).sum() for batch in window) / len(window)
        loss.backward()
        optimizer.param_groups[0]["lr"] = 0.1 * scale
        optimizer.step()
        optimizer.zero_grad()
    fit(module, max_epochs=1)
    assert torch.equal(module.model.weight, model.weight)
    assert torch.equal(module.model.bias, model.bias)
