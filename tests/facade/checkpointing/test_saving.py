"""Write checkpoints, resume from them, and refuse bad ones beforehand."""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.trainer.tiny_trainings import (
    At,
    files,
    make_trainer,
    same_bits,
    trained_trainer,
    weights,
)
from lightrainer import Trainer, TrainerCallback, TrainingArguments
from lightrainer.facade.checkpointing import saving
from lightrainer.lightning_modules import checkpoints
from lightrainer.lightning_modules.checkpoints import owners
from lightrainer.lightning_modules.common import process_identity

FILES = [
    "_manifest.json",
    "data_state_0.pth",
    "model.safetensors",
    "optimizer.pt",
    "rng_state.pth",
    "scheduler.pt",
]
FILES += ["trainer_state.json", "training_args.bin"]
TOKEN = "hf_DoNotShowThis123"


@pytest.fixture
def two_checkpoints(tmp_path) -> Path:
    """A folder with checkpoint-2 and checkpoint-4 of a training of 4 steps."""
    make_trainer(tmp_path / "out", save_strategy="steps", save_steps=2).train()
    return tmp_path / "out"


# --- missing or damaged checkpoints


@pytest.mark.parametrize("kind", [FileNotFoundError, ValueError])
def test_resume_from_a_missing_checkpoint(tmp_path, kind):
    """A missing file, and a ValueError as in the reference."""
    trainer = make_trainer(tmp_path / "out")
    with pytest.raises(kind, match=r"(?s)checkpoint.*checkpoint-7.*output_dir"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-7"))
    assert not trainer.is_in_train
    assert files(tmp_path) == []


@pytest.mark.parametrize("kind", [FileNotFoundError, ValueError])
def test_resume_from_the_newest_of_none(tmp_path, kind):
    trainer = make_trainer(tmp_path / "out")
    with pytest.raises(
        kind, match=r"No valid checkpoint found in output directory .*out.*to start from scratch"
    ):
        trainer.train(resume_from_checkpoint=True)
    assert files(tmp_path) == []


def test_resume_from_a_folder_that_is_not_a_checkpoint(tmp_path):
    trainer = make_trainer(tmp_path / "out")
    with pytest.raises(
        ValueError, match=r"Can't find a valid.*out.*no weights.*trainer_state\.json is missing"
    ):
        trainer.train(resume_from_checkpoint=str(tmp_path / "out"))
    assert files(tmp_path) == []


@pytest.mark.parametrize("name", FILES)
def test_resume_from_a_damaged_checkpoint(two_checkpoints, name):
    """Asked for by name it is an error, before anything is touched; see
    `tests/faults/test_damage.py` for others.
    """
    damaged = two_checkpoints / "checkpoint-4"
    (damaged / name).write_bytes((damaged / name).read_bytes()[:-20])
    before = {name: (two_checkpoints / name).read_bytes() for name in files(two_checkpoints)}
    trainer = make_trainer(two_checkpoints, num_train_epochs=2)
    untouched = weights(trainer.model)
    with pytest.raises(ValueError, match=rf"checkpoint-4.*{re.escape(name)}.*earlier"):
        trainer.train(resume_from_checkpoint=str(damaged))
    assert same_bits(weights(trainer.model), untouched)
    assert {
        name: (two_checkpoints / name).read_bytes() for name in files(two_checkpoints)
    } == before


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_resume_without_an_optional_file(two_checkpoints, caplog, name):
    """As after `save_only_model`: training resumes, with a warning that the numbers will differ."""
    (two_checkpoints / "checkpoint-2" / name).unlink()
    make_trainer(two_checkpoints).train(
        resume_from_checkpoint=str(two_checkpoints / "checkpoint-2")
    )
    assert any("checkpoint-2" in record.message for record in caplog.records)
    assert f"{name} is missing, but _manifest.json lists it" in caplog.text


# --- what is written


def test_saving_error_leaves_no_half_checkpoint(tmp_path):
    class Refused(Trainer):
        def _save_rng_state(self, output_dir):
            if self.state.global_step == 4:
                raise PermissionError("not yours")
            super()._save_rng_state(output_dir)

    trainer = make_trainer(tmp_path, Refused, save_strategy="steps", save_steps=2)
    with pytest.raises(PermissionError, match="not yours"):
        trainer.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2"]
    assert not trainer.is_in_train


def test_saving_includes_the_processing_class(tmp_path):
    class Words:
        def save_pretrained(self, folder):
            (Path(folder) / "words.txt").write_text("a b")

    make_trainer(tmp_path, processing_class=Words()).save_model()
    assert "words.txt" in files(tmp_path)
    words, collator = Words(), type("Collator", (), {"__call__": lambda self, items: items})()
    collator.tokenizer = words
    make_trainer(tmp_path / "2", data_collator=collator).save_model()
    assert "words.txt" in files(tmp_path / "2")


@pytest.mark.parametrize("way", ["save_model", "checkpoint"])
def test_saved_arguments_are_restored(tmp_path, way):
    trainer = make_trainer(tmp_path, learning_rate=0.03, hub_token=TOKEN, save_strategy="epoch")
    trainer.save_model() if way == "save_model" else trainer.train()
    folder = tmp_path if way == "save_model" else tmp_path / "checkpoint-4"
    loaded = torch.load(folder / "training_args.bin", weights_only=False)
    assert type(loaded) is TrainingArguments
    assert loaded.hub_token is None
    assert trainer.args.hub_token == TOKEN, "the user's own arguments were changed"
    assert loaded.to_dict() == trainer.args.to_dict()


def test_saving_with_a_removed_best_checkpoint(tmp_path, caplog):
    """The last model is kept, and that is reported."""

    class Thief(TrainerCallback):
        def on_log(self, args, state, control, logs, **kwargs):
            if "train_loss" in logs:
                shutil.rmtree(state.best_model_checkpoint)

    both = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    trained_trainer(tmp_path, callbacks=[Thief()], **both)
    assert any(
        "checkpoint-4" in record.message and "missing or damaged" in record.message
        for record in caplog.records
    )


@pytest.mark.parametrize("version", ["5.3.0", "5.23.0"])
def test_resume_with_a_missing_best_checkpoint(tmp_path, caplog, monkeypatch, version):
    """From 5.17 on it is ignored, with a warning; before, it stays the best one."""
    monkeypatch.setenv("LIGHTRAINER_FOLLOW", version)
    make_trainer(tmp_path, save_strategy="steps", save_steps=1, max_steps=2).train()
    state = tmp_path / "checkpoint-2" / "trainer_state.json"
    missing = str(tmp_path / "checkpoint-1")
    state.write_text(
        json.dumps({**json.loads(state.read_text()), "best_model_checkpoint": missing})
    )
    (tmp_path / "checkpoint-2" / "_manifest.json").unlink()
    shutil.rmtree(missing)
    trainer = trained_trainer(tmp_path, max_steps=3, resume=True)
    ignored = version == "5.23.0"
    assert trainer.state.best_model_checkpoint == (None if ignored else missing)
    assert any("does not exist anymore" in record.message for record in caplog.records) is ignored


def test_saving_on_another_machine_shares_the_folder_of_the_first(tmp_path, monkeypatch):
    """`save_on_each_node`: the folder in the making is named after the main process, which is
    not this one.
    """
    trainer = make_trainer(tmp_path, save_strategy="steps", save_steps=2, save_on_each_node=True)
    monkeypatch.setattr(
        saving, "broadcast_from_rank_zero", lambda token, processes: "other-host-1234-5678"
    )
    trainer.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-4"]
    assert (tmp_path / "checkpoint-4" / "model.safetensors").is_file()


# --- what others have to do with the folder


def test_checkpoint_written_again_replaces_the_whole_folder(two_checkpoints):
    (two_checkpoints / "checkpoint-4" / "model-00001-of-00002.safetensors").write_text(
        "an older shard"
    )
    before = (two_checkpoints / "checkpoint-4" / "trainer_state.json").stat().st_mtime_ns
    trained_trainer(
        two_checkpoints,
        save_strategy="steps",
        save_steps=2,
        resume=str(two_checkpoints / "checkpoint-2"),
    )
    assert files(two_checkpoints / "checkpoint-4") == sorted(FILES)
    assert (two_checkpoints / "checkpoint-4" / "trainer_state.json").stat().st_mtime_ns != before


def test_checkpoint_whose_process_was_killed_while_it_was_replaced_is_resumed(two_checkpoints):
    shutil.rmtree(two_checkpoints / "checkpoint-2")
    machine, pid, start = process_identity.process_token().rsplit("-", 2)
    if start == "0":
        pytest.skip("process start times are not available")
    ended = f"{machine}-{pid}-{int(start) - 1}"
    (two_checkpoints / "checkpoint-4").rename(two_checkpoints / f".checkpoint-4.replaced-{ended}")
    (two_checkpoints / f".checkpoint-4.partial-{ended}").mkdir()
    trainer = trained_trainer(two_checkpoints, save_strategy="steps", save_steps=2, resume=True)
    assert trainer.state.global_step == 4
    assert files(two_checkpoints / "checkpoint-4") == sorted(FILES)
    assert [path.name for path in two_checkpoints.iterdir() if path.name.startswith(".")] == []


def averaged(folder):
    """Replace the weights of a checkpoint by others of the same size."""
    path = Path(folder, "model.safetensors")
    save_file(
        {name: tensor * 0.5 for name, tensor in load_file(path).items()},
        path,
        metadata={"format": "pt"},
    )


class AveragesOnSave(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        averaged(Path(args.output_dir, f"checkpoint-{state.global_step}"))


class AveragesAfterSaving(Trainer):
    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        averaged(Path(self.args.output_dir, f"checkpoint-{self.state.global_step}"))


EDITORS = {
    "a callback": {"callbacks": [AveragesOnSave()]},
    "an override": {"cls": AveragesAfterSaving},
}


@pytest.mark.parametrize("editor", EDITORS)
def test_weights_replaced_as_a_checkpoint_is_saved_are_loaded(tmp_path, editor):
    """As the best model, and when a training is resumed; what is replaced later is taken for
    damage.
    """
    options = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    trainer = trained_trainer(tmp_path / "out", num_train_epochs=2, **options, **EDITORS[editor])
    best = load_file(Path(trainer.state.best_model_checkpoint, "model.safetensors"))
    assert same_bits(weights(trainer.model), best)
    first = tmp_path / "out" / "checkpoint-4"
    resumed = trained_trainer(tmp_path / "resumed", num_train_epochs=1, resume=str(first))
    assert same_bits(weights(resumed.model), load_file(first / "model.safetensors"))
    averaged(first)
    with pytest.raises(ValueError, match=r"model\.safetensors does not match its checksum"):
        trained_trainer(tmp_path / "later", num_train_epochs=1, resume=str(first))


def counted(trainer):
    """Write a file into the next checkpoint, and return its path."""
    folder = Path(trainer.args.output_dir, f"checkpoint-{trainer.state.global_step}", "counts")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokens.json"
    path.write_text(str(trainer.state.global_step))
    return path


class CountsBeforeSaving(Trainer):
    def _save_checkpoint(self, model, trial):
        path = counted(self)
        super()._save_checkpoint(model, trial)
        assert path.exists()


WRITERS = {
    "a callback": lambda: {
        "callbacks": [At("on_step_end", lambda trainer, state, control: counted(trainer))]
    },
    "an override": lambda: {"cls": CountsBeforeSaving},
}


@pytest.mark.parametrize("writer", WRITERS)
def test_files_written_before_a_checkpoint_is_saved_stay(tmp_path, writer):
    """An override, unlike a callback, finds them also beside a checkpoint of an earlier run."""
    for _ in range(1 + (writer == "an override")):
        trainer = trained_trainer(
            tmp_path, save_strategy="steps", save_steps=2, **WRITERS[writer]()
        )
    steps = [path.parts[-3:] for path in tmp_path.rglob("tokens.json")]
    assert ("checkpoint-2", "counts", "tokens.json") in steps
    assert ("checkpoint-4", "counts", "tokens.json") in steps
    checkpoint = tmp_path / "checkpoint-4"
    resumed = trained_trainer(tmp_path, num_train_epochs=2, resume=True)
    assert resumed.state.global_step == 2 * trainer.state.global_step
    assert load_file(checkpoint / "model.safetensors").keys() == weights(trainer.model).keys()


def test_files_written_before_a_checkpoint_is_saved_survive_a_rotation(tmp_path):
    """The thread that flushes the checkpoint before it rotates at any moment."""

    def count_and_rotate(trainer, state, control):
        counted(trainer)
        trainer._lightrainer.checkpoint_saver.wait_until_flushed()
        trainer._lightrainer.complete_checkpoints.rotate(1)

    saving = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
    trained_trainer(tmp_path, callbacks=[At("on_step_end", count_and_rotate)], **saving)
    assert (tmp_path / "checkpoint-4" / "counts" / "tokens.json").exists()
    assert not (tmp_path / "checkpoint-2").exists()


@pytest.mark.parametrize("best", [False, True])
def test_limit_after_a_resumption_without_steps(tmp_path, best):
    """A kill between the last checkpoint and the rotation leaves one more."""
    saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6}
    if best:
        saving |= {"eval_strategy": "steps", "eval_steps": 2, "learning_rate": 0.0}
        saving |= {"metric_for_best_model": "loss", "load_best_model_at_end": True}
    trained_trainer(tmp_path, **saving)
    assert len(checkpoints.list_checkpoints(tmp_path)) == 3
    trained_trainer(tmp_path, resume=True, save_total_limit=2, **saving)
    expected = ["checkpoint-2", "checkpoint-6"] if best else ["checkpoint-4", "checkpoint-6"]
    assert [path.name for path in checkpoints.list_checkpoints(tmp_path)] == expected


def test_limit_deletes_nothing_after_a_resumption_from_an_older_checkpoint(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2}
    trained_trainer(tmp_path, max_steps=6, **saving)
    resume = str(tmp_path / "checkpoint-2")
    trained_trainer(tmp_path, max_steps=2, save_total_limit=1, resume=resume, **saving)
    trained_trainer(tmp_path, max_steps=6, save_total_limit=1, resume=True)
    assert len(checkpoints.list_checkpoints(tmp_path)) == 3


def test_files_of_an_earlier_run_go_with_its_checkpoint(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 4}
    trained_trainer(tmp_path, **saving)
    (tmp_path / "checkpoint-4" / "notes.txt").touch()
    trained_trainer(tmp_path, **saving)
    assert not (tmp_path / "checkpoint-4" / "notes.txt").exists()


@pytest.mark.parametrize("saves", [True, False])
def test_saving_leaves_a_folder_in_use_alone(tmp_path, monkeypatch, saves):
    monkeypatch.setattr(owners, "LOCK_TIMEOUT", 0)
    settings = {"save_strategy": "steps", "save_steps": 4} if saves else {}
    # as a killed process leaves it
    leftover = tmp_path / f".checkpoint-4.partial-{process_identity._machine()}-1-0"
    leftover.mkdir()
    holding = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, 2); print(1, "
        "flush=True); input()"
    )
    words = [sys.executable, "-c", holding, str(tmp_path / owners.LOCK_NAME)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"1\n"
        with (
            pytest.raises(owners.FolderInUseError, match="output_dir=")
            if saves
            else contextlib.nullcontext()
        ):
            make_trainer(tmp_path, **settings).train()
        assert leftover.exists() is saves
        other.communicate(b"\n")
    (tmp_path / owners.LOCK_NAME).unlink()
    for _ in range(2):
        make_trainer(tmp_path, **settings).train()
    assert not leftover.exists()
    assert not (tmp_path / owners.LOCK_NAME).exists()


def test_training_removes_the_metrics_that_a_killed_process_was_writing(tmp_path):
    trainer = make_trainer(tmp_path)
    killed = os.fork()
    if not killed:
        os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
        trainer.save_metrics("eval", {"eval_loss": 1.0})
    assert os.WTERMSIG(os.waitpid(killed, 0)[1]) == signal.SIGKILL
    assert len(files(tmp_path)) == 1

    trainer.train()
    assert files(tmp_path) == []


def test_parts_are_written_before_what_one_process_alone_writes(tmp_path):
    """A disk that is full for the arguments must not keep one process from the exchange in which
    parts are written.
    """
    trainer, written = make_trainer(tmp_path / "out"), []
    parts = SimpleNamespace(
        saves_parts=lambda *, checkpoint: True,
        save_weights=lambda folder, **options: written.append(folder),
    )

    def refuse(folder, state_dict=None):
        raise OSError(errno.ENOSPC, "full", folder)

    with pytest.raises(OSError, match="full"):
        trainer._lightrainer.checkpoint_saver.save_model(
            "folder", refuse, internal=True, strategy=parts, run=None
        )
    assert written == ["folder"]


def test_saving_relative_folder_is_resolved_at_the_start(tmp_path, monkeypatch):
    """The script changes its folder after the best checkpoint, which is neither rotated away nor
    lost.
    """
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    leave = At("on_step_end", lambda *_: monkeypatch.chdir(tmp_path / "elsewhere"), step=2)
    values = iter([1.0, 3.0, 2.0, 4.0])
    options = {
        "save_strategy": "steps",
        "save_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
    }
    options |= {
        "save_total_limit": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "own_loss",
    }
    trainer = trained_trainer(
        Path("out"),
        callbacks=[leave],
        compute_metrics=lambda _: {"own_loss": next(values)},
        **options,
    )
    best = tmp_path / "out" / "checkpoint-1"
    assert sorted(os.listdir(tmp_path / "out")) == ["checkpoint-1", "checkpoint-4"]
    assert os.listdir(tmp_path / "elsewhere") == []
    assert trainer.state.best_model_checkpoint == str(best)
    assert same_bits(load_file(best / "model.safetensors"), weights(trainer.model))
