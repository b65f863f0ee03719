"""Files of others in a checkpoint survive its being written again; older ones of ours do not."""

import errno
import os
from pathlib import Path

import pytest

from lightrainer.lightning_modules.checkpoints import begin, commit, disk, staged_folder, write_manifest

OURS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
OURS += ["optimizer.pt", "trainer_state.json", "optimizer_0/__0_0.distcp"]
THEIRS = ["eval_results.json", "merged/model.safetensors", "merged/config.json", "notes/deep/a.txt"]


def write(folder: Path, names: list[str], text: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


@pytest.fixture(params=[True, False], ids=["with a list of files", "without"])
def final(request, tmp_path) -> Path:
    """A checkpoint of two shards, with files of others in it."""
    folder = tmp_path / "checkpoint-3"
    write(folder, OURS, "old")
    if request.param:
        write_manifest(folder)
    write(folder, THEIRS, "mine")
    (folder / "link").symlink_to("eval_results.json")
    return folder


@pytest.mark.parametrize("exchanged", [True, False])
def test_they_are_taken_over(final, monkeypatch, exchanged):
    """Of the older files none is left, though there is no newer one of that name."""
    if not exchanged:
        monkeypatch.setattr(disk, "exchange", lambda first, second: False)
    with staged_folder(final, keep_guests=True) as folder:
        write(folder, ["model.safetensors", "trainer_state.json"], "new")
        write_manifest(folder)
    assert names(final) == sorted([*THEIRS, "link", "model.safetensors", "trainer_state.json", "_manifest.json"])
    assert (final / "link").read_text() == (final / "merged" / "model.safetensors").read_text() == "mine"
    assert (final / "trainer_state.json").read_text() == "new"


def test_a_file_system_without_links(final, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    with staged_folder(final, keep_guests=True) as folder:
        write(folder, ["model.safetensors"], "new")
    assert set(names(final)) == {*THEIRS, "link", "model.safetensors"}


def test_a_kill_before_the_names_are_exchanged_leaves_them(final, monkeypatch):
    before = names(final)

    def killed(*_):
        raise KeyboardInterrupt

    folder = begin(final)
    write(folder, ["model.safetensors"], "new")
    monkeypatch.setattr(disk, "exchange", killed)
    with pytest.raises(KeyboardInterrupt):
        commit(folder, final, keep_guests=True)
    assert names(final) == before
    assert (final / "eval_results.json").read_text() == "mine"
