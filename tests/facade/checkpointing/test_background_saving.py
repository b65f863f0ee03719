"""Periodic checkpoints are written while the training continues; callbacks and overrides that read
them find them.
"""

import gc
import os
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from helpers.trainer.tiny_trainings import (
    At,
    files,
    make_trainer,
    same_bits,
    trained_trainer,
    weights,
)
from lightrainer import Trainer, TrainerCallback
from lightrainer.facade.checkpointing import saving
from lightrainer.lightning_modules.checkpoints import BackgroundWriter, disk, problems, writing
from lightrainer.lightning_modules.checkpoints.writing import Snapshot

EVERY_STEP = {"save_strategy": "steps", "save_steps": 1}


class Free(NamedTuple):
    free: int


@pytest.fixture
def threads(monkeypatch):
    """The names of the threads that wrote weights."""
    names: list[str] = []
    inner = writing.save_weights

    def noted(*args, **kwargs):
        names.append(threading.current_thread().name.partition("_")[0])
        return inner(*args, **kwargs)

    monkeypatch.setattr(writing, "save_weights", noted)
    return names


class Watching(TrainerCallback):
    """Looks at the checkpoint when it hears of it."""

    def on_save(self, args, state, control, **kwargs):
        is_written = Path(
            args.output_dir, f"checkpoint-{state.global_step}", "model.safetensors"
        ).exists()
        assert is_written or not getattr(self, "reads_checkpoints", True)


def require_checkpoint(trainer):
    """Fail unless the checkpoint of the current step is complete."""
    step = trainer.state.global_step
    assert problems(Path(trainer.args.output_dir, f"checkpoint-{step}")) == []


class ReadsAfterStep(Trainer):
    """Reads the checkpoint that the step has written."""

    def _maybe_log_save_evaluate(self, *args, **kwargs):
        super()._maybe_log_save_evaluate(*args, **kwargs)
        require_checkpoint(self)


class SavesInStep(Trainer):
    """Writes a checkpoint itself in each step, and reads it."""

    def training_step(self, *args, **kwargs):
        self._save_checkpoint(self.model, None)
        require_checkpoint(self)
        return super().training_step(*args, **kwargs)


class Saves(Trainer):
    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        assert Path(output_dir, "model.safetensors").exists()


def test_background_saving_completes_before_train_returns(tmp_path, threads):
    """The last one is written without a copy, because no step follows."""
    make_trainer(tmp_path / "out", **EVERY_STEP).train()
    assert threads == ["checkpoint-writer"] * 3 + ["MainThread"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"checkpoint-{step}" for step in (1, 2, 3, 4)
    ]


def test_background_checkpoints_hold_what_was_when_they_were_due(tmp_path, monkeypatch):
    """Written as late as can be, against written at once: the same, bit for bit."""
    held: list[threading.Event] = []
    start = BackgroundWriter.start

    def late(self, files, *args, **kwargs):
        held.append(threading.Event())
        files._jobs.insert(0, held[-1].wait)
        start(self, files, *args, **kwargs)

    monkeypatch.setattr(BackgroundWriter, "start", late)
    let_go = At("on_step_end", lambda *_: held and held[-1].set())
    trainer = make_trainer(
        tmp_path / "late", save_strategy="steps", save_steps=2, callbacks=[let_go]
    )
    trainer.add_callback(At("on_train_end", lambda *_: None))
    make_room = BackgroundWriter.make_room
    monkeypatch.setattr(
        BackgroundWriter,
        "make_room",
        lambda self, *limits: (held and held[-1].set(), make_room(self, *limits)),
    )
    trainer.train()
    now = make_trainer(tmp_path / "now", save_strategy="steps", save_steps=2)
    now.background_checkpoints = None
    now.train()
    assert len(held) == 1  # the last one is not written later
    for step in (2, 4):
        left, right = (tmp_path / kind / f"checkpoint-{step}" for kind in ("late", "now"))
        assert same_bits(
            load_file(left / "model.safetensors"), load_file(right / "model.safetensors")
        )
        assert (left / "rng_state.pth").read_bytes() == (right / "rng_state.pth").read_bytes()
        first, second = (torch.load(folder / "optimizer.pt")["state"] for folder in (left, right))
        assert all(same_bits(first[key], second[key]) for key in first)
    assert same_bits(weights(trainer.model), weights(now.model))


def test_background_saving_frees_its_copies_when_train_returns(tmp_path):
    trainer = make_trainer(tmp_path, save_strategy="steps", save_steps=1)
    copies = []
    trainer.add_callback(At("on_step_end", lambda *_: copies.append(tensors_of_copies())))
    trainer.train()
    gc.collect()
    assert max(copies) > 0
    assert tensors_of_copies() == 0


def tensors_of_copies():
    """Count the tensors that copies of checkpoints hold."""
    snapshots = [each for each in gc.get_objects() if isinstance(each, Snapshot)]
    return sum(len(snapshot._memory) for snapshot in snapshots)


@pytest.mark.parametrize(("reads", "thread"), [(True, "MainThread"), (False, "checkpoint-writer")])
def test_background_saving_callback_finds_the_files(tmp_path, threads, reads, thread):
    kind = type("Kind", (Watching,), {"reads_checkpoints": reads})
    make_trainer(tmp_path / "out", callbacks=[kind()], **EVERY_STEP).train()
    assert threads == [thread] * 3 + ["MainThread"]


@pytest.mark.parametrize("cls", [Saves, ReadsAfterStep])
def test_background_saving_override_finds_the_files(tmp_path, threads, cls):
    make_trainer(tmp_path / "out", cls=cls, **EVERY_STEP).train()
    assert set(threads) == {"MainThread"}


def save_and_read(trainer, state, control):
    trainer._save_checkpoint(trainer.model, None)
    require_checkpoint(trainer)


@pytest.mark.parametrize("event", ["on_step_begin", "on_step_end", "on_evaluate", "on_epoch_end"])
def test_background_saving_checkpoint_of_a_callback_is_complete(tmp_path, threads, event):
    """A callback that writes a checkpoint itself reads it right after."""
    callbacks = [At(event, save_and_read)]
    trained_trainer(
        tmp_path / "out", callbacks=callbacks, save_strategy="no", eval_strategy="epoch"
    )
    assert set(threads) == {"MainThread"}


def test_background_saving_checkpoint_of_an_override_is_complete(tmp_path, threads):
    """It reads its checkpoints right after; those that are due are still written in the thread."""
    make_trainer(tmp_path / "out", cls=SavesInStep, save_strategy="steps", save_steps=3).train()
    # Four of the script, and that of the last step, which is never copied.
    assert threads.count("MainThread") == 5
    assert threads.count("checkpoint-writer") == 1


def call_as_a_signal_handler(function):
    """Python calls a handler between two instructions of the main thread."""
    function()


def call_in_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("call", [call_as_a_signal_handler, call_in_a_thread])
def test_background_saving_save_model_during_a_checkpoint(tmp_path, threads, call):
    """It is written at once, and the checkpoint is what it would be without it."""

    class Preempted(Trainer):
        def _save_optimizer_and_scheduler(self, output_dir):
            copy = tmp_path / f"copy-{self.state.global_step}"
            call(lambda: self.save_model(str(copy)))
            saved.append(load_file(copy / "model.safetensors"))
            super()._save_optimizer_and_scheduler(output_dir)

    saved: list[dict[str, torch.Tensor]] = []
    make_trainer(tmp_path / "out", cls=Preempted, **EVERY_STEP).train()
    for step, copy in enumerate(saved, start=1):
        folder = tmp_path / "out" / f"checkpoint-{step}"
        assert same_bits(load_file(folder / "model.safetensors"), copy)
        assert problems(folder) == []
    assert len(saved) == 4
    assert threads.count("checkpoint-writer") == 3


def test_background_saving_same_step_during_its_checkpoint(tmp_path, monkeypatch):
    """By its interval, and by a callback at the end of the epoch; the first save is held until
    the second begins.
    """
    second_begins = threading.Event()
    begin = saving.checkpoints.begin
    make_room = BackgroundWriter.make_room
    write_copies = writing.CheckpointFiles.write_copies

    def begin_noted(final, owner):
        begun.append(Path(final).name)
        staging = begin(final, owner)
        if begun.count("checkpoint-2") == 2:
            second_begins.set()
        return staging

    def make_room_noted(self, size, limit):
        if limit < 0:
            second_begins.set()
        make_room(self, size, limit)

    def held(self):
        assert second_begins.wait(60)
        write_copies(self)

    begun: list[str] = []
    monkeypatch.setattr(saving.checkpoints, "begin", begin_noted)
    monkeypatch.setattr(BackgroundWriter, "make_room", make_room_noted)
    monkeypatch.setattr(writing.CheckpointFiles, "write_copies", held)
    again = At(
        "on_epoch_end", lambda trainer, state, control: setattr(control, "should_save", True)
    )
    options = {
        "save_strategy": "steps",
        "save_steps": 2,
        "per_device_train_batch_size": 8,
        "num_train_epochs": 2,
    }
    finished = trained_trainer(tmp_path / "out", callbacks=[again], **options)
    assert finished.state.global_step == 4
    assert begun.count("checkpoint-2") == 2
    assert problems(tmp_path / "out" / "checkpoint-2") == []


def test_background_saving_is_switched_off(tmp_path, threads):
    trainer = make_trainer(tmp_path / "out", **EVERY_STEP)
    trainer.background_checkpoints = None
    trainer.train()
    assert set(threads) == {"MainThread"}


def test_background_saving_error_ends_the_training_at_the_next_save(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path / "out", **EVERY_STEP)
    trainer.background_checkpoints = 0  # one at a time
    monkeypatch.setattr(
        writing, "save_torch", lambda *_: (_ for _ in ()).throw(PermissionError("not yours"))
    )
    with pytest.raises(PermissionError, match="not yours"):
        trainer.train()
    assert trainer.state.global_step == 2
    assert files(tmp_path / "out") == []


def test_too_little_space_is_a_warning_and_leaves_the_older_ones(tmp_path, monkeypatch, caplog):
    def shrink(*_):
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: Free(100))

    trainer = trained_trainer(
        tmp_path / "out", callbacks=[At("on_step_end", shrink, step=2)], **EVERY_STEP
    )
    assert trainer.state.global_step == 4
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoint-1"]
    assert caplog.text.count("No checkpoint was written") == 3
    assert "only 100 bytes are free" in caplog.text


def test_background_saving_older_checkpoint_makes_room_but_never_the_best(tmp_path, monkeypatch):
    """With a limit of 3, three are there, and the fourth would not fit."""
    free = [1 << 40]
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: Free(free[0]))

    def shrink(host, state, control):
        host._lightrainer.checkpoint_saver.background.make_room(0, -1)
        state.best_model_checkpoint = str(tmp_path / "out" / "checkpoint-1")
        free[0] = (
            (1 << 20)
            + host._lightrainer.checkpoint_saver.bytes_to_save(host._lightrainer.strategy)
            - 10
        )

    made = make_trainer(tmp_path / "out", save_total_limit=3, callbacks=[], **EVERY_STEP)
    shrinking = At("on_step_begin", shrink, step=3)
    shrinking.trainer = made
    made.add_callback(shrinking)
    made.train()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"checkpoint-{step}" for step in (1, 3, 4)
    ]


HALVES = {"save_strategy": "steps", "save_steps": 2}


@pytest.fixture
def held(monkeypatch):
    """Hold flushes back until the event is set."""
    event, inner = threading.Event(), writing.sync_tree
    monkeypatch.setattr(writing, "sync_tree", lambda folder: (event.wait(), inner(folder)))
    yield event
    event.set()


def stop(of, state, control):
    control.should_training_stop = True


STAY = {
    "all stay": ({}, False),
    "an older one goes": ({"save_total_limit": 2}, True),
    "told to end": ({"max_steps": 9, "callbacks": [At("on_step_end", stop, step=4)]}, False),
}


@pytest.mark.parametrize(("changes", "waits"), STAY.values(), ids=STAY)
def test_background_saving_end_waits_for_the_disk_only_before_a_deletion(
    tmp_path, held, changes, waits
):
    """Nothing is flushed before the end here; a checkpoint that is on the disk is not removed
    before.
    """
    if waits:
        (tmp_path / "out" / "checkpoint-1").mkdir(parents=True)
    trainer = make_trainer(tmp_path / "out", **{**HALVES, **changes})
    ended = threading.Thread(target=trainer.train)
    ended.start()
    ended.join(2 if waits else None)
    assert ended.is_alive() is waits
    assert (tmp_path / "out" / "checkpoint-4" / "_manifest.json").exists()
    assert (tmp_path / "out" / "checkpoint-1").exists() == waits
    held.set()
    ended.join()
    trainer._lightrainer.checkpoint_saver.wait_until_flushed()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "checkpoint-2",
        "checkpoint-4",
    ]


@pytest.mark.parametrize(("seconds", "flushed"), [(-1.0, [1, 2, 3, 4]), (60.0, [4])])
def test_flushes_in_quick_succession_are_skipped_except_the_last(
    tmp_path, monkeypatch, seconds, flushed
):
    def submit_and_wait(self, job):
        done: Future[None] = Future()
        done.set_result(job())
        return done

    names = []
    monkeypatch.setattr(saving, "_BETWEEN_FLUSHES", seconds)
    monkeypatch.setattr(
        saving.checkpoints, "try_to_flush", lambda folder: names.append(folder.name) is None
    )
    monkeypatch.setattr(BackgroundWriter, "submit", submit_and_wait)
    make_trainer(tmp_path / "out", **EVERY_STEP).train()
    assert names == [f"checkpoint-{step}" for step in flushed]


@pytest.mark.parametrize("left", ["nothing", "a part"])
def test_background_saving_power_failure_leaves_the_previous_checkpoint(tmp_path, left):
    """Names are written before contents: files are short, the list of files too."""
    make_trainer(tmp_path / "out", **HALVES).train()
    for file in (tmp_path / "out" / "checkpoint-4").rglob("*"):
        os.truncate(file, 0 if left == "nothing" else file.stat().st_size // 2)
    trainer = make_trainer(tmp_path / "out", **HALVES)
    assert trainer.state.global_step == 0
    trainer.train(resume_from_checkpoint=True)
    whole = trained_trainer(tmp_path / "whole", **HALVES)
    assert trainer.state.global_step == 4
    assert same_bits(weights(trainer.model), weights(whole.model))


def test_background_saving_flush_during_a_rename_deletes_the_oldest(tmp_path, monkeypatch):
    """Between the new name and the note of it, the new checkpoint would pass for one of an
    earlier run.
    """
    trainer = make_trainer(
        tmp_path, **EVERY_STEP, save_total_limit=2, max_steps=5, callbacks=[Watching()]
    )
    inner, rotations = saving.checkpoints.commit, []

    def commit(*args, **kwargs):
        inner(*args, **kwargs)
        rotations.append(
            threading.Thread(target=trainer._lightrainer.complete_checkpoints.rotate, args=(2,))
        )
        rotations[-1].start()
        # waits for the note; without the lock it deletes the new checkpoint now
        rotations[-1].join(0.1)

    monkeypatch.setattr(saving.checkpoints, "commit", commit)
    trainer.train()
    for rotation in rotations:
        rotation.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-4", "checkpoint-5"]


def test_saves_outside_of_a_training_keep_to_the_limit(tmp_path):
    """No later save of a training deletes older ones after its flush."""
    trainer = make_trainer(tmp_path, **EVERY_STEP, save_total_limit=2, max_steps=1)
    trainer.train()
    for step in (5, 6, 7):
        trainer.state.global_step = step
        trainer._save_checkpoint(trainer.model, None)
    names = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert names == ["checkpoint-6", "checkpoint-7"]
