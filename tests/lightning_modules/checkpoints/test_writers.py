"""Two runs that write into one folder at the same time are told so; those that follow one another are not."""

import os
import tempfile

import pytest

from lightrainer.lightning_modules.checkpoints import marked_as_written, owners
from lightrainer.lightning_modules.common import process_identity

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes cannot be looked at there")


@pytest.fixture(autouse=True)
def _own_marks(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def leave_mark(folder, token: str):
    """What another process would have left."""
    mark = owners._mark(folder)
    path = mark.with_name(f"{mark.name.partition('.')[0]}.{token}")
    path.touch()
    return path


def token_of(pid: int, *, started: int = 0) -> str:
    status = process_identity._process_status(pid)
    return f"{process_identity._host()}-{pid}-{(status[1] if status else 0) + started}"


def test_a_living_process_in_the_same_folder_is_named(tmp_path, caplog):
    """However the folder is written; and it stays marked for the next one."""
    left = leave_mark(tmp_path / "out", token_of(os.getppid()))
    with marked_as_written(tmp_path / "elsewhere" / ".." / "out"):
        pass
    assert f"Process {os.getppid()} trains with the same output_dir" in caplog.text
    assert left.exists()


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="when a process began is not known there")
def test_what_a_killed_process_left_is_removed_without_a_word(tmp_path, caplog):
    """Also if a later process has its number."""
    left = [leave_mark(tmp_path / "out", token_of(os.getppid(), started=-5))]
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    left.append(leave_mark(tmp_path / "out", token_of(pid)))  # a zombie
    os.waitpid(pid, 0)
    with marked_as_written(tmp_path / "out"):
        pass
    assert caplog.text == ""
    assert not any(path.exists() for path in left)


def test_one_process_may_train_again_and_again(tmp_path, caplog):
    for _ in range(2):
        with marked_as_written(tmp_path / "out"):
            pass
    with marked_as_written(tmp_path / "out"), marked_as_written(tmp_path / "out"):
        pass
    leave_mark(tmp_path / "another", token_of(os.getppid()))
    with pytest.raises(KeyboardInterrupt), marked_as_written(tmp_path / "out"):
        raise KeyboardInterrupt
    assert caplog.text == ""
    assert not owners._mark(tmp_path / "out").exists()


def test_it_is_no_matter_where_no_mark_can_be_left(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with marked_as_written(tmp_path / "out"):
        pass
    assert caplog.text == ""
