"""Folders appear whole under their names, are replaced whole, and leftovers of dead processes go
away.
"""

import functools
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lightrainer.lightning_modules.checkpoints import (
    begin,
    discard,
    disk,
    get_last_checkpoint,
    problems,
    process_token,
    remove_leftovers,
    require_intact,
    require_visible,
    staged_folder,
    staging_path,
)


@pytest.fixture
def final(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint-12"


def _write(folder: Path, text: str) -> None:
    with staged_folder(folder) as staging:
        (staging / "sub").mkdir()
        (staging / "sub" / "file").write_text(text)
        assert get_last_checkpoint(folder.parent) == (str(folder) if folder.exists() else None)


def _hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@functools.cache
def _dead_owner() -> str:
    """The token of a process that existed and is gone."""
    code = (
        "from lightrainer.lightning_modules.common.process_identity import process_token; "
        "print(process_token())"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_older_version_is_replaced_as_a_whole(final: Path):
    _write(final, "old")
    (final / "only-in-old").touch()
    _write(final, "new")
    assert (final / "sub" / "file").read_text() == "new"
    assert not (final / "only-in-old").exists()
    assert _hidden(final.parent) == []


@pytest.mark.parametrize("error", [RuntimeError("disk full"), KeyboardInterrupt()])
def test_exception_leaves_the_older_version_and_nothing_else(final: Path, error: BaseException):
    _write(final, "old")

    def fail() -> None:
        with staged_folder(final) as staging:
            (staging / "file").write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert (final / "sub" / "file").read_text() == "old"
    assert _hidden(final.parent) == []


def test_failed_rename_leaves_the_older_version(final: Path, monkeypatch: pytest.MonkeyPatch):
    _write(final, "old")
    real = os.rename

    def rename(source: Path, target: Path) -> None:
        if Path(target) == final and ".partial-" in str(source):
            raise OSError("refused")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="refused"):
        _write(final, "new")
    assert (final / "sub" / "file").read_text() == "old"
    assert _hidden(final.parent) == []


def test_staging_flushes_files_and_folders_before_the_rename(
    final: Path, monkeypatch: pytest.MonkeyPatch
):
    events: list[str] = []
    real = disk.sync_path
    monkeypatch.setattr(
        disk, "sync_path", lambda path: (events.append(Path(path).name), real(path))[1]
    )
    real_rename = os.rename
    monkeypatch.setattr(
        os, "rename", lambda *args: (events.append("rename"), real_rename(*args))[1]
    )
    _write(final, "x")
    staging = staging_path(final).name
    assert events == ["file", "sub", staging, "rename", final.parent.name]


def test_require_visible_accepts_the_folder_of_another_process_alone(final: Path):
    staging = begin(final)
    require_visible(staging, final)
    staging.rmdir()
    with pytest.raises(ValueError, match=r"does not see .*checkpoint-12; a checkpoint cannot"):
        require_visible(staging, final)
    assert list(final.parent.iterdir()) == []


def test_leftovers_of_dead_processes_are_removed_and_of_living_ones_kept(final: Path):
    dead = staging_path(final, _dead_owner())
    (dead / "sub").mkdir(parents=True)
    living = begin(final)
    users_own = final.parent / ".cache"
    users_own.mkdir()
    assert remove_leftovers(final.parent) == [dead]
    assert living.is_dir()
    assert users_own.is_dir()
    assert not dead.exists()


def test_reused_process_number_does_not_keep_a_leftover_alive(final: Path):
    """In a restarted container the training process has the number of the one before."""
    machine, pid, start = process_token().rsplit("-", 2)
    if start == "0":
        pytest.skip("process start times are not available")
    leftover = staging_path(final, f"{machine}-{pid}-{int(start) - 1}")
    leftover.mkdir()
    assert remove_leftovers(final.parent) == [leftover]


def test_leftover_of_a_container_of_the_same_name_goes_when_the_folder_is_reserved(
    final: Path, monkeypatch
):
    """It may be that of a living process, whose number is free here, or that of this container
    before its restart.
    """
    _, pid, start = _dead_owner().rsplit("-", 2)
    if start == "0":
        pytest.skip("container ids are not available")
    with monkeypatch.context() as container:
        container.setattr(os, "readlink", lambda path: "pid:[1]")
        machine, *_ = process_token().rsplit("-", 2)
    leftover = staging_path(final, f"{machine}-{pid}-{start}")
    leftover.mkdir()
    elsewhere = staging_path(final, "elsewhere-0123456789ab-1-1")
    elsewhere.mkdir()
    assert remove_leftovers(final.parent) == []
    assert remove_leftovers(final.parent, is_reserved=True) == [leftover]


def test_leftover_of_another_machine_goes_when_it_has_been_idle_for_long(final: Path):
    leftover = staging_path(final, "elsewhere-1-1")
    leftover.mkdir()
    (leftover / "file").touch()
    assert remove_leftovers(final.parent) == []
    for path in (leftover / "file", leftover):
        os.utime(path, (0, 0))
    assert remove_leftovers(final.parent) == [leftover]


def test_interrupted_replacement_is_undone(final: Path, caplog):
    owner = _dead_owner()
    for kind in ("partial", "replaced"):
        folder = final.parent / f".{final.name}.{kind}-{owner}"
        folder.mkdir()
        (folder / "file").write_text(kind)
    with caplog.at_level(logging.WARNING):
        remove_leftovers(final.parent)
    assert (final / "file").read_text() == "replaced"
    assert _hidden(final.parent) == []
    assert "was restored" in caplog.text


@pytest.mark.parametrize("check", [problems, require_intact])
def test_interrupted_replacement_is_undone_for_a_reader_of_the_folder(final: Path, check):
    """As `fit(ckpt_path=...)` and `lightrainer evaluate` name it."""
    replaced = staging_path(final, _dead_owner(), kind="replaced")
    replaced.mkdir()
    save_file({"weight": torch.ones(2)}, replaced / "model.safetensors")
    check(final, training_state=False)
    assert (final / "model.safetensors").exists()
    assert _hidden(final.parent) == []


def test_staging_hides_a_folder_before_deleting_it(final: Path, monkeypatch, caplog):
    """A kill in between leaves no half checkpoint, and a disk that refuses ends no training."""
    _write(final, "x")
    existed: list[bool] = []
    real = disk.delete
    monkeypatch.setattr(
        disk, "delete", lambda path: (existed.append(final.exists()), real(path))[1]
    )
    discard(final)
    assert existed[-1] is False
    assert list(final.parent.iterdir()) == []
    discard(final)
    assert "could not be deleted" in caplog.text
