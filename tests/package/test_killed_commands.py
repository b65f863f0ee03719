"""Commands that run a script, when they are killed: their script ends with them, nothing is left in
the temporary folder, and the same command works again.
"""

import os
import signal
import tempfile

import pytest

from helpers.processes.waiting import lives, until
from lightrainer.__main__ import main
from lightrainer.tools.compare import runs

WAITS = """
import os, subprocess, sys, time

worker = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
with open({pids!r} + ".new", "w") as file:
    print(os.getpid(), worker.pid, file=file)
os.replace({pids!r} + ".new", {pids!r})
time.sleep(600)
"""


@pytest.mark.parametrize("command", ["compare", "lr-find"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_command_ends_all_processes_of_its_script(tmp_path, monkeypatch, command, number):
    """Otherwise they write into the folder of the next comparison. Scratch folders are removed."""
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pids = tmp_path / "pids"
    (tmp_path / "script.py").write_text(WAITS.format(pids=str(pids)))

    killed = os.fork()
    if not killed:
        try:
            with open("log.txt", "w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            main([command, "script.py"])
        finally:
            os._exit(70)
    until(pids.exists)
    os.kill(killed, number)
    os.waitpid(killed, 0)
    started = [int(word) for word in pids.read_text().split()]
    until(lambda: not any(lives(pid) for pid in started))
    until(lambda: not any(tmp_path.glob("lightrainer-*")))


def test_comparison_is_repeated_in_a_folder_that_was_being_emptied(tmp_path, monkeypatch):
    """Wherever the kill was."""
    for number in range(6):
        folder = tmp_path / str(number)
        runs.empty_folder(folder)
        (folder / "reference" / "work").mkdir(parents=True)
        for name in ("log.txt", "record-1.json", "record-2.json", "weights-1-0.pt"):
            (folder / "reference" / name).touch()
        with monkeypatch.context() as killed:
            raise_at(killed, number)
            with pytest.raises(KeyboardInterrupt):
                runs.empty_folder(folder)
        runs.empty_folder(folder)
        assert [path.name for path in folder.iterdir()] == [runs.RESULT_FILE]


def raise_at(patching, number):
    """Let the deletion with this number raise."""
    deletions = 0

    def counted(delete):
        def call(*arguments, **options):
            nonlocal deletions
            deletions += 1
            if deletions > number:
                raise KeyboardInterrupt
            return delete(*arguments, **options)

        return call

    for name in ("unlink", "rmdir"):
        patching.setattr(os, name, counted(getattr(os, name)))
