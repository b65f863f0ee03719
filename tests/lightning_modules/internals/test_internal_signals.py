"""Signals and interrupts reach the script that trains as if Lightning were not there."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from plain_fit import Model, make_trainer, run

from lightrainer.lightning_modules.internals import lightning_internals


@pytest.fixture
def _sigint():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("verb", ["fit", "validate", "test"])
@pytest.mark.parametrize("alone", [True, False], ids=["left alone", "negative control"])
def test_handlers_during_a_run(verb, alone):
    """They are the script's own, where Lightning would put its own in the place of SIGTERM's."""
    trainer, seen = make_trainer(), []
    if alone:
        lightning_internals.leave_signals_alone(trainer)
    before = signal.getsignal(signal.SIGTERM)
    run(trainer, Model(lambda: seen.append(signal.getsignal(signal.SIGTERM))), verb)
    assert seen
    assert all((handler is before) == alone for handler in seen)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("alone", [True, False], ids=["left alone", "negative control"])
def test_processes_do_not_ask_each_other_for_signals(monkeypatch, alone):
    """Lightning would at every step, which is a broadcast and a wait for the device."""
    trainer, asked = make_trainer(), []
    monkeypatch.setattr(Trainer, "world_size", property(lambda self: 2))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda *args, **kwargs: asked.append(args))
    if alone:
        lightning_internals.leave_signals_alone(trainer)
    run(trainer, Model())
    assert len(asked) == (0 if alone else 2)


@pytest.fixture
def training():
    """A script that trains until a signal comes."""
    process = subprocess.Popen(
        [sys.executable, Path(__file__).parents[1] / "fit_under_signals.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
    )
    yield process
    process.kill()
    process.communicate()


def wait_for(process, line):
    for seen in process.stdout:
        if seen.strip() == line:
            return
    pytest.fail(f"{line!r} was not said: {process.stderr.read()}")


def test_signals_reach_a_training_script(training):
    """`except KeyboardInterrupt` sees the first SIGINT, the next one is not ignored, and a SIGTERM kills.

    As it kills any process, so that schedulers see it; Lightning alone would exit with 0.
    """
    wait_for(training, "training")
    training.send_signal(signal.SIGINT)
    wait_for(training, "first interrupt")
    training.send_signal(signal.SIGINT)
    wait_for(training, "second interrupt")
    wait_for(training, "training")
    training.send_signal(signal.SIGTERM)
    training.communicate(timeout=240)
    assert training.returncode == -signal.SIGTERM


def interrupt():
    raise KeyboardInterrupt("from the keyboard")


@pytest.mark.usefixtures("_sigint")
@pytest.mark.parametrize("handler", [signal.default_int_handler, lambda number, frame: interrupt()])
def test_interrupt_comes_out_as_it_is(handler):
    """And the handler is the script's own again."""
    signal.signal(signal.SIGINT, handler)
    trainer = make_trainer()
    lightning_internals.leave_signals_alone(trainer)
    with pytest.raises(KeyboardInterrupt, match="from the keyboard"), lightning_internals.interruptible():
        run(trainer, Model(interrupt))
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.usefixtures("_sigint")
def test_interrupt_under_lightning_alone():
    """Negative control: it becomes an exit, and later ones are ignored."""
    trainer = make_trainer()
    lightning_internals.leave_signals_alone(trainer)
    with pytest.raises(SystemExit):
        run(trainer, Model(interrupt))
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def exit_with_three():
    sys.exit(3)


def exit_with_three_on_interrupt():
    try:
        interrupt()
    except KeyboardInterrupt:
        sys.exit(3)


@pytest.mark.usefixtures("_sigint")
@pytest.mark.parametrize("leave", [exit_with_three, exit_with_three_on_interrupt])
def test_exit_of_the_script_itself_is_left_alone(leave):
    """Also where a callback answers an interrupt with an exit code of its own."""
    with pytest.raises((SystemExit, KeyboardInterrupt)) as error, lightning_internals.interruptible():
        run(make_trainer(), Model(leave))
    assert (error.type, getattr(error.value, "code", None)) == (SystemExit, 3)


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError), lightning_internals.interruptible():
        run(make_trainer(), Model(lambda: 1 / 0))
