"""Only one process trains with a folder of checkpoints at a time."""

import os
import signal
import socket
import time
from contextlib import contextmanager

import pytest

from lightrainer.lightning_modules.checkpoints import FolderInUseError, owners, reserve_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork and POSIX locks")


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch):
    monkeypatch.setattr(owners, "LOCK_TIMEOUT", 0)


@contextmanager
def another_process(folder):
    """A process that has reserved the folder; its id."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with reserve_folder(folder):
            os.write(writing, b"x")
            time.sleep(600)
        os._exit(1)
    assert os.read(reading, 1) == b"x"
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


def test_owner_refuses_a_second_process_and_names_the_first(tmp_path):
    """However the folder is written; and the folder is free once the first has been killed."""
    with another_process(tmp_path / "out") as pid:
        for _ in range(2):
            with (
                pytest.raises(FolderInUseError, match=f"{pid} of {socket.gethostname()}"),
                reserve_folder(tmp_path / "elsewhere" / ".." / "out"),
            ):
                pass
        with reserve_folder(tmp_path / "another"):
            pass
    assert (tmp_path / "out" / owners.LOCK_NAME).exists()
    with reserve_folder(tmp_path / "out"):
        pass
    assert list((tmp_path / "out").iterdir()) == []


def test_children_of_a_killed_process_do_not_keep_its_folder(tmp_path):
    """Workers of a loader live on for some seconds."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with reserve_folder(tmp_path):
            if os.fork() == 0:
                os.write(writing, b"x")
                os.setsid()
                time.sleep(1)
                os._exit(0)
            time.sleep(600)
    assert os.read(reading, 1) == b"x"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with reserve_folder(tmp_path):
        pass


def test_owner_that_is_ending_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(owners, "LOCK_TIMEOUT", 60)
    with another_process(tmp_path) as pid:
        waits = iter([lambda: os.kill(pid, signal.SIGTERM)])
        pause = time.sleep
        monkeypatch.setattr(time, "sleep", lambda seconds: (next(waits, bool)(), pause(seconds)))
        with reserve_folder(tmp_path):
            assert next(waits, None) is None


def test_owner_file_deleted_while_waiting_locks_nothing(tmp_path, monkeypatch):
    """The process before deletes its file as it ends; a lock of that file would not keep out a
    third process.
    """
    monkeypatch.setattr(owners, "LOCK_TIMEOUT", 60)
    lockf, tries = owners.fcntl.lockf, []

    def delete_first(file, *flags):
        tries.append(file)
        if len(tries) == 1:
            (tmp_path / owners.LOCK_NAME).unlink()
        return lockf(file, *flags)

    monkeypatch.setattr(owners.fcntl, "lockf", delete_first)
    with reserve_folder(tmp_path):
        assert len(tries) == 2
        assert (tmp_path / owners.LOCK_NAME).exists()


def test_trainings_of_one_process_share_a_folder(tmp_path):
    """One after the other, and one inside the other; a forked process is another one."""
    for _ in range(2):
        with reserve_folder(tmp_path) as outer, reserve_folder(tmp_path) as inner:
            assert outer is inner is True
    with pytest.raises(KeyboardInterrupt), reserve_folder(tmp_path):
        raise KeyboardInterrupt
    with reserve_folder(tmp_path), reserve_folder(tmp_path):
        pid = os.fork()
        if pid == 0:
            try:
                with reserve_folder(tmp_path):
                    os._exit(1)
            except FolderInUseError:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("missing", ["locks", "permission"])
def test_owner_folder_without_locks_is_used(tmp_path, monkeypatch, missing):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    if missing == "locks":
        monkeypatch.setattr("fcntl.lockf", refuse)
    else:
        (tmp_path / owners.LOCK_NAME).mkdir()
    with reserve_folder(tmp_path) as is_reserved:
        assert is_reserved is False
