"""Side effects of Lightning around a `fit` are kept from the script: messages, leftovers,
warnings, hooks.
"""

import gc
import logging
import sys
import types
import warnings
import weakref

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy

from helpers.lightning.plain_fit import Loader, Model, make_trainer, run
from lightrainer.lightning_modules.internals import fast_path, lightning_internals

NAMES = ("lightning.pytorch", "lightning.fabric")


@pytest.mark.parametrize("before", [logging.NOTSET, logging.INFO, logging.ERROR])
def test_quiet_restores_levels(monkeypatch, before):
    """Also after an error; and what the user made quieter stays so."""
    loggers = [logging.getLogger(name) for name in NAMES]
    for logger in loggers:
        monkeypatch.setattr(logger, "level", before)
    quieter = [max(before, logging.WARNING)] * 2

    def fail_quietly():
        with lightning_internals.quiet():
            assert [logger.level for logger in loggers] == quieter
            with lightning_internals.quiet():
                assert [logger.level for logger in loggers] == quieter
            assert [logger.level for logger in loggers] == quieter
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="middle"):
        fail_quietly()
    assert [logger.level for logger in loggers] == [before] * 2
    with lightning_internals.quiet(False):
        assert [logger.level for logger in loggers] == [before] * 2


@pytest.mark.parametrize("verb", ["fit", "validate", "test"])
@pytest.mark.parametrize("released", [True, False], ids=["released", "negative control"])
def test_release_lets_module_and_data_go(verb, released):
    """While the trainer lives on, as it does in the hands of a callback."""
    trainer, module, loader = make_trainer(), Model(), Loader()
    references = [weakref.ref(module), weakref.ref(loader)]
    run(trainer, module, verb, loader)
    if released:
        lightning_internals.release(trainer)
    del module, loader
    gc.collect()
    assert [reference() is None for reference in references] == [released] * 2


class LeanModel(fast_path.FastModule):
    """Manual optimization, and a count of the hooks around a batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.register_parameter("weight", torch.nn.Parameter(torch.zeros(1)))
        self.batches = []

    def training_step(self, batch, batch_idx):
        self.batches.append(batch)
        optimizer = self.optimizers()
        self.manual_backward((self.weight * batch).sum())
        optimizer.step()
        optimizer.zero_grad()

    def validation_step(self, batch, batch_idx):
        self.batches.append(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("verb", ["fit", "validate"])
def test_batches_of_a_lean_module_stay_where_they_are(verb):
    """The very objects that the loader gave."""
    module, batches = LeanModel(), [torch.ones(1), torch.ones(1)]
    loader = Loader()
    loader.__class__ = type("Fixed", (Loader,), {"__iter__": lambda self: iter(batches)})
    run(make_trainer(), module, verb, loader)
    assert [id(batch) for batch in module.batches] == [id(batch) for batch in batches]


def test_callbacks_may_log_in_hooks_that_are_called_for_them():
    calls = []

    class Hearing(Callback):
        def on_before_zero_grad(self, trainer, module, optimizer):
            calls.append((module._current_fx_name, optimizer))

    class Stepping(LeanModel):
        def training_step(self, batch, batch_idx):
            fast_path.call_callback_hooks(self.trainer, "on_before_zero_grad", "an optimizer")

    run(make_trainer(callbacks=[Hearing()]), Stepping())
    assert calls == [("on_before_zero_grad", "an optimizer")] * 2


@pytest.mark.parametrize("alone", [True, False], ids=["no launcher", "negative control"])
def test_strategy_without_a_launcher(monkeypatch, alone):
    """Lightning asks for one when a Trainer meets its strategy; in notebooks it refuses those
    that start programs.
    """
    strategy = DDPStrategy()
    trainer = make_trainer(
        strategy=lightning_internals.start_no_processes(strategy) if alone else strategy
    )
    assert (trainer.strategy.launcher is None) is alone


def test_deepspeed_hears_of_activation_checkpointing(monkeypatch):
    configured = {}
    checkpointing = types.SimpleNamespace(configure=lambda **options: configured.update(options))
    monkeypatch.setitem(
        sys.modules, "deepspeed", types.SimpleNamespace(checkpointing=checkpointing)
    )
    strategy = DeepSpeedStrategy.__new__(DeepSpeedStrategy)  # to make one takes DeepSpeed itself
    strategy.config = {"activation_checkpointing": {"cpu_checkpointing": True}}
    lightning_internals.configure_activation_checkpointing(strategy)
    assert configured["checkpoint_in_cpu"] is True


@pytest.mark.parametrize("light", [True, False])
def test_modes_are_left_to_light_steps(recwarn, light):
    """Lightning looks at every module when a training begins, and warns of those in eval mode;
    light steps handle the modes themselves.
    """
    warnings.simplefilter("always")
    module = LeanModel()
    module.model = torch.nn.Linear(1, 1).eval()
    trainer = make_trainer()
    if light:
        fast_path.use_fast_loops(trainer)
    run(trainer, module)
    assert (
        any("in eval mode at the start" in str(warning.message) for warning in recwarn.list)
        is not light
    )
