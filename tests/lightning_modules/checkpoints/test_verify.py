"""Every cut-short file of a checkpoint is found, and an intact one has no problems."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lightrainer.lightning_modules.checkpoints import (
    problems,
    require_intact,
    save_torch,
    save_weights,
)

WEIGHTS = ["model.safetensors", "config.json", "generation_config.json"]
TRAINING = (
    "optimizer.pt scheduler.pt scaler.pt rng_state.pth rng_state_1.pth training_args.bin "
    "trainer_state.json"
)
TRAINING = TRAINING.split()


def _gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=16, n_positions=8))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-12"
    save_weights(_gpt2(), folder)
    for name in TRAINING[:-1]:
        save_torch({"x": torch.ones(50)}, folder / name)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 12}, indent=2))
    return folder


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-12"
    save_weights(
        torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)]), folder, max_shard_size=300
    )
    return folder


def _cut(path: Path, keep: str) -> None:
    content = path.read_bytes()
    path.write_bytes(
        content[: {"nothing": 0, "one": 1, "half": len(content) // 2, "all but 2": -2}[keep]]
    )


@pytest.mark.parametrize("name", WEIGHTS + TRAINING)
@pytest.mark.parametrize("keep", ["nothing", "one", "half", "all but 2"])
def test_truncated_file_is_found_and_named(checkpoint: Path, name: str, keep: str):
    assert problems(checkpoint) == []
    _cut(checkpoint / name, keep)
    messages = problems(checkpoint)
    assert len(messages) == 1
    assert messages[0].startswith(name)
    with pytest.raises(ValueError, match=re.escape(name)):
        require_intact(checkpoint)
    assert bool(problems(checkpoint, training_state=False)) == (name in WEIGHTS)


def test_weights_of_zeros_are_found(checkpoint: Path):
    """A power failure may leave a file of the right length without contents."""
    with (checkpoint / "model.safetensors").open("ab") as file:
        file.write(b"\0")
    assert len(problems(checkpoint)) == 1, "it is longer than it says"
    for name in ("model.safetensors", "optimizer.pt"):
        (checkpoint / name).write_bytes(b"\0" * (checkpoint / name).stat().st_size)
    assert len(problems(checkpoint)) == 2


def test_sharded_weights(sharded: Path):
    assert problems(sharded, training_state=False) == []
    shards = sorted(sharded.glob("*.safetensors"))
    assert len(shards) == 3
    _cut(shards[0], "half")
    shards[1].unlink()
    shards[2].write_bytes((sharded / "model.safetensors.index.json").read_bytes()[:0])
    messages = problems(sharded, training_state=False)
    assert len(messages) == 3
    assert f"{shards[1].name} is missing, but model.safetensors.index.json lists it" in messages


def test_shard_that_lacks_a_tensor_is_found(sharded: Path):
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["other.weight"] = content["weight_map"]["0.weight"]
    index.write_text(json.dumps(content))
    assert "lacks other.weight" in problems(sharded, training_state=False)[0]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../x.safetensors"}}']
)
def test_bad_index_is_found(sharded: Path, text: str):
    (sharded / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in problems(sharded, training_state=False)[0]


def test_folder_without_weights_and_state(tmp_path: Path):
    with pytest.raises(
        ValueError, match=r"holds no weights.*trainer_state\.json is missing.*Use an earlier"
    ):
        require_intact(tmp_path)


def test_require_intact_names_the_newest_checkpoint_in_the_folder(tmp_path: Path):
    """Of `output_dir`, which is easily passed instead of one of its checkpoints."""
    for step in (8, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    with pytest.raises(ValueError, match=r"Use a checkpoint in it, such as .*checkpoint-10\."):
        require_intact(tmp_path)


def test_weights_in_the_format_before_torch_1_6_are_accepted(tmp_path: Path):
    torch.save(
        {"x": torch.ones(1)}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False
    )
    assert problems(tmp_path, training_state=False) == []


@pytest.mark.parametrize("place", [".", "first_adapter"])
def test_adapters_alone_are_weights(tmp_path: Path, place: str):
    (tmp_path / place).mkdir(exist_ok=True)
    save_torch({"x": torch.ones(1)}, tmp_path / place / "adapter_model.bin")
    assert problems(tmp_path, training_state=False) == []
    _cut(tmp_path / place / "adapter_model.bin", "half")
    assert problems(tmp_path, training_state=False)


def test_files_of_the_user_are_not_states(checkpoint: Path):
    """TensorFlow writes a text file `checkpoint`, scripts write JSON and pickles of any kind."""
    (checkpoint / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-12"\n')
    (checkpoint / "notes.json").write_text("none of ours")
    (checkpoint / "vocabulary.bin").write_bytes(b"none of ours")
    assert problems(checkpoint) == []
