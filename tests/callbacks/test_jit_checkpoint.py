"""The callback alone, driven by hand: it listens to signals, and answers through the control."""

import signal
from types import SimpleNamespace

import pytest

from helpers.processes.starting import finished_ranks
from lightrainer.callbacks import JITCheckpointCallback, TrainerControl, TrainerState
from lightrainer.callbacks.checkpoint_manager import CheckpointManager

ARGUMENTS = SimpleNamespace(save_only_model=False)


@pytest.fixture
def callback():
    listener = JITCheckpointCallback([signal.SIGUSR1])
    yield listener
    listener.stop_listening()


def ask():
    signal.raise_signal(signal.SIGUSR1)


def at(callback, event, control=None, **state):
    """Fire an event and return the control."""
    control = control or TrainerControl()
    getattr(callback, event)(ARGUMENTS, TrainerState(max_steps=100, **state), control)
    return control


def switches(control):
    return [name for name, value in vars(control).items() if value]


SAVE_AND_STOP = ["should_training_stop", "should_save"]


def test_jit_checkpoint_signal_saves_at_the_end_of_the_step(callback):
    """And nothing happens without one."""
    at(callback, "on_train_begin")
    for event in ("on_step_end", "on_epoch_end", "on_evaluate", "on_save", "on_prediction_step"):
        assert switches(at(callback, event, global_step=3, epoch=0.5)) == []
    ask()
    assert switches(at(callback, "on_step_begin", global_step=3)) == []
    assert switches(at(callback, "on_step_end", global_step=3, epoch=0.5)) == SAVE_AND_STOP
    assert callback.is_stopping


def test_jit_checkpoint_saves_after_the_end_of_an_epoch(callback):
    """Events due there stay due; they would be missing in a training resumed from the step."""
    at(callback, "on_train_begin")
    ask()
    assert switches(at(callback, "on_step_end", global_step=4, epoch=1.0)) == []
    control = at(
        callback, "on_epoch_end", TrainerControl(should_evaluate=True), global_step=4, epoch=1.0
    )
    assert switches(control) == [*SAVE_AND_STOP, "should_evaluate"]


def test_jit_checkpoint_signal_survives_a_restart_of_the_training(callback):
    """As with auto_find_batch_size: the signal came, whatever became of the attempt. A new one
    has.
    """
    at(callback, "on_train_begin")
    ask()
    at(callback, "on_train_begin")
    assert switches(at(callback, "on_step_end", global_step=1, epoch=0.1)) == SAVE_AND_STOP
    at(callback, "on_train_end", global_step=1)
    at(callback, "on_train_begin")
    assert switches(at(callback, "on_step_end", global_step=2, epoch=0.2)) == []


def test_after_a_stop_within_an_epoch_nothing_is_due_at_its_end(callback):
    at(callback, "on_train_begin")
    ask()
    at(callback, "on_step_end", global_step=3, epoch=0.75)
    control = at(
        callback,
        "on_epoch_end",
        TrainerControl(should_evaluate=True, should_log=True, should_save=True),
    )
    assert switches(control) == []


def test_jit_checkpoint_reuses_a_checkpoint_that_is_due(callback):
    """Unless it holds weights only."""
    at(callback, "on_train_begin")
    ask()
    models_only = SimpleNamespace(save_only_model=True)
    control, state = TrainerControl(), TrainerState(global_step=3, epoch=0.5)
    callback.on_save(models_only, state, control)
    assert switches(control) == []
    callback.on_save(ARGUMENTS, state, control)
    assert switches(control) == ["should_training_stop"]


def test_jit_checkpoint_in_an_evaluation_saves_before_and_after_it():
    saved = []
    callback = JITCheckpointCallback(
        [signal.SIGUSR1], save=lambda: saved.append(callback.is_stopping)
    )
    at(callback, "on_train_begin")
    ask()
    for _ in range(3):
        assert switches(at(callback, "on_prediction_step", global_step=3)) == []
    assert saved == [True]
    assert not callback.is_stopping
    assert switches(at(callback, "on_evaluate", global_step=3, epoch=0.5)) == SAVE_AND_STOP
    callback.stop_listening()


def test_jit_checkpoint_does_not_stop_the_training_after_a_failed_save(callback):
    """As of an evaluation whose error the script catches."""

    def save():
        raise OSError("the disk is full")

    callback.save = save
    at(callback, "on_train_begin")
    with pytest.raises(OSError, match="the disk is full"):
        callback.save_now(TrainerState(max_steps=100, global_step=3))
    assert not callback.is_stopping


@pytest.mark.parametrize("saved_before", [True, False])
def test_jit_checkpoint_signal_after_the_last_step_saves(saved_before):
    saved = []
    callback = JITCheckpointCallback([signal.SIGUSR1], save=lambda: saved.append(1))
    at(callback, "on_train_begin")
    if saved_before:
        at(callback, "on_save", global_step=100, epoch=1.0)
    ask()
    at(callback, "on_train_end", global_step=100, epoch=1.0)
    assert len(saved) == (not saved_before)
    assert not callback.is_listening


@pytest.fixture
def _sigint():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_sigint")
def test_jit_checkpoint_second_ctrl_c_interrupts_at_once(capfd):
    """And what comes at the first one says so; the end of the training then is not that of a
    signal.
    """
    callback = JITCheckpointCallback([signal.SIGINT], save=lambda: None)
    at(callback, "on_train_begin")
    signal.raise_signal(signal.SIGINT)
    assert "press Ctrl-C again" in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert switches(at(callback, "on_step_end", global_step=3, epoch=0.5)) == []
    callback.raise_received_signal()


TOGETHER = """
import signal, sys
from pathlib import Path
from types import SimpleNamespace
import torch.distributed as dist
from lightrainer.callbacks import JITCheckpointCallback, TrainerControl, TrainerState, _signal_exchange

dist.init_process_group("gloo")
rank = dist.get_rank()

def trained(milliseconds, asked_at):
    callback, control = JITCheckpointCallback(), TrainerControl()
    state = TrainerState(max_steps=1000, is_world_process_zero=rank == 0)
    seconds = (milliseconds / 1024, milliseconds / 512)[rank]
    _signal_exchange.time = SimpleNamespace(perf_counter=lambda: state.global_step * seconds)
    callback.on_train_begin(None, state, control)
    while not control.should_training_stop and state.global_step < 300:
        state.global_step += 1
        state.epoch = state.global_step / 1000
        if state.global_step == asked_at and rank == 0:
            signal.raise_signal(signal.SIGTERM)
        callback.on_step_end(None, state, control)
    callback.on_train_end(None, state, control)
    return f"{state.global_step} {control.should_save} {callback.received_signal}"

text = "\\n".join(trained(*case) for case in ((32, 5), (1, 5), (1, 100)))
(Path(sys.argv[1]) / f"{rank}.txt").write_text(text)
dist.destroy_process_group()
"""


def test_jit_checkpoint_stops_all_ranks_at_the_same_step(tmp_path):
    """The others learn of the signal at the next step; if steps are short, at the first one after
    about 25 milliseconds.

    The clock counts steps; those of the second process take twice as long. Steps of a millisecond
    are counted off in 2, 4, 8 and then 12, so a message after step 111 is received at the next.
    """
    script = tmp_path / "script.py"
    script.write_text(TOGETHER)
    finished_ranks(script, str(tmp_path), log=tmp_path / "log", seconds=60)
    for rank in (0, 1):
        lines = (tmp_path / f"{rank}.txt").read_text().split("\n")
        assert lines == [f"{step} True {int(signal.SIGTERM)}" for step in (6, 8, 112)]


def test_jit_checkpoint_manager_stops_without_a_signal(callback):
    """In a training it saves at the end of the step, and no signal is passed on."""
    args = SimpleNamespace(enable_jit_checkpoint=True)
    callback.set_trainer(SimpleNamespace(args=args))
    at(callback, "on_train_begin")
    callback.jit_manager.is_checkpoint_requested = True
    assert switches(at(callback, "on_step_end", global_step=3, epoch=0.5)) == SAVE_AND_STOP
    at(callback, "on_train_end", global_step=3, epoch=0.5)
    callback.raise_received_signal()
    assert not callback.jit_manager.is_checkpoint_requested


@pytest.mark.parametrize(
    "hook", ["on_step_begin", "on_pre_optimizer_step", "on_step_end", "on_epoch_end"]
)
def test_jit_checkpoint_manager_saves_at_once_outside_of_a_training(callback, hook):
    """As scripts and tests of transformers drive the callback by hand."""
    saved = []
    callback.set_trainer(
        SimpleNamespace(
            args=SimpleNamespace(enable_jit_checkpoint=True),
            state=TrainerState(global_step=3),
            model="model",
            _save_checkpoint=lambda model, trial: saved.append((model, trial)),
        )
    )
    manager = callback.jit_manager
    assert isinstance(manager, CheckpointManager)
    control = at(callback, hook, TrainerControl(should_save=True), global_step=3, epoch=0.5)
    assert (saved, switches(control)) == ([], ["should_save"])

    manager.is_checkpoint_requested = True
    at(callback, hook, control, global_step=3, epoch=0.5)
    assert saved == [("model", None)]
    assert control.should_training_stop
    assert control.should_save is (hook in ("on_step_begin", "on_pre_optimizer_step"))
    assert not manager.is_checkpoint_requested


def test_jit_checkpoint_restores_the_handler_of_its_manager(callback):
    callback.set_trainer(SimpleNamespace(args=SimpleNamespace(enable_jit_checkpoint=True)))
    before = signal.getsignal(signal.SIGTERM)
    callback.jit_manager._original_sigterm_handler = signal.default_int_handler
    try:
        at(callback, "on_train_end")
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
