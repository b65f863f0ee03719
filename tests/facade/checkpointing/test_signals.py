"""A training that is asked to stop can be resumed. Real signals to real processes."""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from transformers import trainer_jit_checkpoint

from helpers import HELPERS
from helpers.checkpoints.signals_script import SCENARIOS
from helpers.processes.starting import finished_ranks, forked_ranks
from helpers.trainer.tiny_trainings import At, make_trainer, points, with_trainer_in_callbacks
from lightrainer import Trainer, get_last_checkpoint
from lightrainer.callbacks import JITCheckpointCallback, TrainerControl, jit_checkpoint
from lightrainer.facade.checkpointing.saving import CheckpointSaver
from lightrainer.lightning_modules.checkpoints import list_checkpoints, problems
from lightrainer.lightning_modules.common.worker_processes import ignore_signals

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="forks trainings, or sends POSIX signals"
)
SCRIPTS = HELPERS / "checkpoints"


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """One process forks all the trainings, since importing takes longer than training."""
    folder = tmp_path_factory.mktemp("signals")
    options = {"log": folder / "log.txt", "seconds": 600, "processes": 0}
    return json.loads(
        finished_ranks(SCRIPTS / "signals_script.py", str(folder), **options).splitlines()[-1]
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_signal_resumption_is_exact(reports, name):
    """It exits with an error, leaves a checkpoint of that step, and ends as one never stopped
    does, logs included.
    """
    report, scenario = reports[name], SCENARIOS[name]
    assert report["code"] == scenario.code
    assert not report["came to the end"], "what follows train() in the script was run"
    # While a checkpoint is written it is a matter of speed whether the signal comes before the next
    # step.
    assert report["last"] in (range(4, 12) if scenario.renames else {scenario.step})
    assert report["hidden"] == []
    assert report["resumed"] == 0
    assert report["weights"], "the weights differ from those of the uninterrupted training"
    assert report["history"], "the logs differ from those of the uninterrupted training"


GROUPS = [(signal.SIGTERM, "on"), (signal.SIGTERM, "spawn"), (signal.SIGTERM, "off")]
GROUPS += [(signal.SIGINT, "on"), (signal.SIGINT, "off")]


@pytest.mark.parametrize(("number", "how"), GROUPS, ids=lambda value: getattr(value, "name", value))
def test_signal_to_the_process_group(tmp_path, number, how):
    """As batch systems and terminals send it: workers that read data get it as well. Turned off,
    it kills as usual.
    """
    options = {
        "log": tmp_path / "log.txt",
        "seconds": 300,
        "processes": 0,
        "PYTHONWARNINGS": "ignore",
    }
    (code,), output = forked_ranks(
        SCRIPTS / "signalled_group_script.py", str(tmp_path), how, str(int(number)), **options
    )
    last = get_last_checkpoint(tmp_path)
    interrupted = number == signal.SIGINT
    # Python dies of a KeyboardInterrupt by the signal; with 1 if an exit handler runs code, as one
    # of torch's may.
    codes = {-number, 1} if interrupted else {128 + number if how != "off" else -number}
    assert code in codes, output[-3000:]
    if how == "off":
        assert last is None
        return
    lines = [
        line
        for line in output.split("\n")
        if line in ("interrupted", "finally", "left in order", "done")
    ]
    assert lines == ["interrupted"] * interrupted + ["finally", "left in order"]
    assert last is not None
    assert f"{number.name}: training stops at step {last.rpartition('-')[2]}" in output
    assert ("press Ctrl-C again" in output) == interrupted


@pytest.fixture
def _handlers():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def asking(folder, step=2, **changes):
    """A trainer whose training gets a SIGTERM at the end of a step."""
    ask = At("on_step_end", lambda *_: signal.raise_signal(signal.SIGTERM), step)
    return with_trainer_in_callbacks(
        make_trainer(folder, enable_jit_checkpoint=True, callbacks=[ask], **changes)
    )


@pytest.mark.usefixtures("_handlers")
def test_signal_is_passed_to_the_previous_handler(tmp_path):
    """And is back in its place; `train` returns, as it has not ended the process."""
    calls = []

    def handler(number, frame):
        calls.append((number, sorted(path.name for path in tmp_path.iterdir())))

    signal.signal(signal.SIGTERM, handler)
    trainer = asking(tmp_path)
    assert trainer.train().global_step == 2
    assert calls == [(signal.SIGTERM, ["checkpoint-2"])]
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize("ending", ["exit", "error", "interrupt", "plain"])
def test_handlers_are_as_before_however_it_ends(tmp_path, ending):
    """Also after an error, and after Ctrl-C, which goes its usual way."""

    def end(of, state, control):
        if ending == "exit":
            signal.raise_signal(signal.SIGTERM)
        if ending == "error":
            raise ZeroDivisionError
        if ending == "interrupt":
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    during = []
    watch = At("on_step_begin", lambda *_: during.append(signal.getsignal(signal.SIGTERM)))
    trainer = with_trainer_in_callbacks(
        make_trainer(
            tmp_path, enable_jit_checkpoint=True, callbacks=[watch, At("on_step_end", end, 2)]
        )
    )
    raised = {"exit": SystemExit, "error": ZeroDivisionError, "interrupt": KeyboardInterrupt}.get(
        ending
    )
    with contextlib.nullcontext() if raised is None else pytest.raises(raised) as error:
        trainer.train()
    assert ending != "exit" or error.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.SIG_DFL not in during


@pytest.mark.usefixtures("_handlers")
def test_signal_leaves_the_trainer_usable(tmp_path):
    """Nothing of the signal is left behind."""
    trainer = asking(tmp_path)
    with pytest.raises(SystemExit):
        trainer.train()
    trainer.callback_handler.callbacks = [
        callback for callback in trainer.callback_handler.callbacks if not isinstance(callback, At)
    ]
    assert trainer.train(resume_from_checkpoint=True).global_step == 4


BOTH = {signal.SIGTERM, signal.SIGINT}


def heard(of):
    """Return the signals of the two that a training takes over."""
    before, signals = {number: signal.getsignal(number) for number in BOTH}, set()
    look = lambda *_: signals.update(
        number for number in BOTH if signal.getsignal(number) is not before[number]
    )
    watch = At("on_step_begin", look)
    of.add_callback(watch)
    of.train()
    of.remove_callback(watch)
    assert {number: signal.getsignal(number) for number in BOTH} == before
    return signals


def test_plain_trainers_to_what(tmp_path):
    """Where checkpoints are written; it can be turned on and off between two trainings, and
    shows in no list.
    """
    trainer = make_trainer(tmp_path)
    assert heard(trainer) == set(), "save_strategy is 'no'"
    listed = trainer.callback_handler.callback_list
    trainer.args.save_strategy = "epoch"
    assert heard(trainer) == BOTH
    for signals in ({signal.SIGINT}, set()):
        trainer.checkpoint_on_signals = tuple(signals)
        assert heard(trainer) == signals
    trainer.args.enable_jit_checkpoint = True
    assert heard(trainer) == {signal.SIGTERM}
    assert trainer.callback_handler.callback_list == f"{listed}\nJITCheckpointCallback"
    trainer.args.enable_jit_checkpoint = False
    assert heard(trainer) == set()
    assert trainer.callback_handler.callback_list == listed


def test_signal_of_another_listening_callback_is_left_to_it(tmp_path):
    """As with one for the signal by which a batch system announces the end; a second listener
    would be one too many.
    """
    signals = []
    look = At(
        "on_step_begin",
        lambda of, *_: signals.append(
            [listener.signals for listener in of._lightrainer.signals.listeners()]
        ),
    )
    mine = JITCheckpointCallback((signal.SIGTERM, signal.SIGUSR1))
    with_trainer_in_callbacks(
        make_trainer(tmp_path, save_strategy="epoch", callbacks=[mine, look])
    ).train()
    assert signals[0] == [(signal.SIGTERM, signal.SIGUSR1), (signal.SIGINT,)]


@pytest.mark.parametrize("number", sorted(BOTH))
def test_workers_leave_a_signal_to_a_training_that_listens(number):
    """And die of it otherwise: torch ends workers that are stuck in a sample so."""
    listens = torch.zeros(1, dtype=torch.bool).share_memory_()
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    for listening in (True, False):
        listens.fill_(listening)
        ready.clear()
        worker = context.Process(target=deaf, args=(listens, ready), daemon=True)
        worker.start()
        assert ready.wait(30)
        os.kill(worker.pid, number)
        worker.join(0.3 if listening else 10)
        assert worker.is_alive() == listening
        worker.kill()
        worker.join()


def deaf(listens, ready):
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open to the end
    ignore_signals(0, signals=BOTH, listens=listens)
    ready.set()
    while True:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("number", "asked_for"),
    [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)],
)
def test_ignored_signals_stay_ignored_unless_it_was_asked_for(tmp_path, number, asked_for):
    """As `nohup` and shells want it of what runs in the background."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        send = At("on_step_end", lambda *_: signal.raise_signal(number), 2)
        trainer = make_trainer(
            tmp_path, save_strategy="epoch", callbacks=[send], enable_jit_checkpoint=asked_for
        )
        assert trainer.train().global_step == (2 if asked_for else 4)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_signal_in_an_evaluation_saves_to_disk_first(tmp_path):
    """Also one that the background would write; Ctrl-C then ends the evaluation at once."""
    steps = []

    def press(of, state, control):
        steps.append(state.global_step)
        signal.raise_signal(signal.SIGINT)

    options = {
        "save_strategy": "epoch",
        "eval_strategy": "steps",
        "eval_steps": 2,
        "eval_dataset": points(40, seed=2),
    }
    trainer = with_trainer_in_callbacks(
        make_trainer(tmp_path, callbacks=[At("on_prediction_step", press)], **options)
    )
    trainer.background_checkpoints = 0
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert steps == [2], "ten batches are in the evaluation"
    assert problems(tmp_path / "checkpoint-2") == []


@pytest.mark.parametrize("asked_for", [True, False])
def test_signals_in_another_thread_warn_and_train(tmp_path, caplog, asked_for):
    """Python gives signals to the main thread only; without the argument there is nothing to
    say.
    """
    caplog.set_level("WARNING", logger="lightrainer")
    before = signal.getsignal(signal.SIGTERM)
    trainer = make_trainer(tmp_path, enable_jit_checkpoint=asked_for, save_strategy="epoch")
    thread = threading.Thread(target=trainer.train)
    thread.start()
    thread.join(60)
    assert trainer.state.global_step == 4
    assert ("main thread" in caplog.text) == asked_for
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("_handlers")
def test_signal_ends_a_forked_process_normally(tmp_path):
    """One that a script forks off in the middle of a training inherits the handler, and must not
    hear it.
    """
    statuses = []

    def fork(of, state, control):
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    with_trainer_in_callbacks(
        make_trainer(tmp_path, enable_jit_checkpoint=True, callbacks=[At("on_step_end", fork, 1)])
    ).train()
    assert statuses == [-signal.SIGTERM]


@pytest.mark.usefixtures("_handlers")
def test_signal_checkpoint_is_not_rotated_away(tmp_path):
    """With `save_total_limit=1` only the best is kept at the end of a training, of which this is
    not the end.
    """
    best = {
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        "greater_is_better": True,
    }
    saving = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = asking(
        tmp_path,
        3,
        **best,
        **saving,
        save_total_limit=1,
        learning_rate=1e-3,
        train_dataset=points(32),
    )
    with pytest.raises(SystemExit):
        trainer.train()
    assert trainer.state.best_global_step == 1
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {
        "checkpoint-1",
        "checkpoint-3",
    }


# --- what subclasses of the reference's callback ask and tell


@pytest.mark.parametrize(
    "module", [trainer_jit_checkpoint, jit_checkpoint], ids=["reference", "ours"]
)
@pytest.mark.parametrize(
    "hook", ["on_step_begin", "on_pre_optimizer_step", "on_step_end", "on_epoch_end"]
)
def test_signal_manager_of_the_script_is_obeyed_at_once(tmp_path, monkeypatch, module, hook):
    """It waits, asks, and saves as its methods say; the hooks of the callback ask it."""
    monkeypatch.setattr(
        threading,
        "Timer",
        lambda seconds, then: waits.append(seconds) or SimpleNamespace(start=then),
    )
    waits, saved, control = [], [], TrainerControl(should_save=True)
    trainer = make_trainer(tmp_path, enable_jit_checkpoint=True, max_steps=1)
    monkeypatch.setattr(trainer, "_save_checkpoint", lambda model, trial: saved.append(model))
    before = signal.getsignal(signal.SIGTERM)
    callback = module.JITCheckpointCallback()
    callback.jit_manager = manager = module.CheckpointManager(trainer, kill_wait=2)
    manager.setup_signal_handler()
    callback.on_train_begin(trainer.args, trainer.state, control)
    getattr(callback, hook)(trainer.args, trainer.state, control)
    assert not control.should_training_stop
    signal.raise_signal(signal.SIGTERM)
    assert waits == [2]
    assert manager.is_checkpoint_requested
    getattr(callback, hook)(trainer.args, trainer.state, control)
    assert saved == [trainer.model]
    assert not manager.is_checkpoint_requested
    assert control.should_training_stop
    assert control.should_save is (hook in ("on_step_begin", "on_pre_optimizer_step"))
    assert manager._original_sigterm_handler is before
    callback.on_train_end(trainer.args, trainer.state, control)
    assert signal.getsignal(signal.SIGTERM) is before


def test_execute_jit_checkpoint_waits_until_the_checkpoint_is_on_the_disk(tmp_path, monkeypatch):
    """The process may be killed right after it."""
    events = []
    original = CheckpointSaver.finish_writing

    def finish_writing(self, *, flushed=False):
        events.append("flushed" if flushed else "written")
        original(self, flushed=flushed)

    monkeypatch.setattr(CheckpointSaver, "finish_writing", finish_writing)
    listener = JITCheckpointCallback()

    def save(*_):
        listener.jit_manager.execute_jit_checkpoint()
        events.append("saved")

    callbacks = [listener, At("on_step_end", save, 2)]
    trainer = with_trainer_in_callbacks(
        make_trainer(
            tmp_path, callbacks=callbacks, save_strategy="steps", enable_jit_checkpoint=True
        )
    )
    listener.set_trainer(trainer)
    trainer.train()
    assert events[:2] == ["flushed", "saved"]


@pytest.mark.parametrize(
    "module", [trainer_jit_checkpoint, jit_checkpoint], ids=["reference", "ours"]
)
def test_checkpoint_manager_marks_an_incomplete_checkpoint(tmp_path, monkeypatch, module):
    """The mark of transformers stays in the folder of a checkpoint that could not be written, which
    is skipped, and goes with the one that could.
    """
    trainer = with_trainer_in_callbacks(make_trainer(tmp_path, save_strategy="steps", save_steps=2))
    trainer.train()
    manager = module.CheckpointManager(trainer)
    trainer.state.global_step = 7
    manager.execute_jit_checkpoint()
    assert problems(tmp_path / "checkpoint-7") == []
    assert not (tmp_path / "checkpoint-7" / "checkpoint-is-incomplete.txt").exists()

    def fail(model, trial):
        raise OSError("gone")

    monkeypatch.setattr(trainer, "_save_checkpoint", fail)
    trainer.state.global_step = 9
    with pytest.raises(OSError, match="gone"):
        manager.execute_jit_checkpoint()
    assert os.listdir(tmp_path / "checkpoint-9") == ["checkpoint-is-incomplete.txt"]
    assert problems(tmp_path / "checkpoint-9") != []


def test_signal_while_the_best_model_is_loaded_saves_nothing(tmp_path):
    """A checkpoint of the last step would have the weights of the best one."""

    class Terminated(Trainer):
        def _load_best_model(self):
            super()._load_best_model()
            signal.raise_signal(signal.SIGTERM)

    best = {"metric_for_best_model": "loss", "greater_is_better": True}
    saving = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "best"}
    trainer = make_trainer(tmp_path, cls=Terminated, load_best_model_at_end=True, **best, **saving)
    with pytest.raises(SystemExit):
        trainer.train()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-2"]
