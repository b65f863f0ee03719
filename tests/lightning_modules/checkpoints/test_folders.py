"""Finding, ordering and deleting checkpoint folders, compared with the reference's functions."""

import itertools
import os
from pathlib import Path

import pytest
from transformers import trainer_utils as reference

from lightrainer.lightning_modules.checkpoints import (
    get_last_checkpoint,
    list_checkpoints,
    rotate_checkpoints,
    sort_checkpoints,
)


def _make(run_dir: Path, steps: list[int]) -> None:
    """Folders written in this order, ten seconds apart."""
    for age, step in enumerate(steps):
        folder = run_dir / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        os.utime(folder, (1_700_000_000 + 10 * age, 1_700_000_000 + 10 * age))


def _steps(paths: list) -> list[int]:
    return [int(str(path).rpartition("-")[2]) for path in paths]


def _left(run_dir: Path) -> set[int]:
    assert not [path for path in run_dir.iterdir() if path.name.startswith(".")]
    return set(_steps(list_checkpoints(run_dir)))


@pytest.mark.parametrize("steps", [[], [5], [100, 9, 20]])
def test_last_checkpoint_is_the_references(tmp_path: Path, steps: list[int]):
    _make(tmp_path, steps)
    (tmp_path / "checkpoint-7-best").mkdir()
    (tmp_path / "checkpoint-300").touch()
    assert get_last_checkpoint(str(tmp_path)) == reference.get_last_checkpoint(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        get_last_checkpoint(tmp_path / "not-there")


@pytest.mark.parametrize("use_mtime", [False, True])
@pytest.mark.parametrize("best", [None, 9, 20, 100, 77])
def test_order_is_the_references(tmp_path: Path, use_mtime: bool, best: int | None):
    _make(tmp_path, [100, 9, 20])
    best_path = None if best is None else str(tmp_path / f"checkpoint-{best}")
    options = {"use_mtime": use_mtime, "best_model_checkpoint": best_path}
    assert sort_checkpoints(str(tmp_path), **options) == reference.sort_checkpoints(
        str(tmp_path), **options
    )


def test_times_that_tell_nothing_are_not_gone_by(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The newest checkpoint would be the first to be deleted."""
    _make(tmp_path, [100, 9, 20])
    for number, path in enumerate(list_checkpoints(tmp_path)):
        os.utime(path, (1000 - number / 10, 1000 - number / 10))
    assert _steps(sort_checkpoints(tmp_path, use_mtime=True)) == [9, 20, 100]
    assert "they are ordered by step" in caplog.text


@pytest.mark.parametrize("limit", [None, 0, 1, 2, 3, 5])
@pytest.mark.parametrize("best", [None, 10, 40, 99])
def test_folders_left_by_rotation_equal_the_reference(
    tmp_path: Path, limit: int | None, best: int | None
):
    left = []
    for name, rotate in (
        ("reference", reference.rotate_checkpoints),
        ("ours", rotate_checkpoints),
    ):
        run_dir = tmp_path / name
        _make(run_dir, [10, 20, 30, 40])
        best_path = None if best is None else str(run_dir / f"checkpoint-{best}")
        rotate(output_dir=str(run_dir), save_total_limit=limit, best_model_checkpoint=best_path)
        left.append(_left(run_dir))
    assert left[0] == left[1]


# What lies in the folder when a run starts (in order of age), and the steps at which that run
# saves.
REUSED_FOLDERS = {
    "fresh": ([], [10, 20, 30, 40]),
    "older run with higher steps": ([900, 1000], [10, 20, 30, 40]),
    "resumed from an earlier step": ([10, 20, 30, 40, 50], [30, 40, 50, 60]),
}


@pytest.mark.parametrize("case", REUSED_FOLDERS)
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_folders_after_a_run_in_a_used_folder_equal_the_reference(
    tmp_path: Path, case: str, limit: int
):
    """Told which checkpoint is the newest, the order by step gives what the reference has from
    times.
    """
    present, saved = REUSED_FOLDERS[case]
    runs = (tmp_path / "reference", tmp_path / "ours")
    for run_dir in runs:
        _make(run_dir, present)
    for age, step in enumerate(saved):
        for run_dir, rotate, extra in (
            (runs[0], reference.rotate_checkpoints, {"use_mtime": True}),
            (runs[1], rotate_checkpoints, {"newest": runs[1] / f"checkpoint-{step}"}),
        ):
            folder = run_dir / f"checkpoint-{step}"
            folder.mkdir(exist_ok=True, parents=True)
            os.utime(folder, (1_800_000_000 + 10 * age,) * 2)
            rotate(output_dir=str(run_dir), save_total_limit=limit, **extra)
            assert folder.is_dir()
            assert len(_left(run_dir)) <= limit
    assert _left(runs[0]) == _left(runs[1]) == set(saved[-limit:])


def test_best_is_recognised_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    _make(Path("run"), [1, 2, 3])
    Path("run/checkpoint-0-keep").mkdir()
    rotate_checkpoints(
        "run", save_total_limit=1, best_model_checkpoint=f"{tmp_path}/run/checkpoint-1/"
    )
    assert _left(Path("run")) == {1, 3}
    assert Path("run/checkpoint-0-keep").is_dir(), "a folder with more in its name is not deleted"


def test_newest_and_best_survive_every_limit(tmp_path: Path):
    for case, (limit, newest, best) in enumerate(
        itertools.product((1, 2, 3), (10, 20, 30), (10, 20, 30))
    ):
        run_dir = tmp_path / str(case)
        _make(run_dir, [10, 20, 30])
        rotate_checkpoints(
            run_dir, limit, run_dir / f"checkpoint-{best}", newest=run_dir / f"checkpoint-{newest}"
        )
        assert {newest, best} <= _left(run_dir)
        assert len(_left(run_dir)) == max(limit, len({newest, best}))
