"""What becomes of a training whose newest checkpoint is damaged, or lies among other things: it
ends the same.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.checkpoints.resumed_trainings import train
from helpers.faults.killed_trainings import EVERY_STEP
from helpers.trainer.tiny_trainings import At

NEWEST = 8
FILES = [
    "_manifest.json",
    "data_state_0.pth",
    "model.safetensors",
    "optimizer.pt",
    "rng_state.pth",
    "scheduler.pt",
]
FILES += ["trainer_state.json", "training_args.bin"]


@pytest.fixture
def killed(whole, tmp_path) -> Path:
    """What there was of it when step 8 was saved, and the one before."""
    whole.killed_after(NEWEST, tmp_path / "out")
    for step in range(1, NEWEST - 1):
        shutil.rmtree(tmp_path / "out" / f"checkpoint-{step}")
    return tmp_path / "out"


def goes_on(folder: Path, whole, caplog, *, after: int) -> None:
    """It begins after this step, logs the reason, and ends as the uninterrupted training."""
    first_steps = []
    begin = At("on_train_begin", lambda _, state, control: first_steps.append(state.global_step))
    resumed = train(folder, resume=True, callbacks=[begin], **EVERY_STEP)
    assert first_steps == [after]
    assert resumed.end == whole.end
    assert (f"checkpoint-{NEWEST} is damaged and was skipped" in caplog.text) == (after < NEWEST)


def test_damage_is_tried_on_every_file(killed):
    assert sorted(path.name for path in (killed / f"checkpoint-{NEWEST}").iterdir()) == FILES


@pytest.mark.parametrize("name", FILES)
def test_damage_missing_file(killed, whole, caplog, name):
    """All but the list of the files are needed; that one is not in folders of the reference."""
    (killed / f"checkpoint-{NEWEST}" / name).unlink()
    goes_on(killed, whole, caplog, after=NEWEST if name == "_manifest.json" else NEWEST - 1)
    assert name == "_manifest.json" or name in caplog.text


@pytest.mark.parametrize(
    "without", [[], ["_manifest.json"]], ids=["with a list of files", "without"]
)
def test_further_files_are_no_damage(killed, whole, caplog, without):
    """Whatever they are called, and whatever is in them."""
    folder = killed / f"checkpoint-{NEWEST}"
    for name in (
        "notes.txt",
        "extra.pt",
        "vocab.bin",
        ".DS_Store",
        "optimizer.pt.bak",
        "global_step8/zero_pp_rank_0.pt",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not what it seems")
    for name in without:
        (folder / name).unlink()
    goes_on(killed, whole, caplog, after=NEWEST)


def half(folder: Path) -> None:
    """As the reference leaves it when it is killed while it writes."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"\0" * 100)


@pytest.mark.parametrize(
    ("name", "make", "stays"),
    [
        ("checkpoint-9", Path.mkdir, False),  # until step 9 is saved in its place
        ("checkpoint-99", half, True),
        ("checkpoint-100", Path.touch, True),
        ("checkpoint-8.bak", half, True),
        # of another machine, and in use, for all one can tell
        (".checkpoint-9.partial-elsewhere-1-1", half, True),
    ],
)
def test_damage_ignores_files_beside_the_checkpoint(
    killed, whole, caplog, name, make: Callable, stays
):
    make(killed / name)
    resumed = train(killed, resume=True, **{**EVERY_STEP, "save_total_limit": None})
    assert resumed.end == whole.end
    assert f"checkpoint-{NEWEST} is damaged and was skipped" not in caplog.text
    assert (f"{name} is damaged and was skipped" in caplog.text) == (
        name in ("checkpoint-9", "checkpoint-99")
    )
    assert stays == ((killed / name).exists() and not (killed / name / "optimizer.pt").exists())


def test_damaged_checkpoint_is_not_the_one_kept_by_rotation(killed, whole, caplog):
    """It is written again when the training comes by, whole this time."""
    os.truncate(killed / f"checkpoint-{NEWEST}" / "optimizer.pt", 10)
    resumed = train(killed, resume=True, **{**EVERY_STEP, "save_total_limit": None})
    assert resumed.end == whole.end
    left = killed / f"checkpoint-{NEWEST}" / "optimizer.pt"
    assert left.stat().st_size == Path(whole.checkpoint(NEWEST), "optimizer.pt").stat().st_size
