"""Fix the files of an upload when it begins, whatever happens to their originals."""

import os

import pytest

from helpers.trainer.tiny_trainings import files
from lightrainer.callbacks._files import write_atomically
from lightrainer.facade.hub import pushing
from lightrainer.facade.hub.pushing import StagingFolder

CHECKPOINT = {
    "model.safetensors": b"weights",
    "config.json": b"{}",
    "1_Pooling/config.json": b"{1}",
}
CHECKPOINT |= {"optimizer.pt": b"moments", "rng_state_1.pth": b"dice", "trainer_state.json": b"{}"}
CHECKPOINT |= {"_manifest.json": b"{}"}
EVENTS = "runs/x.tfevents.1"
OUTPUT = {
    "model.safetensors": b"older weights",
    "model-00001-of-00002.safetensors": b"a shard",
    "notes.txt": b"notes",
}
OUTPUT |= {EVENTS: b"events", ".gitattributes": b"lfs", ".git/HEAD": b"ref", "_private.txt": b"no"}
OUTPUT |= {"checkpoint-1/model.safetensors": b"no", "run-0/checkpoint-1/model.safetensors": b"no"}
OUTPUT |= {
    ".checkpoint-9.partial-a-1-1/model.safetensors": b"no",
    "last-checkpoint/model.safetensors": b"no",
}
UPLOADED = [
    ".gitattributes",
    *("1_Pooling/config.json", "config.json", "model.safetensors", "notes.txt"),
    EVENTS,
]


def write(folder, contents):
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture
def out(tmp_path):
    write(tmp_path / "out", OUTPUT)
    write(tmp_path / "out" / "checkpoint-2", CHECKPOINT)
    return tmp_path / "out"


def test_staging_combines_checkpoint_model_and_folder(out):
    stage = StagingFolder(out / "checkpoint-2", out)
    root = stage.fill()
    assert files(root) == UPLOADED
    assert (root / "model.safetensors").read_bytes() == b"weights"
    assert files(stage.checkpoint) == sorted(CHECKPOINT)
    stage.remove()
    assert [path for path in out.iterdir() if "hub-upload" in path.name] == []


def test_staging_copies_nothing_and_links_no_growing_file(out, monkeypatch):
    monkeypatch.setattr(pushing, "_MIN_BYTES_TO_LINK", 0)
    stage = StagingFolder(out / "checkpoint-2", out)
    root = stage.fill()

    def same_file(name, other):
        return os.path.samefile(root / name, other / name)

    assert same_file("model.safetensors", out / "checkpoint-2")
    assert same_file("notes.txt", out)
    assert not same_file("runs/x.tfevents.1", out)
    monkeypatch.undo()
    stage = StagingFolder(out / "checkpoint-2", out)
    assert not os.path.samefile(stage.fill() / "notes.txt", out / "notes.txt")


def test_staging_new_card_leaves_that_of_the_checkpoint(out):
    """Both are the same file at first."""
    write(out / "checkpoint-2", {"README.md": b"of the checkpoint"})
    root = StagingFolder(out / "checkpoint-2", out).fill()
    write_atomically(root / "README.md", b"new")
    assert (root / "README.md").read_bytes() == b"new"
    assert (out / "checkpoint-2" / "README.md").read_bytes() == b"of the checkpoint"
