"""Write checkpoints in forked children, kill them, and report what a reader finds. Run as a script
by test_kills.py.

Usage: killed_writers_script.py FOLDER WAY; WAY is `staged` or, as a control, `in-place`. Prints one JSON
object: how many children were killed, how often the final name was missing, and every broken
promise.
"""

import json
import os
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import torch

from lightrainer.lightning_modules import checkpoints as ck
from lightrainer.lightning_modules.common import file_names

STEP = 12
WATCHED = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "open")


def write(run_dir: Path, version: int) -> None:
    """Write checkpoint-12 once, with a tensor that tells old from new, then rotate an older
    folder away.
    """
    with ck.staged_folder(run_dir / f"checkpoint-{STEP}") as folder:
        ck.save_weights(torch.nn.Linear(8, 8), folder)
        ck.save_torch(
            {"version": version, "state": torch.full((2000,), float(version))},
            folder / file_names.OPTIMIZER_NAME,
        )
        (folder / file_names.TRAINER_STATE_NAME).write_text(json.dumps({"global_step": STEP}))
    ck.rotate_checkpoints(run_dir, save_total_limit=1, newest=run_dir / f"checkpoint-{STEP}")


@contextmanager
def in_place(final: Path):
    """How the reference writes."""
    final.mkdir(exist_ok=True)
    yield final


def child_killing_itself(run_dir: Path, at: int) -> None:
    """Die just before the `at`-th change to the file system."""
    count = 0

    def watch(event: str, args: tuple) -> None:
        nonlocal count
        if event in WATCHED:
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    write(run_dir, version=2)


def prepare(run_dir: Path, replacing: bool) -> None:
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir()
    if replacing:
        write(run_dir, version=1)
        shutil.copytree(run_dir / f"checkpoint-{STEP}", run_dir / "checkpoint-3")


def fork(child) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            child()
        finally:
            os._exit(0)
    return pid


def inspect(run_dir: Path, replacing: bool, report: dict) -> None:
    """Check the promises, first as a reader who looks right after the kill, then as the next
    run.
    """
    final = run_dir / f"checkpoint-{STEP}"
    for path in run_dir.glob("checkpoint-*"):
        report["broken"] += [f"{path.name}: {problem}" for problem in ck.problems(path)]
    if replacing and not final.is_dir():
        report["gaps"] += 1
    if any(path.name.startswith(".") for path in run_dir.iterdir()):
        report["leftovers"] += 1
    ck.remove_leftovers(run_dir)
    report["broken"] += [
        f"left over: {path.name}" for path in run_dir.iterdir() if path.name.startswith(".")
    ]
    if replacing and not final.is_dir():
        report["broken"].append("neither the old nor the new version was found")
    if not ck.problems(final):
        version = ck.load_torch(final / file_names.OPTIMIZER_NAME)["version"]
        report["versions"][str(min(version, 2))] = (
            report["versions"].get(str(min(version, 2)), 0) + 1
        )
    if ck.last_intact_checkpoint(run_dir) != ck.get_last_checkpoint(run_dir):
        report["broken"].append("the last checkpoint is not intact")


def kill_at_every_step(run_dir: Path, report: dict) -> None:
    for replacing in (False, True):
        for at in range(1, 1000):
            prepare(run_dir, replacing)
            _, status = os.waitpid(fork(lambda at=at: child_killing_itself(run_dir, at)), 0)
            inspect(run_dir, replacing, report)
            if not os.WIFSIGNALED(status):
                break
            report["killed"] += 1


def main() -> None:
    folder, way = sys.argv[1:]
    torch.set_num_threads(1)
    if way == "in-place":
        ck.staged_folder = in_place
    report = {"killed": 0, "gaps": 0, "leftovers": 0, "versions": {}, "broken": []}
    warm = Path(folder, "warm")
    warm.mkdir()
    # whatever is imported late is imported now, so that only writes are left to be hit
    write(warm, version=0)
    kill_at_every_step(Path(folder, "run"), report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
