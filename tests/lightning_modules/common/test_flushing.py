"""File systems that cannot flush are used all the same; errors of a disk are raised."""

import errno
import os

import pytest

from lightrainer.callbacks import TrainerState
from lightrainer.lightning_modules.checkpoints.staging import staged_folder


def save(folder):
    """Replace a checkpoint and a state file, which flushes files and folders."""
    for content in ("old", "new"):
        with staged_folder(folder / "checkpoint-1") as staging:
            (staging / "file").write_text(content)
    TrainerState(global_step=1).save_to_json(folder / "state.json")


@pytest.fixture
def fail(monkeypatch):
    """`fail(number)` lets each flush fail with this error."""

    def set_error(number):
        def fsync(descriptor):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    return set_error


@pytest.mark.parametrize("name", ["EINVAL", "ENOSYS", "ENOTSUP", "EOPNOTSUPP"])
def test_flushing_unsupported(tmp_path, fail, name):
    fail(getattr(errno, name))
    save(tmp_path)
    assert (tmp_path / "checkpoint-1" / "file").read_text() == "new"
    assert TrainerState.load_from_json(tmp_path / "state.json").global_step == 1


@pytest.mark.parametrize("name", ["EIO", "ENOSPC"])
def test_flushing_error_of_the_disk(tmp_path, fail, name):
    fail(getattr(errno, name))
    with pytest.raises(OSError, match=os.strerror(getattr(errno, name))):
        save(tmp_path)
