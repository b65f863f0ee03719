"""Make nothing that a file of a checkpoint names, read nothing from elsewhere, and write no token.

That none of them runs a program is shown in `tests/attacks`.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers.trainer.tiny_trainings import files, trained_trainer
from lightrainer.lightning_modules.checkpoints import (
    load_weights,
    problems,
    save_torch,
    save_weights,
)
from lightrainer.lightning_modules.checkpoints.conversion import convert

TOKEN = "hf_DoNotShowThis456"

pytestmark = [
    # torch 2.13 warns of what Lightning 2.6 does with its trees (2025).
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    # It says so where a module could validate and is not asked to.
    pytest.mark.filterwarnings(
        "ignore:You defined a `validation_step` but have no `val_dataloader`"
    ),
    # Lightning advises more workers on machines with many cores.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path):
        self.place = str(place)

    def __reduce__(self):
        return os.mkdir, (self.place,)


@pytest.fixture
def evil(tmp_path):
    return Evil(tmp_path / "evil")


def test_checkpoint_adapter_runs_no_program(tmp_path, evil):
    """Ask if it is intact without unpickling; loading is the library's."""
    torch.save({"payload": evil}, tmp_path / "adapter_model.bin")
    assert problems(tmp_path, training_state=False) == []
    assert not Path(evil.place).exists()


# --- shards


@pytest.fixture
def shards(tmp_path) -> Path:
    folder = tmp_path / "model"
    save_weights(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), folder, max_shard_size=300)
    return folder


def name_in_index(folder: Path, file: str) -> None:
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["0.weight"] = file
    index.write_text(json.dumps(content))


OUTSIDE = [
    "../other.safetensors",
    "/etc/other.safetensors",
    "a/../../other.safetensors",
    "sub/other.safetensors",
]
OUTSIDE += ["..\\other.safetensors", "..", ".", "", "optimizer.pt", "link.safetensors"]


@pytest.mark.parametrize("file", OUTSIDE)
def test_checkpoint_index_cannot_leave_its_folder(shards, tmp_path, file):
    save_weights(nn.Linear(8, 8), tmp_path / "secret")
    (tmp_path / "secret" / "model.safetensors").rename(tmp_path / "other.safetensors")
    (shards / "link.safetensors").symlink_to(tmp_path / "other.safetensors")
    name_in_index(shards, file)
    assert "is not a shard in the same folder" in problems(shards, training_state=False)[0]
    with pytest.raises(ValueError, match="is not a shard in the same folder"):
        load_weights(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), shards)


def test_checkpoint_folder_of_hub_cache_links_is_read(shards, tmp_path):
    """There all files lie in another folder, the index too; links inside the folder are no
    matter either.
    """
    cache = tmp_path / "cache" / "snapshots" / "1"
    cache.mkdir(parents=True)
    for path in shards.iterdir():
        (cache / path.name).symlink_to(path)
    for folder in (cache, shards):
        assert problems(folder, training_state=False) == []
        assert load_weights(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), folder).missing == ()
    first = sorted(shards.glob("*.safetensors"))[0]
    (shards / "renamed.safetensors").write_bytes(first.read_bytes())
    first.unlink()
    first.symlink_to("renamed.safetensors")
    assert problems(shards, training_state=False) == []


# --- tokens


def test_checkpoint_files_do_not_contain_the_token(tmp_path):
    """The manifest, the states and the converted file are looked through too."""
    trainer = trained_trainer(
        tmp_path / "out", hub_token=TOKEN, save_strategy="steps", save_steps=2, push_to_hub=False
    )
    trainer.save_state()
    convert(tmp_path / "out" / "checkpoint-2", tmp_path / "out" / "converted.ckpt")
    names = files(tmp_path)
    assert {
        "out/trainer_state.json",
        "out/converted.ckpt",
        "out/checkpoint-2/_manifest.json",
    } <= set(names)
    assert [name for name in names if TOKEN.encode() in (tmp_path / name).read_bytes()] == []
    save_torch({"control": TOKEN}, tmp_path / "control.pt")
    assert TOKEN.encode() in (tmp_path / "control.pt").read_bytes()
