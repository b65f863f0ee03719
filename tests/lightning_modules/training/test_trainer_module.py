"""Lightning's loops call the driver at each documented point, in order, and nothing is read too early."""

import itertools

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.loops import training_epoch_loop

from lightrainer.lightning_modules.internals import fast_path, lightning_internals
from lightrainer.lightning_modules.training.accumulation import WindowLoader
from lightrainer.lightning_modules.training.trainer_module import DrivenModule


class Recorder:
    """A driver that trains a little, and writes down each call."""

    def __init__(self, model, scheduled=True):
        self.events = []
        self.model = model
        self.scheduled = scheduled
        self.windows = WindowLoader(Batches(5), accumulation=2, batches=5, windows=3, read=self._read)
        self.module = DrivenModule(model, self)
        self.stop_after = None
        self.loss = 0.0

    def _read(self, batches, count):
        self.events.append("read")
        window = list(itertools.islice(batches, count))
        return window, len(window)

    def set_up(self):
        """Nothing to go on from."""

    def optimizers(self):
        self.events.append("optimizers")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer) if self.scheduled else None
        return self.optimizer, scheduler

    def train_begin(self):
        self.events.append("train begins")

    def epoch_begin(self):
        self.events.append("epoch begins")

    def step_begin(self, window):
        self.events.append(f"step begins: {[int(batch) for batch in window]}")

    def step(self, window):
        self.events.append("step")
        loss = sum(self.model(batch.reshape(1)).sum() for batch in window) / window.items
        self.module.manual_backward(loss)
        optimizer = self.module.optimizers()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def step_end(self, window):
        self.events.append(f"step ends at {self.module.trainer.global_step}")
        if self.stop_after == self.module.trainer.global_step:
            self.windows.stop()
            self.module.trainer.should_stop = True

    def epoch_end(self):
        self.events.append("epoch ends")
        self.windows.end_epoch()

    def train_end(self):
        self.events.append("train ends")

    def evaluation_end(self):
        return {}

    def evaluation_step(self, inputs):
        self.events.append(("evaluation", inputs, self.module.training, torch.is_grad_enabled()))
        return {"seen": inputs}


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


def fit(driver, **kwargs):
    trainer = make_trainer(**kwargs)
    fast_path.step_lightly(trainer)
    with lightning_internals.quiet():
        trainer.fit(driver.module, lightning_internals.combined(driver.windows, training=True), [])
    return trainer


@pytest.fixture
def driver():
    return Recorder(torch.nn.Linear(1, 1))


def epoch(number):
    """What is to happen in an epoch of three windows: each is read when its step is due, not before."""
    steps = []
    for index, window in enumerate(([0, 1], [2, 3], [4])):
        batches = [10 * number + batch for batch in window]
        steps += ["read", f"step begins: {batches}", "step", f"step ends at {3 * number + index + 1}"]
    return ["epoch begins", *steps, "epoch ends"]


def test_driver_is_called_in_order(driver):
    fit(driver)
    assert driver.events == ["optimizers", "train begins", *epoch(0), *epoch(1), "train ends"]


def test_driver_can_end_the_training(driver):
    """In mid-epoch: nothing more is read, and the ends are told."""
    driver.stop_after = 2
    fit(driver)
    assert driver.events == ["optimizers", "train begins", *epoch(0)[:9], "epoch ends", "train ends"]


def test_training_goes_on_in_mid_epoch(driver):
    driver.windows.start_at(1, 1)
    trainer = make_trainer()
    lightning_internals.start_at(trainer, epoch=1, window=1, global_step=4)
    with lightning_internals.quiet():
        trainer.fit(driver.module, lightning_internals.combined(driver.windows, training=True), [])
    assert driver.events == ["optimizers", "train begins", "epoch begins", *epoch(1)[5:], "train ends"]


class Order(Callback):
    """Writes into the driver's list what a Lightning callback sees."""

    def __init__(self, driver):
        self.driver = driver

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.driver.events.append(f"callback: {[int(part) for part in batch]}, {batch.items}, {batch.steps}")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.driver.events.append(f"callback: {type(outputs['loss']).__name__ if outputs else outputs}")


def test_lightning_callbacks_see_windows_and_losses(driver):
    fit(driver, callbacks=[Order(driver)], max_epochs=1)
    assert [event for event in driver.events if str(event).startswith("callback")] == [
        *("callback: [0, 1], 2, True", "callback: Tensor"),
        *("callback: [2, 3], 2, True", "callback: Tensor"),
        *("callback: [4], 1, True", "callback: Tensor"),
    ]


def test_a_step_may_have_no_loss(driver):
    step = driver.step
    driver.step = lambda window: step(window) and None
    fit(driver, max_epochs=1)
    assert driver.events == ["optimizers", "train begins", *epoch(0), "train ends"]


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_evaluation_goes_to_the_driver(driver, verb):
    """The very batches, in eval mode and without gradients; nothing else of the driver is called."""
    outputs = []
    callback = Callback()
    name = f"on_{verb.replace('validate', 'validation')}_batch_end"
    setattr(callback, name, lambda trainer, module, output, *args: outputs.append(output))
    batches = [["not", "a", "tensor"], {"x": torch.ones(1)}]
    trainer = make_trainer(limit_val_batches=1.0, callbacks=[callback])
    loader = Batches(2)
    loader.__class__ = type("Fixed", (Batches,), {"__iter__": lambda self: iter(batches)})
    with lightning_internals.quiet():
        getattr(trainer, verb)(driver.module, lightning_internals.combined(loader, training=False), verbose=False)
    assert driver.events == [("evaluation", batch, False, False) for batch in batches]
    assert all(event[1] is batch for event, batch in zip(driver.events, batches, strict=True))
    assert outputs == [{"seen": batch} for batch in batches]


@pytest.mark.parametrize("scheduled", [True, False])
def test_optimizer_and_scheduler_are_lightnings_too(scheduled):
    """So LearningRateMonitor and its like see them; without a scheduler there is none."""
    driver, seen = Recorder(torch.nn.Linear(1, 1), scheduled), []
    logger = DummyLogger()
    logger.log_metrics = lambda metrics, step: seen.append(metrics)
    with lightning_internals.quiet():
        callbacks = [LearningRateMonitor()] if scheduled else []
    trainer = fit(driver, callbacks=callbacks, logger=logger, log_every_n_steps=1, max_epochs=1)
    assert trainer.optimizers == [driver.optimizer]
    assert len(trainer.lr_scheduler_configs) == scheduled
    assert not scheduled or "lr-SGD" in seen[0]


def test_model_stays_on_its_device():
    """Lightning moves a module to the CPU at the end of a run; only this module refuses, the model inside moves."""
    driver = Recorder(torch.nn.Linear(1, 1, device="meta"))
    assert driver.module.cpu() is driver.module
    assert {parameter.device.type for parameter in driver.module.parameters()} == {"meta"}
    assert list(driver.module.parameters()) == list(driver.model.parameters())
    with pytest.raises(NotImplementedError, match="meta"):
        driver.model.cpu()


def test_lightning_asks_for_the_move_at_the_end(driver, monkeypatch):
    """Otherwise the refusal would refuse nothing."""
    asked = []
    monkeypatch.setattr(DrivenModule, "cpu", lambda self: asked.append(list(driver.events)) or self)
    fit(driver, max_epochs=1)
    assert asked
    assert asked[0][-1] == "train ends", "the model is still in place when the driver ends the training"


def test_name_of_the_running_hook_is_set_past_torch(driver, monkeypatch):
    """Lightning sets it some twenty times a step; it reads back right, and torch's checks are not run for it."""
    slow, names = [], set()
    usual = torch.nn.Module.__setattr__
    monkeypatch.setattr(torch.nn.Module, "__setattr__", lambda self, *args: slow.append(args[0]) or usual(self, *args))
    step_begin = driver.step_begin
    driver.step_begin = lambda window: names.add(driver.module._current_fx_name) or step_begin(window)
    fit(driver, max_epochs=1)
    assert names == {"on_train_batch_start"}
    assert driver.module._current_fx_name is None
    assert "_current_fx_name" in vars(driver.module)
    assert "_current_fx_name" not in slow
    assert slow, "the count sees other names"


@pytest.mark.parametrize("light", [True, False])
def test_light_steps_are_the_same_steps(driver, monkeypatch, light):
    """`fast_path.step_lightly` spares the look at the signature at every step, and changes nothing else."""
    looks = []
    usual = training_epoch_loop.is_param_in_hook_signature
    monkeypatch.setattr(
        training_epoch_loop,
        "is_param_in_hook_signature",
        lambda *args, **kwargs: looks.append(1) or usual(*args, **kwargs),
    )
    trainer = make_trainer()
    if light:
        fast_path.step_lightly(trainer)
    with lightning_internals.quiet():
        trainer.fit(driver.module, lightning_internals.combined(driver.windows, training=True), [])
    assert driver.events == ["optimizers", "train begins", *epoch(0), *epoch(1), "train ends"]
    assert len(looks) == (0 if light else 6)
    assert (trainer.current_epoch, trainer.global_step) == (2, 6)


def test_only_the_model_is_in_the_state(driver):
    assert set(driver.module.state_dict()) == {"model.weight", "model.bias"}
    assert not driver.module.automatic_optimization


def test_weights_are_those_of_the_loop_by_hand(driver):
    model = torch.nn.Linear(1, 1)
    model.load_state_dict(driver.model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = 1 / 3  # ConstantLR, which the driver does not step
    for window in ([0.0, 1.0], [2.0, 3.0], [4.0]):
        loss = sum(model(torch.tensor([batch])).sum() for batch in window) / len(window)
        loss.backward()
        optimizer.param_groups[0]["lr"] = 0.1 * scale
        optimizer.step()
        optimizer.zero_grad()
    fit(driver, max_epochs=1)
    assert torch.equal(driver.model.weight, model.weight)
    assert torch.equal(driver.model.bias, model.bias)
