"""What becomes of a checkpoint with single flipped bits: it is never used silently."""

import json
import random
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.checkpoints.resumed_trainings import train
from helpers.faults.killed_trainings import EVERY_STEP
from lightrainer.lightning_modules import checkpoints

NEWEST, BEFORE = 8, 7
FLIPS = 200


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    """The newest checkpoint of a training that was killed, with the one before beside it."""
    for step in (BEFORE, NEWEST):
        shutil.copytree(whole.checkpoint(step), tmp_path / f"checkpoint-{step}")
    return tmp_path / f"checkpoint-{NEWEST}"


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def flips(folder: Path) -> list[tuple[str, int]]:
    """The same bits each time: as many of every file, half of them in its last hundred bytes,
    where tables end.
    """
    generator, files = (
        random.Random(0),
        sorted(path for path in folder.rglob("*") if path.is_file()),
    )
    positions = []
    for number in range(FLIPS):
        path = files[number % len(files)]
        bits = 8 * path.stat().st_size
        first = max(bits - 800, 0) if number // len(files) % 2 else 0
        positions.append((path.relative_to(folder).as_posix(), generator.randrange(first, bits)))
    return positions


def test_flipped_bits_are_all_detected(folder):
    """In any file; the file is named, and the older checkpoint is the newest that is intact."""
    assert checkpoints.problems(folder) == []
    silent = []
    for name, bit in flips(folder):
        flip(folder / name, bit)
        if not any(problem.startswith(f"{name} ") for problem in checkpoints.problems(folder)):
            silent.append((name, bit))
        flip(folder / name, bit)
    assert silent == []
    assert checkpoints.problems(folder) == []


def test_flipped_bits_without_checksums_raise_no_raw_error(folder):
    """As in checkpoints of the reference: a table of contents, or JSON, that says nonsense is
    damage.
    """
    (folder / "_manifest.json").unlink()
    noticed = set()
    for name, bit in flips(folder)[::2]:
        flip(folder / name, bit)
        if checkpoints.problems(folder):
            noticed.add(name)
        flip(folder / name, bit)
    assert noticed >= {
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "data_state_0.pth",
        "trainer_state.json",
    }


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"]
)
def test_flipped_bit_resumes_from_previous_checkpoint(folder, whole, caplog, name):
    """And ends as the whole one; asked for by its name, the damaged one is an error that says
    what to do.
    """
    flip(folder / name, 8 * ((folder / name).stat().st_size // 2))
    with pytest.raises(ValueError, match=f"{name} .*Use an earlier checkpoint"):
        train(folder.parent, resume=str(folder), **EVERY_STEP)
    assert train(folder.parent, resume=True, **EVERY_STEP).end == whole.end
    assert f"checkpoint-{NEWEST} is damaged and was skipped" in caplog.text
    assert name in caplog.text


def unknown_compression(path: Path) -> None:
    """One bit in the table of contents of a zip file."""
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\x01\x02") + 11] ^= 0x40
    path.write_bytes(bytes(content))


def nested(path: Path) -> None:
    path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)


def changed_record(path: Path) -> None:
    """One bit in the largest part of a zip file."""
    with zipfile.ZipFile(path) as opened:
        largest = max(opened.infolist(), key=lambda info: info.file_size)
    flip(path, 8 * (largest.header_offset + 30 + 64 + largest.file_size // 2))


def without_step(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "global_step": None}))


DAMAGE = {
    "a table of contents": ("optimizer.pt", unknown_compression),
    "nested JSON": ("trainer_state.json", nested),
    "the position in the data": ("data_state_0.pth", changed_record),
    "a list of states": ("optimizer.pt", lambda path: torch.save([1, 2], path)),
    "no step": ("trainer_state.json", without_step),
}


@pytest.mark.parametrize("listed", [True, False], ids=["with a list of files", "without"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_whatever_a_file_holds_the_one_before_is_found(folder, caplog, kind, listed):
    name, damage = DAMAGE[kind]
    damage(folder / name)
    if not listed:
        (folder / "_manifest.json").unlink()
    assert checkpoints.last_intact_checkpoint(folder.parent) == str(
        folder.with_name(f"checkpoint-{BEFORE}")
    )
    assert f"checkpoint-{NEWEST} is damaged and was skipped: {name} " in caplog.text


def test_flipped_bit_without_manifest_is_accepted(folder):
    """The error says so."""
    weights = load_file(folder / "model.safetensors")
    changed = {name: tensor + 1 for name, tensor in weights.items()}
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError,
        match=r"model\.safetensors does not match its checksum.*on purpose, delete _manifest.json",
    ):
        checkpoints.require_intact(folder)
    (folder / "_manifest.json").unlink()
    checkpoints.require_intact(folder)
