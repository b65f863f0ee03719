"""Every file that gets lost or loses its end is found by the manifest; files that are added are
no fault.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lightrainer.lightning_modules.checkpoints import (
    problems,
    save_torch,
    save_weights,
    write_manifest,
)
from lightrainer.lightning_modules.checkpoints.manifest import (
    MANIFEST_NAME,
    read_manifest,
    refresh_manifest,
)

NAMES = [
    "model.safetensors",
    "optimizer.pt",
    "trainer_state.json",
    "vocab.txt",
    "first/adapter_config.json",
]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-3"
    save_weights(nn.Linear(4, 4), folder)
    save_torch({"x": torch.ones(50)}, folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text('{"global_step": 3}')
    (folder / "vocab.txt").write_text("a b c d e f")
    (folder / "first").mkdir()
    (folder / "first" / "adapter_config.json").write_text("{}")
    write_manifest(folder)
    return folder


def test_names_and_sizes(checkpoint: Path):
    """Of all files, in subfolders too, but of itself."""
    sizes = read_manifest(checkpoint).sizes
    assert sizes == {name: (checkpoint / name).stat().st_size for name in sorted(NAMES)}
    assert problems(checkpoint) == []


def test_weights_may_have_taken_another_form(checkpoint: Path):
    torch.save(load_file(checkpoint / "model.safetensors"), checkpoint / "pytorch_model.bin")
    (checkpoint / "model.safetensors").unlink()
    assert problems(checkpoint) == []


def test_refresh_takes_changes_and_removals_but_no_new_files(checkpoint: Path):
    changed = checkpoint / "vocab.txt"
    changed.write_text("f e d c b a")
    (checkpoint / "trainer_state.json").write_text('{"global_step": 3, "note": "longer"}')
    (checkpoint / "optimizer.pt").unlink()
    (checkpoint / "added.txt").write_text("by a callback")
    assert refresh_manifest(checkpoint)
    assert sorted(read_manifest(checkpoint).sizes) == sorted(set(NAMES) - {"optimizer.pt"})
    assert problems(checkpoint) == []
    assert not refresh_manifest(checkpoint)
    changed.write_text("a b c d e f")
    assert [problem.partition(" ")[0] for problem in problems(checkpoint)] == ["vocab.txt"]


def test_refresh_leaves_a_manifest_that_was_removed_or_edited(checkpoint: Path):
    manifest = checkpoint / MANIFEST_NAME
    manifest.write_text("{}")
    assert not refresh_manifest(checkpoint)
    assert manifest.read_text() == "{}"
    manifest.unlink()
    assert not refresh_manifest(checkpoint)
    assert not manifest.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "vocab.txt"])
def test_manifest_names_a_truncated_file_once(checkpoint: Path, name: str):
    content = (checkpoint / name).read_bytes()
    (checkpoint / name).write_bytes(content[:-1])
    messages = problems(checkpoint)
    assert len(messages) == 1
    assert messages[0].startswith(
        f"{name} is {'truncated: it has 10 of 11 bytes' if name == 'vocab.txt' else 'damaged'}"
    )


def test_files_that_are_added_or_edited_by_hand_are_no_problem(checkpoint: Path):
    (checkpoint / "notes.md").write_text("good one")
    (checkpoint / "trainer_state.json").write_text(
        '{"global_step": 3, "save_steps": 7, "eval_steps": 9}'
    )
    (checkpoint / "vocab.txt").write_text("a b c d e f g")
    assert problems(checkpoint) == []


def test_manifest_of_weights_ignores_training_files(checkpoint: Path):
    (checkpoint / "optimizer.pt").unlink()
    (checkpoint / "trainer_state.json").unlink()
    assert problems(checkpoint, training_state=False) == []
    (checkpoint / "vocab.txt").unlink()
    assert len(problems(checkpoint, training_state=False)) == 1


WRONG_FILES = ({"a": "b"}, {"../a": 1}, {"/etc/passwd": 1}, {"a/../../b": 1}, {"": 1})
WRONG = ["", "{", "[]", "{}", '{"version": 1}', '{"version": 2, "files": {}}']
WRONG += [json.dumps({"version": 1, "files": files}) for files in WRONG_FILES]


@pytest.mark.parametrize("text", WRONG)
def test_manifest_that_is_invalid(checkpoint: Path, text: str):
    """Damaged, of another version, or leading out of the folder."""
    (checkpoint / "_manifest.json").write_text(text)
    (message,) = problems(checkpoint)
    assert message.startswith("_manifest.json ")
    with pytest.raises(ValueError, match=r"_manifest\.json"):
        read_manifest(checkpoint)
