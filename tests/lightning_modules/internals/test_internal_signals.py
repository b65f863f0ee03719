"""Signals and interrupts reach the script that trains as if Lightning were not there."""

import signal

import pytest
import torch
from lightning.pytorch import Trainer

from helpers.lightning.plain_fit import Model, make_trainer, run
from lightrainer.lightning_modules.internals import lightning_internals


@pytest.mark.parametrize("verb", ["fit", "validate", "test"])
@pytest.mark.parametrize("alone", [True, False], ids=["left alone", "negative control"])
def test_handlers_during_a_run(verb, alone):
    """They are the script's own, where Lightning would put its own in the place of SIGTERM's."""
    trainer, handlers = make_trainer(), []
    if alone:
        lightning_internals.keep_signal_handlers(trainer)
    before = signal.getsignal(signal.SIGTERM)
    run(trainer, Model(lambda: handlers.append(signal.getsignal(signal.SIGTERM))), verb)
    assert handlers
    assert all((handler is before) == alone for handler in handlers)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("alone", [True, False], ids=["left alone", "negative control"])
def test_processes_do_not_ask_each_other_for_signals(monkeypatch, alone):
    """Lightning would at every step, which is a broadcast and a wait for the device."""
    trainer, broadcasts = make_trainer(), []
    monkeypatch.setattr(Trainer, "world_size", property(lambda self: 2))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(
        torch.distributed, "broadcast", lambda *args, **kwargs: broadcasts.append(args)
    )
    if alone:
        lightning_internals.keep_signal_handlers(trainer)
    run(trainer, Model())
    assert len(broadcasts) == (0 if alone else 2)
